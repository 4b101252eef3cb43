"""Latencies beside other work of the broker, and of a good client beside an attacker. The other work and the attack
happen, the latencies are those of the load, and each receipt is counted."""

from __future__ import annotations

import dataclasses

import pytest

from tandemmq.bench import beside as module
from tandemmq.bench.attacks import ATTACKS_COLUMNS, RECEIPTS_PER_SECOND, attacks
from tandemmq.bench.beside import CASES, COLUMNS, beside
from tandemmq.bench.peers import server
from tandemmq.bench.report import runs_table
from tests.support.samples import sampled

CASES_IN_CI = 4


@pytest.mark.parametrize("case", sampled("beside", CASES, CASES_IN_CI))
@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_each_case_has_its_latencies(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAINED_MESSAGES", 2_000)
    monkeypatch.setattr(server, "CATCH_UP_SECONDS_MAX", 120.0)  # so that an error is reported
    monkeypatch.setattr(
        module,
        "CASES",
        {
            name: dataclasses.replace(
                each,
                stored=min(each.stored, 5_000),
                live_every=min(each.live_every, 2_500),
                filled=min(each.filled, 2_000),
            )
            for name, each in CASES.items()
        },
    )

    figures = beside([case], 200.0, 1.0, 1, None, lambda line: None)

    (run,) = figures["runs"]
    assert run["sent"] == run["received"]
    assert 0 < run["receipt_p50_ms"] <= run["receipt_p99_ms"] <= run["receipt_max_ms"]
    assert case in runs_table(figures, COLUMNS)[-1]


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", ["nothing", "topic"])
def test_each_receipt_counts_and_the_master_stays(case: str) -> None:
    figures = attacks([case], 0.5, 1, None, lambda line: None)
    (run,) = figures["runs"]
    assert (run["case"], run["seed"], run["epoch"]) == (case, 1, 1)
    assert run["receipts"] == RECEIPTS_PER_SECOND // 2
    assert 0 < run["receipt_p50_ms"] <= run["receipt_p95_ms"] <= run["receipt_max_ms"]
    assert len(runs_table(figures, ATTACKS_COLUMNS)) == 2
