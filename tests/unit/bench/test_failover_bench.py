"""The failover scenario: a pair through its rounds, and a witness that would notice a broken promise."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.failover import HANDOVER, Case, failover
from tandemmq.bench.peers.server import TandemMQ
from tandemmq.bench.witness import Acknowledger, drain, fill
from tandemmq.store.tools.check import check

pytestmark = pytest.mark.thorough


def test_a_round_of_each_kind_loses_nothing_and_tells_where_the_time_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemmq.bench.failover.ACKNOWLEDGED_MAX", 200)
    monkeypatch.setattr("tandemmq.bench.failover.ROUND_SECONDS", 0.3)
    lines: list[str] = []
    figures = failover(["shared-file", HANDOVER], ["empty"], 1, tmp_path, lines.append, load=100)
    killed, handed_over = figures["cases"]
    for case in (killed, handed_over):
        assert case["problem"] is None
        assert (case["rounds"], case["lost"], case["undone"]) == (1, 0, 0)
        assert 0 < case["p50_seconds"] <= case["max_seconds"] < 60
    assert set(killed["steps_p50_ms"]) == {"lock", "fence", "replay", "header", "store", "listen", "client"}
    # At most a poll and what is fixed, where next to nothing has to be read: neither a minute nor nothing.
    assert 0.05 < killed["predicted_p50_seconds"] < 2
    assert killed["p50_seconds"] < 20 * killed["predicted_p50_seconds"], "20: a machine that others use, too"
    total = sum(killed["steps_p50_ms"].values()) / 1000
    assert total == pytest.approx(killed["p50_seconds"], abs=0.01), "the steps are the outage"
    assert any("shared-file" in line and "lost 0" in line for line in lines)
    report = check(str(tmp_path / "tandemmq" / "empty"))
    assert report.is_clean, report.problems


def test_what_cannot_be_run_is_said_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: TandemMQ) -> None:
        raise BenchError("it does not start")

    monkeypatch.setattr(TandemMQ, "start", refuse)
    figures = failover(["shared-file", HANDOVER], ["empty"], 1, tmp_path, lambda line: None)
    assert [case["problem"] for case in figures["cases"]] == ["it does not start"] * 2
    assert "it does not start" in Case("shared-file", "empty", problem="it does not start").line()


def test_the_witness_knows_what_is_there_what_is_gone_and_what_was_acknowledged() -> None:
    queue = "/queue/bench.witness"
    with TandemMQ() as broker:
        fill(broker.endpoint, queue, 250)
        acknowledger = Acknowledger(broker.endpoint, queue)
        until = time.monotonic() + 20
        while len(acknowledger.confirmed) < 5:
            assert time.monotonic() < until, "it acknowledges"
            time.sleep(0.01)
        acknowledger.end()
        left = drain(broker.endpoint, queue)
        assert acknowledger.confirmed <= acknowledger.asked
        assert len(acknowledger.asked - acknowledger.confirmed) <= 1
        assert not acknowledger.confirmed & left.keys(), "what was acknowledged does not come again"
        assert acknowledger.asked | left.keys() == set(range(250)), "all else is there"
        fill(broker.endpoint, queue, 3)
        fill(broker.endpoint, queue, 2)
        assert drain(broker.endpoint, queue) == {0: 2, 1: 2, 2: 1}
