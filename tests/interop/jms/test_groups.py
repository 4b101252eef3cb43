"""Message groups: one consumer for each, until it goes or the group is closed."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("message-groups")]


def group(name: str, sequence: int | None = None) -> dict[str, object]:
    return {"JMSXGroupID": name} | ({} if sequence is None else {"JMSXGroupSeq": sequence})


def test_a_group_stays_with_its_consumer(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    listeners = [connection.session().listener(f"queue://{name}") for _ in range(2)]
    session = connection.session()
    for number in range(40):
        session.send(f"queue://{name}", str(number), properties=group(f"g{number % 4}"))
    while sum(len(listener.heard(0)) for listener in listeners) < 40:
        pass
    owners: dict[str, set[int]] = {}
    for place, listener in enumerate(listeners):
        for message in listener.heard(0):
            owners.setdefault(message["group"], set()).add(place)
    assert all(len(places) == 1 for places in owners.values()), owners
    assert {place for places in owners.values() for place in places} == {0, 1}, "groups are spread"
    connection.close()


def test_a_group_moves_when_its_consumer_goes(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    first = connection.session().consumer(f"queue://{name}")
    session.send(f"queue://{name}", "a", properties=group("g"))
    message = first.receive()
    assert (message.body, message["group"], message["isFirstOfGroup"]) == ("a", "g", True)
    second = connection.session().consumer(f"queue://{name}")
    session.send(f"queue://{name}", "b", properties=group("g"))
    message = first.receive()
    assert (message.body, message["isFirstOfGroup"]) == ("b", False)
    assert second.take() is None
    first.close()
    session.send(f"queue://{name}", "c", properties=group("g"))
    moved = second.receive()
    assert (moved.body, moved["isFirstOfGroup"]) == ("c", True)
    connection.close()


def test_a_group_that_is_closed_begins_anew(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    consumer = connection.session().consumer(f"queue://{name}")
    session.send(f"queue://{name}", "a", properties=group("g", 1))
    session.send(f"queue://{name}", "end", properties=group("g", -1))
    session.send(f"queue://{name}", "b", properties=group("g", 1))
    firsts = [consumer.receive()["isFirstOfGroup"] for _ in range(3)]
    assert firsts == [True, False, True]
    connection.close()


def test_a_group_that_was_closed_goes_to_the_idle_consumer(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    queue = f"queue://{name}"
    sender, first = connection.session(), connection.session().consumer(queue)
    sender.send(queue, "1", properties={"JMSXGroupID": "g"})
    assert first.receive().body == "1"
    second = connection.session().consumer(queue)
    sender.send(queue, "2", properties={"JMSXGroupID": "g"})
    sender.send(queue, "3", properties={"JMSXGroupID": "g", "JMSXGroupSeq": -1})
    assert first.bodies(2) == ["2", "3"]
    sender.send(queue, "4", properties={"JMSXGroupID": "g"})
    assert second.receive().body == "4"
    connection.close()
