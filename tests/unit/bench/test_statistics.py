"""Figures from the samples of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.bench.driver.load import Sample, percentile, rate_between, rate_of_share, reached_at, value_at

# 100 messages a second for ten seconds, then 50 for ten more.
SAMPLES = [Sample(float(second), 0, min(second, 10) * 100 + max(0, second - 10) * 50, 0) for second in range(21)]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.99, 4.0), (0.0, 1.0), (1.0, 4.0), (0.25, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == expected


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 0.5) is None


@given(st.lists(st.floats(0, 1000), min_size=1), st.floats(0, 1))
def test_a_percentile_has_its_share_at_or_below_it(values: list[float], share: float) -> None:
    found = percentile(sorted(values), share)

    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_a_counter_is_known_between_samples() -> None:
    assert value_at(SAMPLES, 2.5, "confirmed") == 250
    assert value_at(SAMPLES, -1, "confirmed") == 0
    assert value_at(SAMPLES, 99, "confirmed") == 1500


def test_rates_are_taken_between_moments_and_between_shares() -> None:
    assert rate_between(SAMPLES, 1.0, 3.0, "confirmed") == pytest.approx(100)
    assert rate_between(SAMPLES, 3.0, 3.0, "confirmed") == 0
    assert rate_of_share(SAMPLES, 0.0, 0.1, "confirmed") == pytest.approx(100)
    assert rate_of_share(SAMPLES, 0.9, 1.0, "confirmed") == pytest.approx(50)


def test_the_moment_a_count_was_reached_lies_between_two_samples() -> None:
    assert reached_at(SAMPLES, 250, "confirmed") == pytest.approx(2.5)
    assert reached_at(SAMPLES, 0, "confirmed") == 0
    assert reached_at(SAMPLES, 9999, "confirmed") == 20
