"""The floor takes the driver's load as a broker does, or what it shows is no bound."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tandemmq.bench.load import run_load
from tandemmq.bench.peers.floor import Floor
from tandemmq.bench.plan import LoadPlan

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler")


@pytest.mark.parametrize("window", [1, 50])
def test_every_message_is_stored_confirmed_and_received_once(tmp_path: Path, window: int) -> None:
    with Floor(tmp_path) as server:
        plan = LoadPlan(
            server.endpoint, producers=3, consumers=2, queues=2, window=window, count=600, checks_order=True
        )
        result = run_load(plan)

    assert (result.sent, result.confirmed, result.received) == (600, 600, 600)
    assert result.order is not None
    assert (result.order.seen, result.order.skipped, result.order.late) == (600, 0, 0)
    stored = (tmp_path / "file").read_bytes()
    assert stored.count(b"SEND\n") == 600
    assert stored.count(b"ACK\n") == 600
