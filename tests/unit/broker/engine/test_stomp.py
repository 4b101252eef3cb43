"""The real STOMP session on the engine: bytes in, bytes out. STOMP clients use what JMS clients use: selectors,
temporary destinations, composites, wildcards and advisories."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandemmq.broker.core.memory import Holder
from tandemmq.broker.protocols.stomp.session import StompSession
from tests.unit.broker.engine.conftest import advisor


class Wire:
    """A connection whose bytes stay in memory; as the transport, it hands over all commands of one piece of input."""

    def __init__(self, harness: Any, number: int) -> None:
        self.id = f"ID:test-1-{number}"
        self.peer = "test"
        self.client: Any = None
        self.certificate = None
        self.session = StompSession(self.id, lambda: harness.now, secret=lambda: "secret")
        self.holder = Holder(harness.engine.memory)
        self.is_writable = True
        self.is_held = False
        self.is_closed = False
        self.engine = harness.engine
        self._harness = harness
        self.engine.opened(self)

    def connect(self, client_id: str | None = None) -> Wire:
        header = "" if client_id is None else f"client-id:{client_id}\n"
        assert self.say(f"CONNECT\naccept-version:1.2\n{header}\n").startswith("CONNECTED\nversion:1.2\n")
        return self

    def touch(self) -> None: ...

    def close(self, after_flush: bool = True) -> None:
        self.is_closed = True

    def say(self, *frames: str) -> str:
        data = "".join(frame + "\0" for frame in frames).encode()
        while True:
            for command in self.session.receive(data):
                self.engine.handle(self, command)
            if not self.session.has_more:
                return self.heard()
            data = b""

    def ask(self, *frames: str) -> str:
        """Send the frames. Return the answers until no work is left."""
        heard = self.say(*frames)
        self._harness.turn()
        return heard + self.heard()

    def heard(self) -> str:
        return self.session.take().decode().replace("\0", "^")


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


def test_an_acknowledgement_and_the_end_of_its_subscription_may_come_together(harness: Any) -> None:
    wire = Wire(harness, 1).connect()
    wire.say("SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client-individual\nactivemq.prefetchSize:1\n\n")
    heard = wire.ask(*(send("/queue/a", body, persistent="true") for body in ("one", "two")))
    ((headers, body),) = messages(heard)
    assert body == "one"
    wire.ask(f"ACK\nid:{headers['ack']}\n\n", "UNSUBSCRIBE\nid:0\nreceipt:bye\n\n")
    assert (harness.stored(), harness.figures("a")["messages"], harness.figures("a")["unacknowledged"]) == (1, 1, 0)


def test_an_acknowledgement_may_name_the_message_if_that_is_one_delivery(harness: Any) -> None:
    wire = Wire(harness, 1).connect()
    for id, to in (("0", "/queue/a"), ("1", "/topic/b"), ("2", "/topic/b")):
        wire.say(f"SUBSCRIBE\nid:{id}\ndestination:{to}\nack:client-individual\n\n")

    def ids(heard: str) -> list[str]:
        return [headers["message-id"].replace(":", "\\c") for headers, _ in messages(heard)]

    (id,) = ids(wire.ask(send("/queue/a", "one", persistent="true")))
    twice, _ = ids(wire.ask(send("/topic/b", "two")))
    (refused,) = errors(wire.ask(f"ACK\nid:{twice}\nreceipt:r\n\n"))
    assert "Unexpected ACK" in refused
    assert not wire.is_closed
    assert errors(wire.ask(f"ACK\nid:{twice}\nsubscription:2\n\n")) == []
    assert len(errors(wire.ask(f"ACK\nid:{twice}\nsubscription:2\n\n"))) == 1, "not that of 1, which is left"
    assert errors(wire.ask(f"ACK\nid:{twice}\n\n")) == []
    assert "receipt-id:r" in wire.ask("BEGIN\ntransaction:t\n\n", f"ACK\nid:{id}\ntransaction:t\nreceipt:r\n\n")
    assert errors(wire.ask(f"ACK\nid:{id}\ntransaction:t\n\n")) == [], "again, as by the header ack"
    wire.ask("ABORT\ntransaction:t\n\n")
    assert harness.figures("a")["unacknowledged"] == 1
    assert "receipt-id:q" in wire.ask(f"ACK\nid:{id}\nreceipt:q\n\n")
    assert (harness.stored(), harness.figures("a")["messages"]) == (0, 0)
    again = wire.ask(f"ACK\nid:{id}\n\n")
    assert "header ack of the MESSAGE" in again
    assert "names 0" in again
    (id,) = ids(wire.ask(send("/queue/a", "three", persistent="true")))
    wire.ask(f"NACK\nid:{id}\n\n")
    assert harness.figures("a")["messages"] == 0


def test_a_selector_that_is_none_is_refused_and_the_id_is_free(harness: Any) -> None:
    wire = Wire(harness, 1).connect()
    (error,) = errors(wire.say(subscribe("/queue/a", selector="price >", receipt="r")))
    assert "elector" in error
    assert not wire.is_closed
    heard = wire.ask(subscribe("/queue/a", selector="price > 1"), send("/queue/a", "x", price=2))
    assert [body for _, body in messages(heard)] == ["x"]


def test_another_connection_cannot_consume_from_a_temporary_queue(harness: Any) -> None:
    owner, other = Wire(harness, 1).connect(), Wire(harness, 2).connect()
    owner.say(subscribe("/temp-queue/mine"))
    assert errors(other.say(subscribe(f"/remote-temp-queue/{owner.id}:1".replace(":", "\\c")))) != []


@pytest.mark.parametrize("pattern", ["/queue/orders.*.new", "/queue/orders.>", "/queue/orders.a.new,/queue/other"])
def test_one_subscription_takes_from_several(harness: Any, pattern: str) -> None:
    wire = Wire(harness, 1).connect()
    wire.say(subscribe(pattern))
    heard = wire.ask(send("/queue/orders.a.new", "x"), send("/queue/elsewhere", "y"))
    assert [body for _, body in messages(heard)] == ["x"]


def test_an_advisory_is_told_as_json(make_harness: Any) -> None:
    harness = make_harness(advisor=advisor())
    listener, consumer = Wire(harness, 1).connect(), Wire(harness, 2).connect()
    for number, name in enumerate(("Queue", "Consumer.Queue.>")):
        listener.say(subscribe(f"/topic/ActiveMQ.Advisory.{name}", str(number)))
    consumer.ask("SUBSCRIBE\nid:0\ndestination:/queue/a\nselector:colour = 'réd'\n\n", "UNSUBSCRIBE\nid:0\n\n")
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


def test_an_advisory_in_an_unknown_form_has_only_its_properties(make_harness: Any) -> None:
    harness = make_harness(advisor=advisor())
    listener, consumer = Wire(harness, 1).connect(), Wire(harness, 2).connect()
    listener.say("SUBSCRIBE\nid:0\ndestination:/topic/ActiveMQ.Advisory.Queue\ntransformation:jms-advisory-xml\n\n")
    consumer.ask(subscribe("/queue/a"))
    ((headers, body),) = messages(listener.heard())
    assert body == ""
    assert headers["originBrokerName"] == "b"
