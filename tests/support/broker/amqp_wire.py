"""AMQP clients in memory: the real session on an engine whose turns the test drives."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.codec import read_composite, write_composite
from tandemmq.broker.protocols.amqp.frames import FrameCutter, frame_of
from tandemmq.broker.protocols.amqp.opening import AmqpLimits
from tandemmq.broker.protocols.amqp.schema import Composite
from tandemmq.broker.protocols.amqp.session import AmqpSession
from tandemmq.broker.protocols.amqp.types import Described, Reader, Symbol, ULong, encode
from tests.support.broker.wire import Pieces, Wire

LIMITS = AmqpLimits("broker", message_bytes_max=1 << 20)
Kind = TypeVar("Kind", bound=Composite)


class BrokerFrame(NamedTuple):
    """A frame from the broker. ``performative`` None: the frame is empty."""

    channel: int
    performative: Composite | None
    payload: bytes


def value(body: Any) -> bytes:
    """Return a message with a value section only."""
    return section(0x77, body)


def section(code: int, content: Any) -> bytes:
    return b"\0" + encode(ULong(code)) + encode(content)


def header(**fields: Any) -> bytes:
    return write_composite(schema.Header(**fields))


def selector(text: str) -> dict[Any, Any]:
    return {Symbol("jms-selector"): Described(Symbol("apache.org:selector-filter:string"), text)}


class AmqpWire(Wire):
    """An AMQP client with a method for each performative."""

    session: AmqpSession

    def __init__(
        self,
        harness: Any,
        *,
        limits: AmqpLimits = LIMITS,
        pieces: Pieces = Pieces.WHOLE,
        peer: str = "test:1",
        certificate: str | None = None,
    ) -> None:
        id = harness.connection_id()
        super().__init__(
            harness,
            id,
            AmqpSession(id, lambda: harness.now, limits=limits, secret=lambda: "secret"),
            pieces=pieces,
            peer=peer,
        )
        self.certificate = certificate
        if certificate is not None:
            self.session.set_certificate(certificate)
        self.cutter = FrameCutter(1 << 30)
        self.next_delivery_id = 0

    def output(self) -> bytes:
        """Return all bytes that the broker has written since the last call."""
        self._harness.turn()
        return self.session.take()

    def replies(self) -> list[BrokerFrame]:
        """Return all frames that the broker has written since the last call."""
        self.cutter.feed(self.output())
        found = []
        while (frame := self.cutter.next_frame()) is not None:
            reader = Reader(frame.body)
            performative = read_composite(reader) if frame.body else None
            found.append(BrokerFrame(frame.channel, performative, frame.body[reader.at :]))
        return found

    def exchange(
        self, *performatives: Composite, channel: int = 0, payload: bytes = b"", type: int = 0
    ) -> list[BrokerFrame]:
        """Send performatives in one piece; return the replies."""
        self.receive(b"".join(frame_of(channel, write_composite(each) + payload, type) for each in performatives))
        return self.replies()

    def all_of(self, kind: type[Kind]) -> list[Kind]:
        """Return the replies of one kind since the last call."""
        return [each.performative for each in self.replies() if isinstance(each.performative, kind)]

    # ---- a connection

    def log_in(self, mechanism: str = "ANONYMOUS", response: bytes | None = None) -> list[BrokerFrame]:
        self.receive(frames.SASL)
        output = self.output()
        assert output[:8] == frames.SASL
        self.cutter.feed(output[8:])
        mechanisms = self.replies()[0].performative
        assert isinstance(mechanisms, schema.SaslMechanisms)
        return self.exchange(schema.SaslInit(mechanism, response), type=1)

    def connect(self, container: str = "me", **fields: Any) -> schema.Open:
        outcome = self.log_in()[0].performative
        assert outcome == schema.SaslOutcome(0)
        return self.open(container, **fields)[0]

    def open(self, container: str = "me", **fields: Any) -> list[Any]:
        self.receive(frames.AMQP)
        assert self.output() == frames.AMQP
        return [each.performative for each in self.exchange(schema.Open(container, **fields))]

    def begin(self, channel: int = 0, *, window: int = 1 << 20, next_id: int = 0) -> schema.Begin:
        begin = schema.Begin(next_outgoing_id=next_id, incoming_window=window, outgoing_window=100)
        (found,) = self.exchange(begin, channel=channel)
        assert isinstance(found.performative, schema.Begin)
        return found.performative

    # ---- links

    def sender(self, address: Any = "orders", *, handle: int = 0, channel: int = 0, **fields: Any) -> list[Any]:
        """Attach a link as sender; return the replies."""
        attach = schema.Attach(
            name=fields.pop("name", f"s{handle}.{channel}"),
            handle=handle,
            role=False,
            source=schema.Source(),
            target=fields.pop("target", schema.Target(address=address)),
            initial_delivery_count=fields.pop("initial_delivery_count", 0),
            **fields,
        )
        return [each.performative for each in self.exchange(attach, channel=channel)]

    def receiver(
        self,
        address: Any = "orders",
        *,
        handle: int = 1,
        channel: int = 0,
        credit: int | None = None,
        mode: int = 2,
        rcv_settle_mode: int = 0,
        name: str | None = None,
        **source: Any,
    ) -> list[Any]:
        """Attach a link as receiver, and grant credit; return the replies."""
        attach = schema.Attach(
            name=name or f"r{handle}.{channel}",
            rcv_settle_mode=rcv_settle_mode,
            handle=handle,
            role=True,
            snd_settle_mode=mode,
            source=schema.Source(address=address, **source),
            target=schema.Target(),
        )
        found = [each.performative for each in self.exchange(attach, channel=channel)]
        if credit is not None:
            found += self.flow(handle, credit, channel=channel)
        return found

    def flow(self, handle: int | None, credit: int | None, *, channel: int = 0, **fields: Any) -> list[Any]:
        """Grant credit; return the replies."""
        flow = schema.Flow(
            next_incoming_id=fields.pop("next_incoming_id", 0),
            incoming_window=fields.pop("window", 1 << 20),
            next_outgoing_id=0,
            outgoing_window=100,
            handle=handle,
            link_credit=credit,
            **fields,
        )
        return [each.performative for each in self.exchange(flow, channel=channel)]

    def send(
        self, encoded: bytes, *, handle: int = 0, channel: int = 0, settled: bool = False, **fields: Any
    ) -> list[Any]:
        """Send a message; return the replies."""
        id = self.next_delivery_id
        self.next_delivery_id += 1
        transfer = schema.Transfer(handle=handle, delivery_id=id, delivery_tag=b"%d" % id, settled=settled, **fields)
        return [each.performative for each in self.exchange(transfer, channel=channel, payload=encoded)]

    def dispose(
        self, first: int, state: Any, *, last: int | None = None, settled: bool = True, channel: int = 0
    ) -> list[Any]:
        """Give deliveries an outcome; return the replies."""
        disposition = schema.Disposition(role=True, first=first, last=last, settled=settled, state=state)
        return [each.performative for each in self.exchange(disposition, channel=channel)]


def bodies(replies: list[BrokerFrame]) -> list[Any]:
    """Return the bodies of the messages in these frames. Each message has one frame."""
    return [body_of(each.payload) for each in replies if isinstance(each.performative, schema.Transfer)]


def body_of(encoded: bytes) -> Any:
    """Return the value, or the data, of a message."""
    return sections_of(encoded)[max(sections_of(encoded))]


def sections_of(encoded: bytes) -> dict[int, Any]:
    """Return the sections of a message by their numbers."""
    reader = Reader(encoded)
    found: dict[int, Any] = {}
    while reader.at < len(encoded):
        each = reader.value()
        assert isinstance(each, Described)
        found[int(each.descriptor)] = each.value
    return found
