"""Choice of the consumer of each message: selectors and groups; and browsers, which consume nothing."""

from __future__ import annotations

import pytest

from tests.interop.jms.conftest import Connect
from tests.support.interop.jms.jvm import JmsConnection, JmsError, JmsSession

pytestmark = [pytest.mark.service, pytest.mark.promise("selectors", "message-groups")]


# What an expression means tests/interop/test_selectors.py compares with ActiveMQ; here is what JMS says of a message.
CASES = [
    ("heavy = TRUE OR size = 0", [0, 2, 4]),
    ("size * 2 + 1 = 7", [3]),
    ("weight > 1.4 AND weight < 1.6", [1]),
    ("JMSPriority > 4", [4]),
    ("JMSType = 'order'", [3]),
    ("JMSCorrelationID = 'c-1'", [1]),
    ("JMSDeliveryMode = 'PERSISTENT' AND size < 1", [0]),
]


@pytest.mark.parametrize(("selector", "wanted"), CASES)
def test_a_selector_chooses(
    connection: JmsConnection, session: JmsSession, queue: str, selector: str, wanted: list[int]
) -> None:
    consumer = connection.session().consumer(queue, selector=selector)
    bright = {"colour": "red", "size": 0, "quoted": "it's"}
    session.send(queue, "0", properties=bright)
    session.send(queue, "1", properties={"colour": "green", "size": 1, "weight": 1.5}, correlation="c-1")
    session.send(queue, "2", properties={"colour": "blue", "size": 2, "heavy": True})
    session.send(queue, "3", properties={"colour": "red", "size": {"long": 3}}, type="order")
    session.send(queue, "4", properties={"size": 4, "heavy": True}, priority=7)
    found = [int(consumer.receive().body) for _ in wanted]
    assert found == wanted
    rest = connection.session().consumer(queue)
    assert sorted(int(body) for body in rest.bodies(5 - len(wanted))) == sorted(set(range(5)) - set(wanted))


def test_what_one_consumer_does_not_want_another_gets(
    connection: JmsConnection, session: JmsSession, queue: str
) -> None:
    red = connection.session().consumer(queue, selector="colour = 'red'")
    blue = connection.session().consumer(queue, selector="colour = 'blue'")
    for number in range(6):
        session.send(queue, str(number), properties={"colour": ["red", "blue", "green"][number % 3]})
    assert (red.bodies(2), blue.bodies(2)) == (["0", "3"], ["1", "4"])
    assert [message.body for message in session.browse(queue)] == ["2", "5"]


@pytest.mark.parametrize("selector", ["colour = ", "(a = 1", "a LIKE 5", "a = 1 AND", "a BETWEEN 1", "a IN ()"])
def test_a_wrong_selector_is_refused(connection: JmsConnection, queue: str, selector: str) -> None:
    with pytest.raises(JmsError) as raised:
        connection.session().consumer(queue, selector=selector)
    assert raised.value.kind == "InvalidSelectorException"


def group(name: str, sequence: int | None = None) -> dict[str, object]:
    return {"JMSXGroupID": name} | ({} if sequence is None else {"JMSXGroupSeq": sequence})


def test_a_group_stays_with_its_consumer(connection: JmsConnection, session: JmsSession, queue: str) -> None:
    listeners = [connection.session().listener(queue) for _ in range(2)]
    for number in range(40):
        session.send(queue, str(number), properties=group(f"g{number % 4}"))
    while sum(len(listener.heard(0)) for listener in listeners) < 40:
        pass
    owners: dict[str, set[int]] = {}
    for place, listener in enumerate(listeners):
        for message in listener.heard(0):
            owners.setdefault(message["group"], set()).add(place)
    assert all(len(places) == 1 for places in owners.values()), owners
    assert {place for places in owners.values() for place in places} == {0, 1}, "groups are spread"


def test_a_group_moves_when_its_consumer_goes(connection: JmsConnection, session: JmsSession, queue: str) -> None:
    first = connection.session().consumer(queue)
    session.send(queue, "a", properties=group("g"))
    message = first.receive()
    assert (message.body, message["group"], message["isFirstOfGroup"]) == ("a", "g", True)
    second = connection.session().consumer(queue)
    session.send(queue, "b", properties=group("g"))
    message = first.receive()
    assert (message.body, message["isFirstOfGroup"]) == ("b", False)
    assert second.take() is None
    first.close()
    session.send(queue, "c", properties=group("g"))
    moved = second.receive()
    assert (moved.body, moved["isFirstOfGroup"]) == ("c", True)


def test_a_group_that_is_closed_begins_anew(connection: JmsConnection, session: JmsSession, queue: str) -> None:
    consumer = connection.session().consumer(queue)
    session.send(queue, "a", properties=group("g", 1))
    session.send(queue, "end", properties=group("g", -1))
    session.send(queue, "b", properties=group("g", 1))
    firsts = [consumer.receive()["isFirstOfGroup"] for _ in range(3)]
    assert firsts == [True, False, True]


def test_a_browser_sees_all_in_order_and_takes_nothing(session: JmsSession, queue: str) -> None:
    bodies = [str(number) for number in range(300)]
    ids = session.send(queue, *bodies)
    for _ in range(2):
        seen = session.browse(queue)
        assert [(message["id"], message.body) for message in seen] == list(zip(ids, bodies, strict=True))
    assert session.consumer(queue).bodies(300) == bodies


@pytest.mark.parametrize("prefetch", [0, 1, 7])
def test_a_browser_with_a_small_prefetch_sees_all(connect: Connect, queue: str, prefetch: int) -> None:
    connection = connect(f"jms.prefetchPolicy.queueBrowserPrefetch={prefetch}")
    session = connection.session()
    session.send(queue, *map(str, range(50)))
    assert [message.body for message in session.browse(queue)] == [str(n) for n in range(50)]


def test_a_browser_sees_what_others_hold_and_have_not_acknowledged(
    connection: JmsConnection, session: JmsSession, queue: str
) -> None:
    session.send(queue, *"abc")
    holding = connection.session("CLIENT")
    consumer = holding.consumer(queue)
    consumer.receive().acknowledge()
    assert consumer.receive().body == "b"
    assert [message.body for message in session.browse(queue)] == ["b", "c"]


def test_a_browser_may_stop_half_way(session: JmsSession, queue: str) -> None:
    session.send(queue, *"abcd")
    assert [message.body for message in session.browse(queue, count=2)] == ["a", "b"]
    assert session.consumer(queue).bodies(4) == list("abcd")
