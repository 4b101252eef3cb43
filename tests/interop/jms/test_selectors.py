"""Selectors of consumers, where the broker decides."""

from __future__ import annotations

import pytest

from tests.support.interop.jms.jvm import JmsError, Jvm
from tests.support.interop.jms.peers import Peer

pytestmark = [pytest.mark.service, pytest.mark.promise("selectors")]

CASES = [
    ("colour = 'red'", [0, 3]),
    ("colour <> 'red'", [1, 2]),
    ("colour IS NULL", [4]),
    ("colour IN ('red', 'blue') AND size > 1", [2, 3]),
    ("colour NOT IN ('red', 'blue')", [1]),
    ("colour LIKE '%e%'", [0, 1, 2, 3]),
    ("colour LIKE 'b_ue'", [2]),
    ("size BETWEEN 2 AND 3", [2, 3]),
    ("NOT (size > 1)", [0, 1]),
    ("size * 2 + 1 = 7", [3]),
    ("weight > 1.4 AND weight < 1.6", [1]),
    ("heavy", [2, 4]),
    ("heavy = TRUE OR size = 0", [0, 2, 4]),
    ("size = '3'", []),
    ("JMSPriority > 4", [4]),
    ("JMSType = 'order'", [3]),
    ("JMSCorrelationID = 'c-1'", [1]),
    ("JMSDeliveryMode = 'PERSISTENT' AND size < 1", [0]),
    ("nothing = 1 OR size = 2", [2]),
    ("quoted = 'it''s'", [0]),
]


@pytest.mark.parametrize(("selector", "wanted"), CASES)
def test_a_selector_chooses(jvm: Jvm, broker: Peer, name: str, selector: str, wanted: list[int]) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    consumer = connection.session().consumer(f"queue://{name}", selector=selector)
    bright = {"colour": "red", "size": 0, "quoted": "it's"}
    session.send(f"queue://{name}", "0", properties=bright)
    session.send(f"queue://{name}", "1", properties={"colour": "green", "size": 1, "weight": 1.5}, correlation="c-1")
    session.send(f"queue://{name}", "2", properties={"colour": "blue", "size": 2, "heavy": True})
    session.send(f"queue://{name}", "3", properties={"colour": "red", "size": {"long": 3}}, type="order")
    session.send(f"queue://{name}", "4", properties={"size": 4, "heavy": True}, priority=7)
    found = [int(consumer.receive().body) for _ in wanted]
    assert found == wanted
    rest = connection.session().consumer(f"queue://{name}")
    assert sorted(int(body) for body in rest.bodies(5 - len(wanted))) == sorted(set(range(5)) - set(wanted))
    connection.close()


def test_what_one_consumer_does_not_want_another_gets(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    red = connection.session().consumer(f"queue://{name}", selector="colour = 'red'")
    blue = connection.session().consumer(f"queue://{name}", selector="colour = 'blue'")
    for number in range(6):
        session.send(f"queue://{name}", str(number), properties={"colour": ["red", "blue", "green"][number % 3]})
    assert (red.bodies(2), blue.bodies(2)) == (["0", "3"], ["1", "4"])
    assert [message.body for message in session.browse(f"queue://{name}")] == ["2", "5"]
    connection.close()


def test_many_unwanted_messages_do_not_hide_the_wanted_one(jvm: Jvm, broker: Peer, name: str) -> None:
    connection = jvm.connect(broker.url())
    session = connection.session()
    session.send(f"queue://{name}", *map(str, range(150)), properties={"colour": "blue"})
    session.send(f"queue://{name}", "wanted", properties={"colour": "red"})
    assert connection.session().consumer(f"queue://{name}", selector="colour = 'red'").receive().body == "wanted"
    connection.close()


@pytest.mark.parametrize("selector", ["colour = ", "(a = 1", "a LIKE 5", "a = 1 AND", "a BETWEEN 1", "a IN ()"])
def test_a_wrong_selector_is_refused(jvm: Jvm, broker: Peer, name: str, selector: str) -> None:
    connection = jvm.connect(broker.url())
    with pytest.raises(JmsError) as raised:
        connection.session().consumer(f"queue://{name}", selector=selector)
    assert raised.value.kind == "InvalidSelectorException"
    connection.close()
