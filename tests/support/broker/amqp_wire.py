"""AMQP clients on an engine whose turns are hand-driven: the real session, bytes in and bytes out."""

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


class Heard(NamedTuple):
    """A frame of the broker; ``performative`` None: it is empty."""

    channel: int
    performative: Composite | None
    payload: bytes


def value(body: Any) -> bytes:
    """A message with one value, and nothing else."""
    return section(0x77, body)


def section(code: int, content: Any) -> bytes:
    return b"\0" + encode(ULong(code)) + encode(content)


def header(**fields: Any) -> bytes:
    return write_composite(schema.Header(**fields))


def selector(text: str) -> dict[Any, Any]:
    return {Symbol("jms-selector"): Described(Symbol("apache.org:selector-filter:string"), text)}


class AmqpWire(Wire):
    """An AMQP client, in the words of the specification."""

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

    def said(self) -> bytes:
        """All bytes since the last time."""
        self._harness.turn()
        return self.session.take()

    def heard(self) -> list[Heard]:
        """All frames since the last time."""
        self.cutter.feed(self.said())
        found = []
        while (frame := self.cutter.next_frame()) is not None:
            reader = Reader(frame.body)
            performative = read_composite(reader) if frame.body else None
            found.append(Heard(frame.channel, performative, frame.body[reader.at :]))
        return found

    def say(self, *performatives: Composite, channel: int = 0, payload: bytes = b"", type: int = 0) -> list[Heard]:
        """Say them at once, and what is heard then."""
        self.receive(b"".join(frame_of(channel, write_composite(each) + payload, type) for each in performatives))
        return self.heard()

    def all_of(self, kind: type[Kind]) -> list[Kind]:
        """Return the performatives of one kind that came since the last call."""
        return [each.performative for each in self.heard() if isinstance(each.performative, kind)]

    # ---- a connection

    def log_in(self, mechanism: str = "ANONYMOUS", response: bytes | None = None) -> list[Heard]:
        self.receive(frames.SASL)
        said = self.said()
        assert said[:8] == frames.SASL
        self.cutter.feed(said[8:])
        mechanisms = self.heard()[0].performative
        assert isinstance(mechanisms, schema.SaslMechanisms)
        return self.say(schema.SaslInit(mechanism, response), type=1)

    def connect(self, container: str = "me", **fields: Any) -> schema.Open:
        outcome = self.log_in()[0].performative
        assert outcome == schema.SaslOutcome(0)
        return self.open(container, **fields)[0]

    def open(self, container: str = "me", **fields: Any) -> list[Any]:
        self.receive(frames.AMQP)
        said = self.said()
        assert said == frames.AMQP
        return [each.performative for each in self.say(schema.Open(container, **fields))]

    def begin(self, channel: int = 0, *, window: int = 1 << 20, next_id: int = 0) -> schema.Begin:
        begin = schema.Begin(next_outgoing_id=next_id, incoming_window=window, outgoing_window=100)
        (found,) = self.say(begin, channel=channel)
        assert isinstance(found.performative, schema.Begin)
        return found.performative

    # ---- links

    def sender(self, address: Any = "orders", *, handle: int = 0, channel: int = 0, **fields: Any) -> list[Any]:
        """Attach a link that sends; return the answers."""
        attach = schema.Attach(
            name=fields.pop("name", f"s{handle}.{channel}"),
            handle=handle,
            role=False,
            source=schema.Source(),
            target=fields.pop("target", schema.Target(address=address)),
            initial_delivery_count=fields.pop("initial_delivery_count", 0),
            **fields,
        )
        return [each.performative for each in self.say(attach, channel=channel)]

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
        """Attach a link that receives, and grant it credit; return the answers."""
        attach = schema.Attach(
            name=name or f"r{handle}.{channel}",
            rcv_settle_mode=rcv_settle_mode,
            handle=handle,
            role=True,
            snd_settle_mode=mode,
            source=schema.Source(address=address, **source),
            target=schema.Target(),
        )
        found = [each.performative for each in self.say(attach, channel=channel)]
        if credit is not None:
            found += self.flow(handle, credit, channel=channel)
        return found

    def flow(self, handle: int | None, credit: int | None, *, channel: int = 0, **fields: Any) -> list[Any]:
        """Grant credit; return what is heard then."""
        flow = schema.Flow(
            next_incoming_id=fields.pop("next_incoming_id", 0),
            incoming_window=fields.pop("window", 1 << 20),
            next_outgoing_id=0,
            outgoing_window=100,
            handle=handle,
            link_credit=credit,
            **fields,
        )
        return [each.performative for each in self.say(flow, channel=channel)]

    def send(
        self, encoded: bytes, *, handle: int = 0, channel: int = 0, settled: bool = False, **fields: Any
    ) -> list[Any]:
        """Send a message; return what is heard then."""
        id = self.next_delivery_id
        self.next_delivery_id += 1
        transfer = schema.Transfer(handle=handle, delivery_id=id, delivery_tag=b"%d" % id, settled=settled, **fields)
        return [each.performative for each in self.say(transfer, channel=channel, payload=encoded)]

    def dispose(
        self, first: int, state: Any, *, last: int | None = None, settled: bool = True, channel: int = 0
    ) -> list[Any]:
        """Give deliveries their outcome; return what is heard then."""
        disposition = schema.Disposition(role=True, first=first, last=last, settled=settled, state=state)
        return [each.performative for each in self.say(disposition, channel=channel)]


def bodies(heard: list[Heard]) -> list[Any]:
    """The values of the messages in these frames, which are whole."""
    return [body_of(each.payload) for each in heard if isinstance(each.performative, schema.Transfer)]


def body_of(encoded: bytes) -> Any:
    """The value, or the data, of a message."""
    return sections_of(encoded)[max(sections_of(encoded))]


def sections_of(encoded: bytes) -> dict[int, Any]:
    """The sections of a message by their numbers."""
    reader = Reader(encoded)
    found: dict[int, Any] = {}
    while reader.at < len(encoded):
        each = reader.value()
        assert isinstance(each, Described)
        found[int(each.descriptor)] = each.value
    return found
