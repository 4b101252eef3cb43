"""What a client waits beside an attacker: that the attack is made, and that each receipt is counted."""

from __future__ import annotations

import pytest

from tandemmq.bench.attacks import ATTACKS_COLUMNS, RECEIPTS_PER_SECOND, attacks
from tandemmq.bench.report import runs_table


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
