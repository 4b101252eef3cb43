"""The real STOMP session on the engine: bytes in, bytes out."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.broker.core.memory import Holder
from tandemmq.broker.protocols.stomp.session import StompSession


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
        self.engine.opened(self)

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

    def heard(self) -> str:
        return self.session.take().decode().replace("\0", "^")


@pytest.fixture
def wire(harness):
    wire = Wire(harness, 1)
    assert wire.say("CONNECT\naccept-version:1.2\nclient-id:me\n\n").startswith("CONNECTED\nversion:1.2\n")
    return wire


SUBSCRIBE = "SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client-individual\nactivemq.prefetchSize:1\n\n"


def send(body: str) -> str:
    return f"SEND\ndestination:/queue/a\npersistent:true\nreceipt:{body}\n\n{body}"


def test_an_acknowledgement_and_the_end_of_its_subscription_may_come_together(harness, wire):
    wire.say(SUBSCRIBE, send("one"), send("two"))
    harness.turn()
    heard = wire.heard()
    ack = next(line for line in heard.splitlines() if line.startswith("ack:")).replace("ack:", "id:")

    wire.say(f"ACK\n{ack}\n\n", "UNSUBSCRIBE\nid:0\nreceipt:bye\n\n")
    harness.turn()

    assert harness.stored() == 1
    assert harness.figures("a")["messages"] == 1
    assert harness.figures("a")["unacknowledged"] == 0


def test_a_send_and_the_end_of_an_auto_subscription_may_come_together(harness, wire):
    wire.say("SUBSCRIBE\nid:0\ndestination:/queue/a\nack:auto\n\n")

    heard = wire.say("SEND\ndestination:/queue/a\n\nx", "UNSUBSCRIBE\nid:0\n\n")

    # Either it was delivered before the end, or it waits for others.
    assert ("MESSAGE" in heard) != (harness.figures("a")["messages"] == 1)
