"""JMS clients over a replicated set: the master is killed, they go on at the next one, and the books are in order.

TANDEMMQ_PROVE says how often the master is killed in each mode.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.interop.jms.jvm import JmsSession, Jvm
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


@pytest.mark.parametrize("mode", ["AUTO", "CLIENT", "DUPS_OK", "INDIVIDUAL", "TRANSACTED"])
def test_nothing_is_lost_and_nothing_is_there_twice(three: SetOfBrokers, classes: Path, mode: str) -> None:
    seed = SEED
    print(f"seed {seed} (TANDEMMQ_SEED)")
    chance = random.Random(seed)
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


def worked(session: JmsSession, xid: str, queue: str, taken: str, sent: str) -> None:
    session.xa("start", xid)
    consumer = session.consumer(f"{queue}?consumer.prefetchSize=0")
    assert consumer.receive().body == taken
    session.send(f"{queue}.OUT", sent)
    session.xa("end", xid)


def test_what_was_prepared_is_there_at_the_next_masters(three: SetOfBrokers, jvm: Jvm) -> None:
    """Two transactions, prepared before a kill and decided behind it and a planned end, one after the other; a third
    was not prepared, and is gone."""
    url = failover(*(node.openwire for node in three.members))
    queue = "queue://JMS.SET.XA"
    plain = jvm.connect(url)
    plain.session().send(queue, "a", "b", "c")
    working = jvm.connect(url, xa=True)
    for xid, taken in (("kept", "a"), ("undone", "b"), ("open", "c")):
        session = working.session("XA")
        worked(session, xid, queue, taken, f"by {xid}")
        if xid != "open":
            session.xa("prepare", xid)
    dead = three.wait_master()
    dead.kill()
    second = three.wait_master(three.others(dead))
    dead.start()
    three.settled()

    working.close()

    deciding = jvm.connect(url, xa=True).session("XA")
    assert sorted(deciding.xa("recover")) == ["kept", "undone"]
    out = plain.session().consumer(f"{queue}.OUT")
    assert out.take() is None, "nothing of it is decided"
    deciding.xa("commit", "kept")
    assert out.bodies(1) == ["by kept"]

    assert second.terminate() == 0
    three.wait_master(three.others(second))
    second.start()
    three.settled()
    assert deciding.xa("recover") == ["undone"]
    deciding.xa("rollback", "undone")
    assert deciding.xa("recover") == []
    assert plain.session().consumer(queue).rest() == ["b", "c"], "a was acknowledged by what was committed"
    assert out.take() is None
    plain.close()
