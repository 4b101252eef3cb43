"""What a scrape tells of who is master: phase, lock, proof, demotions."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from tandemmq.broker.admin.metrics import StatusCollector
from tandemmq.broker.ha.states import Phase, Trouble
from tandemmq.broker.process.loop_lag import LoopLag

BARE: dict[str, Any] = {"role": "standby", "epoch": 3, "name": "a", "store": "/data"}


def scrape(status: dict[str, Any]) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status))
    return generate_latest(registry).decode().splitlines()


@pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.value)
def test_exactly_one_phase_is_1(phase: Phase) -> None:
    lines = [line for line in scrape(BARE | {"phase": phase.value}) if line.startswith("tandemmq_phase{")]
    assert len(lines) == len(Phase)
    assert [line for line in lines if line.endswith(" 1.0")] == [f'tandemmq_phase{{phase="{phase.value}"}} 1.0']


def test_a_masters_lock_and_proof_are_shown() -> None:
    lock = {"type": "lease-database", "where": "the table", "proof_age_seconds": 0.2, "proof_holds_seconds": 1.3}
    lines = scrape(BARE | {"lock": lock, "last_takeover_seconds": 0.21})
    assert 'tandemmq_lock_info{kind="lease-database",where="the table"} 1.0' in lines
    assert "tandemmq_lock_proof_age_seconds 0.2" in lines
    assert "tandemmq_lock_proof_holds_seconds 1.3" in lines
    assert "tandemmq_last_takeover_seconds 0.21" in lines


def test_what_is_not_known_is_left_out() -> None:
    endless = {"type": "shared-file", "where": "x", "proof_age_seconds": 0.2, "proof_holds_seconds": None}
    lines = scrape(BARE | {"lock": endless, "last_takeover_seconds": None})
    assert not any(line.startswith(("tandemmq_lock_proof_holds", "tandemmq_last_takeover")) for line in lines)
    assert not any(line.startswith("tandemmq_lock_proof_age_seconds ") for line in scrape(BARE))


def test_demotions_are_counted_by_trouble_and_those_that_never_were_are_0() -> None:
    lines = scrape(BARE | {"demotions": {"LOCK_LOST": 2}, "counts": {"handovers_total": 1}})
    shown = {line for line in lines if line.startswith("tandemmq_demotions_total{")}
    assert 'tandemmq_demotions_total{trouble="LOCK_LOST"} 2.0' in shown
    assert 'tandemmq_demotions_total{trouble="DEPOSED"} 0.0' in shown
    assert len(shown) == len(Trouble)
    assert "tandemmq_handovers_total 1.0" in lines


def test_the_loops_lag_is_a_histogram() -> None:
    lag = LoopLag()
    for seconds in (-0.001, 0.0004, 0.02, 0.021, 60.0):
        lag.note(seconds)
    lines = scrape(BARE | {"loop_lag_seconds": lag.figures()})
    shown = dict(line.rsplit(" ", 1) for line in lines if line.startswith("tandemmq_loop_lag_seconds"))
    assert shown['tandemmq_loop_lag_seconds_bucket{le="0.001"}'] == "2.0"
    assert shown['tandemmq_loop_lag_seconds_bucket{le="0.02"}'] == "3.0"
    assert shown['tandemmq_loop_lag_seconds_bucket{le="0.05"}'] == "4.0"
    assert shown['tandemmq_loop_lag_seconds_bucket{le="5.0"}'] == "4.0"
    assert shown['tandemmq_loop_lag_seconds_bucket{le="+Inf"}'] == shown["tandemmq_loop_lag_seconds_count"] == "5.0"
    assert float(shown["tandemmq_loop_lag_seconds_sum"]) == pytest.approx(60.0414)
    assert lag.max_seconds == 60.0
