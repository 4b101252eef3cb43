"""Replay of journals and of a lake to real brokers: each message once, from one process without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.bench.peers.server import Server
from tandemmq.cli import main
from tandemmq.pipeline.jobs import archive, replay
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.local.session import LocalSession
from tandemmq.pipeline.sending.request import ReplayRequest, Target
from tandemmq.store.tools.check import check
from tests.support.pipeline.pipeline_journals import add, write_foreign, write_store
from tests.support.pipeline.taken import taken
from tests.support.services.pairs import failover_url, pair_in


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """A master and its standby over one directory. The checker must find no problem in it after the test."""
    with pair_in(tmp_path) as both:
        yield both
    report = check(str(tmp_path / "data"))
    assert report.is_clean, report.problems


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [each["originalMessageId"] for each in found]


@pytest.mark.promise("pipeline-reads-beside")
def test_a_master_that_is_killed_meanwhile_changes_nothing(pair: tuple[Server, Server], tmp_path: Path) -> None:
    write_store(tmp_path / "store", 800)  # two chunks: the first is recorded while the second is sent
    sources, out = Sources((str(tmp_path / "store"),)), str(tmp_path / "out")
    target = Target(failover_url(*pair), per_second=300)
    is_under_way = threading.Event()

    def kill() -> None:
        if is_under_way.wait(60):
            pair[0].kill()

    def progress(sent: int, total: int) -> None:
        if 0 < sent < total:
            is_under_way.set()

    killer = threading.Thread(target=kill)
    killer.start()
    request = ReplayRequest()
    with LocalSession(out) as session:
        summary = replay.run(session, sources, out, request=request, target=target, progress=progress)  # type: ignore[arg-type]
    killer.join()
    assert is_under_way.is_set(), "it was killed in the middle"
    assert summary.is_clean, summary.findings
    with LocalSession(out) as session:
        again = replay.run(session, sources, out, request=request, target=target)  # type: ignore[arg-type]
    assert again.findings[:2] == (
        "0 messages were sent, and the broker confirmed each.",
        "800 were there already, from earlier runs.",
    )
    assert ids(taken(failover_url(*pair), "/queue/orders")) == [f"ID:tests-1:1:1:{n}" for n in range(1, 801)]


def test_a_lake_is_sent_in_slices_side_by_side(pair: tuple[Server, Server], tmp_path: Path) -> None:
    store, lake, out = tmp_path / "store", str(tmp_path / "lake"), tmp_path / "out"
    for file in (1, 2, 3):
        write_foreign(store / f"db-{file}.log", [[add(100 * file + n, b"%d" % n) for n in range(5)]])
    with LocalSession(tmp_path / "session") as session:
        archive.run(session, Sources((str(store),)), lake)  # type: ignore[arg-type]
    command = ["pipeline", "replay", lake, "--out", str(out), "--to", failover_url(*pair), "--engine", "local"]
    wanted = ["--destination", "orders", "--as", "again", "--where", "message_id NOT LIKE '%:102'", "--unordered"]
    done = CliRunner().invoke(main, [*command, *wanted])
    assert done.exit_code == 0, done.output
    assert "9 messages were sent" in done.output
    found = taken(failover_url(*pair), "/queue/again")
    numbers = [100 * file + n for file in (1, 2) for n in range(5)]
    assert ids(found) == [f"ID:tests-1:1:1:{number}" for number in numbers if number != 102]


def test_no_broker_is_told_in_a_sentence(tmp_path: Path) -> None:
    write_store(tmp_path / "store", 20)
    out = tmp_path / "out"
    to = "failover:(stomp://127.0.0.1:1)?maxReconnectAttempts=1"
    command = ["pipeline", "replay", str(tmp_path / "store"), "--out", str(out), "--to", to, "--engine", "local"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1
    assert "Traceback" not in done.output
    assert "127.0.0.1:1" in done.output
    assert not list(out.glob(".local-*"))
