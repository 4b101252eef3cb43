"""JMS clients over a replicated set: the master is killed, they go on at the next one, and the books are in order.

TANDEMMQ_PROVE says how often the master is killed in each mode.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.load import Load
from tests.support.prove import SEED, rounds
from tests.support.replication.process_fixtures import three as three
from tests.support.replication.process_fixtures import whole as whole

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(1200),
    pytest.mark.promise("clients-go-on", "quorum-keeps-confirmed"),
]

KILLS = rounds(1, 20)
PROMPT = (
    "initialReconnectDelay=20&maxReconnectDelay=100&jms.redeliveryPolicy.initialRedeliveryDelay=0"
    "&jms.sendAcksAsync=false"
)


def failover(*ports: int | None) -> str:
    return f"failover:({','.join(f'tcp://127.0.0.1:{port}' for port in ports)})?{PROMPT}"


@pytest.mark.parametrize("mode", ["CLIENT", "TRANSACTED"])
def test_nothing_is_lost_and_nothing_is_there_twice(three: SetOfBrokers, classes: Path, mode: str) -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    chance = random.Random(SEED)
    load = Load(classes, failover(*(node.openwire for node in three.members)), f"JMS.SET.{mode}", mode)
    try:
        for _ in range(KILLS):
            load.send_more(chance.randint(50, 300))
            dead = three.wait_master()
            dead.kill()
            three.wait_master(three.others(dead))
            load.send_more(100)
            dead.start()
            # Near enough to be elected: the others go on writing.
            wait_until(lambda: dead.replication().get("role") == "follower", f"{dead.node} is back")  # noqa: B023
        books = load.books()
    finally:
        load.close()
    assert books.problems() == []
    assert len(books.sent) >= 150


def test_a_client_that_knows_one_member_is_told_of_all(three: SetOfBrokers, jvm: Jvm) -> None:
    """Nobody set broker.failover_uris."""
    master = three.settled()[0]
    connection = jvm.connect(failover(master.openwire))
    session = connection.session()
    session.send("queue://TOLD", "before")
    master.kill()
    session.send("queue://TOLD", "after")
    assert session.consumer("queue://TOLD").bodies(2) == ["before", "after"]
    connection.close()
