"""The outage scenario against a real pair."""

from pathlib import Path

import pytest

from tandemmq.bench.connection import BenchError, Endpoint
from tandemmq.bench.outage import run_outage
from tandemmq.bench.peers.ports import free_port
from tests.support.services.pairs import TandemMQ


def test_a_killed_master_is_survived_and_its_standby_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    standby = TandemMQ(tmp_path / "b", data=data, broker="b")
    with TandemMQ(tmp_path / "a", data=data, broker="a") as master:
        try:
            standby.start()
            standby.await_standby()

            result = run_outage([master.endpoint, standby.endpoint], master.pid, seconds_before=0.3, seconds_after=0.1)
        finally:
            standby.discard()

    assert result.survivor.endswith(f":{standby.port}")
    assert result.confirmed_before > 0
    assert result.confirmed_after > 0
    assert result.outage_seconds >= result.until_connected_seconds > 0


def test_nobody_at_the_addresses_is_an_error_in_words() -> None:
    with pytest.raises(BenchError, match="no broker answers"):
        run_outage([Endpoint("127.0.0.1", free_port())], victim_pid=2**22, patience_seconds=0.1)
