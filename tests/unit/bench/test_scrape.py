"""The scrape scenario on a real broker, by small steps."""

from __future__ import annotations

import pytest

from tandemmq.bench.scrape import CASES, scrape, table


@pytest.mark.thorough
def test_both_cases_are_measured_by_size() -> None:
    figures = scrape(list(CASES), (1, 30), lambda _: None)
    assert [step["destinations"] for step in figures["cases"]["sums"]] == [1, 30]
    one, many = figures["cases"]["destinations"]
    assert many["bytes"] > one["bytes"] + 29 * 6 * len("tandemmq_destination_")
    assert all(step["longest_wait_ms"] > 0 for steps in figures["cases"].values() for step in steps)
    assert len(table(figures)) == 5
