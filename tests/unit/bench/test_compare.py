"""What a comparison makes of its runs."""

import pytest

from tandemmq.bench.compare import OURS, Comparison, Run, run_line, table


def test_a_ratio_above_one_is_for_us_whether_more_or_less_is_better() -> None:
    rates = Comparison("windowed", [Run(OURS, 1, {"sent_per_second": 30.0}), Run("peer", 1, {"sent_per_second": 10.0})])
    times = Comparison("outage", [Run(OURS, 1, {"outage_seconds": 0.5}), Run("peer", 1, {"outage_seconds": 2.5})])

    assert rates.ratio("peer") == pytest.approx(3.0)
    assert times.ratio("peer") == pytest.approx(5.0)


def test_the_median_of_the_rounds_is_compared() -> None:
    runs = [Run(OURS, number, {"sent_per_second": rate}) for number, rate in ((1, 20.0), (2, 30.0), (3, 90.0))]
    comparison = Comparison("windowed", [*runs, Run("peer", 1, {"sent_per_second": 15.0})])

    assert comparison.median(OURS) == pytest.approx(30.0)
    assert comparison.ratio("peer") == pytest.approx(2.0)


def test_a_broker_that_could_not_run_is_named_and_has_no_ratio() -> None:
    comparison = Comparison(
        "windowed", [Run(OURS, 1, {"sent_per_second": 30.0}), Run("peer", 1, {}, "peer is not installed")]
    )

    assert comparison.ratio("peer") is None
    assert "peer is not installed" in "\n".join(table(comparison))
    assert "not installed" in run_line("windowed", comparison.runs[1])
