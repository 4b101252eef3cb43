"""The other end of an OpenWire session, for tests: it sends commands and reads answers, in any version."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tandemmq.broker.core.commands import AckMode, Command
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED, WireFormat
from tandemmq.broker.protocols.openwire.conversation import Pending
from tandemmq.broker.protocols.openwire.frames import FrameCutter
from tandemmq.broker.protocols.openwire.session import OpenWireSession
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId, MessageId, ProducerId, SessionId
from tandemmq.broker.protocols.openwire.wireformat import Greeting, our_info
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tests.support.protocols.commands import one

NOW = 1_700_000_000_000
CONNECTION = "ID:host-5001-1700000000000-1:1"
QUEUE = Destination(DestinationKind.QUEUE, "TEST.Q")
TOPIC = Destination(DestinationKind.TOPIC, "TEST.T")
PRODUCER = ProducerId(CONNECTION, 1, 1)
CONSUMER = ConsumerId(CONNECTION, 1, 1)
LOCAL = LocalTransactionId(CONNECTION, 7)
XA = XaTransactionId(257, b"\1\2\3", b"\xff")
GREETING = Greeting("b1", "ID:broker-1", "tcp://b1:61616", frame_bytes_max=1 << 20)


def info(
    version: int = 12,
    *,
    inactivity_ms: int = 30_000,
    initial_delay_ms: int = 10_000,
    max_frame_size: int = (1 << 63) - 1,
) -> schema.WireFormatInfo:
    """Return the first command of a client."""
    return our_info(
        max_frame_size=max_frame_size,
        provider_version="5.17.2",
        version=version,
        inactivity_ms=inactivity_ms,
        initial_delay_ms=initial_delay_ms,
    )


class Peer:
    """A client and its session."""

    def __init__(self, greeting: Greeting = GREETING, sequences: Iterator[int] | None = None) -> None:
        self.session = OpenWireSession("c-1", lambda: NOW, sequences or itertools.count(100), greeting)
        self.wire: WireFormat = STORED
        self._cutter = FrameCutter(2 << 20)

    # ---- to the session

    def say(self, *commands: schema.Command) -> list[Command]:
        """Pass commands of the client to the session; return the commands of the session to the broker."""
        return list(self.session.receive(b"".join(map(self.wire.encode, commands))))

    def shake_hands(self, version: int = 12, **options: int) -> None:
        """Exchange the WireFormatInfo of both sides, and read the broker's commands."""
        assert self.say(info(version, **options)) == []
        self.wire = WireFormat(min(version, 12))
        self.hear_all()

    def connect(self, version: int = 12, *, failover_reconnect: bool = False, **options: int) -> None:
        """Connect, with session 1."""
        self.shake_hands(version, **options)
        (command,) = self.say(
            schema.ConnectionInfo(1, True, ConnectionId(CONNECTION), "client-1", failover_reconnect=failover_reconnect),
            schema.SessionInfo(2, False, SessionId(CONNECTION, 1)),
        )
        self.session.connected(command, "c-1")  # type: ignore[arg-type]  # a Connect
        self.hear_all()

    def open(self, *, window: int = 0, destination: Destination = QUEUE, **fields: object) -> None:
        """Open a producer and a consumer of ``destination``, which the broker accepts."""
        consumer = schema.ConsumerInfo(4, True, CONSUMER, destination=destination, prefetch_size=1000)
        for name, value in fields.items():
            setattr(consumer, name, value)
        for command in self.say(schema.ProducerInfo(3, True, PRODUCER, destination, window_size=window), consumer):
            self.session.receipt(command.receipt)  # type: ignore[union-attr]  # both have one
        self.hear_all()

    # ---- from the session

    def hear_all(self) -> list[schema.Command]:
        """Return the commands of the broker since the last call."""
        data = self.session.take()
        assert self.session.pending_bytes == 0
        self._cutter.feed(data)
        heard = []
        while (frame := self._cutter.next_frame()) is not None:
            # A WireFormatInfo is the same in all versions.
            heard.append(self.wire.decode(frame))
        return heard

    def hear(self, kind: type = schema.Command) -> Any:
        """Return the only command of the broker since the last call."""
        return one(kind, self.hear_all())

    def deliver(self, tag: int, message: Message, redeliveries: int = 0) -> Callable[[], None] | None:
        return self.session.deliver("1:1", tag, message, redeliveries, AckMode.RANGE)


def connected() -> Peer:
    peer = Peer()
    peer.connect()
    return peer


def opened(**options: Any) -> Peer:
    peer = connected()
    peer.open(**options)
    return peer


def text(
    sequence: int,
    body: bytes = b"hello",
    *,
    destination: Destination = QUEUE,
    command_id: int = 9,
    is_awaited: bool = False,
    transaction: LocalTransactionId | XaTransactionId | None = None,
    producer: ProducerId = PRODUCER,
) -> schema.ActiveMQTextMessage:
    """Return a text message as a client sends it."""
    return schema.ActiveMQTextMessage(
        command_id,
        is_awaited,
        producer_id=producer,
        destination=destination,
        transaction_id=transaction,
        message_id=MessageId(None, producer, sequence, 0),
        persistent=True,
        priority=4,
        timestamp=NOW,
        content=len(body).to_bytes(4, "big") + body,
    )


def sent(peer: Peer, *sequences: int) -> list[Message]:
    """Return messages as the broker has them after ``peer`` has sent them."""
    commands = peer.say(*(text(sequence) for sequence in sequences))
    return [command.message for command in commands]  # type: ignore[union-attr]  # each is a Send


def id_of(message: Message) -> MessageId:
    """Return a message's id as its consumer sends it in an acknowledgement."""
    return MessageId(None, PRODUCER, int(message.message_id.rpartition(":")[2]), message.broker_sequence)


def ack(
    ack_type: int,
    first: Message | None,
    last: Message,
    count: int,
    *,
    command_id: int = 40,
    is_awaited: bool = False,
    transaction: LocalTransactionId | XaTransactionId | None = None,
) -> schema.MessageAck:
    return schema.MessageAck(
        command_id,
        is_awaited,
        destination=last.destination,
        transaction_id=transaction,
        consumer_id=CONSUMER,
        ack_type=ack_type,
        first_message_id=None if first is None else id_of(first),
        last_message_id=id_of(last),
        message_count=count,
    )


def command_id_of(receipt: object) -> object:
    """Return the id of the command that waits for ``receipt``."""
    return receipt.command_id if isinstance(receipt, Pending) else receipt
