"""Messages that an operator moves to and fro while the broker is killed again and again: each is there once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.prove import IS_THOROUGH
from tests.unit.broker.admin.api.conftest import Clients, Operator

MESSAGES = 300
KILLS = 4 if IS_THOROUGH else 2


@pytest.mark.promise("moved-once")
def test_no_message_is_lost_or_doubled_by_a_kill_between_two_moves(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "a").start()
    try:
        broker.wait_role("master")
        bodies = [f"m{number}" for number in range(MESSAGES)]
        Clients(broker).send("here", *bodies)
        for _ in range(KILLS):
            moving = [
                threading.Thread(target=_move, args=(broker, *way)) for way in (("here", "there"), ("there", "here"))
            ]
            for each in moving:
                each.start()
            time.sleep(0.2)
            broker.kill()
            for each in moving:
                each.join()
            broker.start()
            broker.wait_role("master")
        operator = Operator(broker)
        found = [*operator.bodies("here", limit=1000), *operator.bodies("there", limit=1000)]
        assert sorted(found) == sorted(bodies)
    finally:
        broker.stop()


def _move(broker: BrokerProcess, here: str, there: str) -> None:
    """Until the broker is gone."""
    try:
        operator = Operator(broker)
        while True:
            operator.ask("POST", f"destinations/queue/{here}/messages/move", {"to": there, "limit": 20})
    except OSError:
        pass
