"""STOMP clients use what JMS clients use: selectors, browsers, temporary destinations, composites and wildcards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.broker.engine.conftest import advisor
from tests.unit.broker.engine.test_stomp import Wire


@pytest.fixture
def connect(harness: Any) -> Any:
    def make(number: int, version: str = "1.2") -> Wire:
        wire = Wire(harness, number)
        assert wire.say(f"CONNECT\naccept-version:{version}\n\n").startswith("CONNECTED\n")
        return wire

    return make


def messages(heard: str) -> list[tuple[dict[str, str], str]]:
    """Headers and body of each MESSAGE; other frames are left out."""
    found = []
    for frame in heard.split("^\n"):
        head, _, body = frame.lstrip("\n").partition("\n\n")
        command, *lines = head.split("\n")
        if command == "MESSAGE":
            pairs = (line.split(":", 1) for line in lines)
            found.append(({name: value.replace("\\c", ":") for name, value in pairs}, body))
    return found


def errors(heard: str) -> list[str]:
    return [frame.partition("message:")[2].partition("\n")[0] for frame in heard.split("^\n") if "ERROR" in frame]


def send(destination: str, body: str = "", **headers: object) -> str:
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"SEND\ndestination:{destination}\n{lines}\n{body}"


def subscribe(destination: str, id: str = "0", **headers: object) -> str:
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"SUBSCRIBE\nid:{id}\ndestination:{destination}\n{lines}\n"


def test_a_selector_that_is_none_is_refused_and_the_id_is_free(harness: Any, connect: Any) -> None:
    wire = connect(1)
    (error,) = errors(wire.say(subscribe("/queue/a", selector="price >", receipt="r")))
    assert "elector" in error
    assert not wire.is_closed
    heard = wire.say(subscribe("/queue/a", selector="price > 1"), send("/queue/a", "x", price=2))
    harness.turn()
    assert [body for _, body in messages(heard + wire.heard())] == ["x"]


def test_nobody_else_consumes_from_a_temporary_queue(harness: Any, connect: Any) -> None:
    owner, other = connect(1), connect(2)
    owner.say(subscribe("/temp-queue/mine"))
    assert errors(other.say(subscribe(f"/remote-temp-queue/{owner.id}:1".replace(":", "\\c")))) != []


def test_one_send_goes_to_several(harness: Any, connect: Any) -> None:
    wire = connect(1)
    wire.say(subscribe("/topic/b", "t"), subscribe("/queue/a", "q"))
    wire.say(send("/queue/a,/topic/b,/queue/c", "x", persistent="true"))
    harness.turn()
    assert {headers["subscription"] for headers, _ in messages(wire.heard())} == {"t", "q"}
    assert harness.figures("c")["messages"] == 1


@pytest.mark.parametrize("pattern", ["/queue/orders.*.new", "/queue/orders.>", "/queue/orders.a.new,/queue/other"])
def test_one_subscription_takes_from_several(harness: Any, connect: Any, pattern: str) -> None:
    wire = connect(1)
    wire.say(subscribe(pattern))
    heard = wire.say(send("/queue/orders.a.new", "x"), send("/queue/elsewhere", "y"))
    harness.turn()
    assert [body for _, body in messages(heard + wire.heard())] == ["x"]


def test_an_advisory_is_told_as_json(make_harness: Any) -> None:
    harness = make_harness(advisor=advisor())
    listener, consumer = Wire(harness, 1), Wire(harness, 2)
    for wire in (listener, consumer):
        wire.say("CONNECT\naccept-version:1.2\n\n")
    listener.heard()
    for number, name in enumerate(("Queue", "Consumer.Queue.>")):
        listener.say(subscribe(f"/topic/ActiveMQ.Advisory.{name}", str(number)))
    consumer.say("SUBSCRIBE\nid:0\ndestination:/queue/a\nselector:colour = 'réd'\n\n", "UNSUBSCRIBE\nid:0\n\n")
    harness.turn()
    told = messages(listener.heard())
    assert all(headers["transformation"] == "jms-advisory-json" for headers, _ in told)
    begun, came, went = (json.loads(body) for _, body in told)
    assert begun["DestinationInfo"]["destination"] == {"@class": "ActiveMQQueue", "string": "a", "null": ""}
    assert begun["DestinationInfo"]["operationType"] == 0
    info = came["ConsumerInfo"]
    assert info["selector"] == "convert_string_expressions:colour = 'réd'"
    assert set(info) >= {
        "commandId", "responseRequired", "consumerId", "destination", "prefetchSize", "maximumPendingMessageLimit",
        "browser", "dispatchAsync", "noLocal", "exclusive", "retroactive", "priority", "optimizedAcknowledge",
        "noRangeAcks",
    }  # fmt: skip
    assert set(info["consumerId"]) == {"connectionId", "sessionId", "value"}
    assert went["RemoveInfo"]["objectId"] == {"@class": "ConsumerId", **info["consumerId"]}


def test_who_asks_for_an_advisory_in_another_form_gets_its_properties_alone(make_harness: Any) -> None:
    harness = make_harness(advisor=advisor())
    listener, consumer = Wire(harness, 1), Wire(harness, 2)
    for wire in (listener, consumer):
        wire.say("CONNECT\naccept-version:1.2\n\n")
    listener.heard()
    listener.say("SUBSCRIBE\nid:0\ndestination:/topic/ActiveMQ.Advisory.Queue\ntransformation:jms-advisory-xml\n\n")
    consumer.say(subscribe("/queue/a"))
    harness.turn()
    ((headers, body),) = messages(listener.heard())
    assert body == ""
    assert headers["originBrokerName"] == "b"
