"""Evaluation of the runs of the comparison of CPU."""

from __future__ import annotations

from collections.abc import Callable
from shutil import which

import pytest

from tandemmq.bench.cpu import BASELINE, CANDIDATE, Run, measure, summary, table
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.server import TREE
from tandemmq.bench.report import checked_out


def run(side: str, number: int, cpu_us: float) -> Run:
    return Run("stomp-waiting", side, number, {"cpu_us": cpu_us, "waits": 1.0, "rate": 1e6 / cpu_us})


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    pairs = [(10.0, 10.0), (30.0, 20.0), (12.0, 10.0)]  # a busy machine in the second round
    runs = [
        run(side, number, value)
        for number, pair in enumerate(pairs)
        for side, value in zip((CANDIDATE, BASELINE), pair, strict=True)
    ]

    told = summary(runs, "stomp-waiting")
    assert told["ratio"] == pytest.approx(1.2)
    assert (told["ratio_least"], told["ratio_most"], told[CANDIDATE]["cpu_us"]) == (1.0, 1.5, 12.0)
    assert told[BASELINE]["cpu_us"] == 10.0


def test_without_a_baseline_there_is_no_ratio() -> None:
    runs = [run(CANDIDATE, 1, 10.0)]

    assert "ratio" not in summary(runs, "stomp-waiting")


def test_the_table_has_the_ratio_and_its_range() -> None:
    told = {"candidate": {"cpu_us": 12.0}, "baseline": {"cpu_us": 10.0}, "ratio": 1.2}
    told |= {"ratio_least": 1.1, "ratio_most": 1.3}

    assert "1.200  1.100 to 1.300" in table({"cases": {"stomp-waiting": told}})[-1]


def test_a_commit_that_is_not_there_is_named() -> None:
    with pytest.raises(BenchError, match="no-such-commit"), checked_out("no-such-commit"):
        pass


@pytest.mark.service
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_jms_cases_are_measured(require_service: Callable[[object, str], None]) -> None:
    require_service(which("mvn") and which("javac"), "no JMS client: the Debian packages maven, default-jdk-headless")
    runs = measure({CANDIDATE: TREE, BASELINE: TREE}, ["jms-async"], 1, 0.3, lambda line: None)

    told = summary(runs, "jms-async")
    assert told[CANDIDATE]["cpu_us"] > 0
    assert told[CANDIDATE].keys() == told[BASELINE].keys()
    assert told["ratio"] > 0
