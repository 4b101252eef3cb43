"""QoS 2 (MQTT 5.0, 4.3.3): packet ids, the state of each exchange, and the records that keep it. Pure.

    direction          step                          in memory    record of a stored session
    from the client    the message is stored         Exchange     INCOMING
    to the client      PUBLISH is sent               SENT         OUTGOING, or OWN with the message in it
                       PUBREC came                   RECEIVED
                       PUBREL is sent                RELEASED     RELEASED
    either             PUBCOMP                       none         none

``publish`` and ``deliver`` take the steps. Packet ids of QoS 1 to the client are here, too: they are of one kind.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from tandemmq.broker.protocols.mqtt.messages import QOS, qos_of
from tandemmq.broker.protocols.mqtt.session_records import Record, RecordUnreadable, json_body
from tandemmq.broker.protocols.mqtt.stored_session import Position, Subscription
from tandemmq.broker.protocols.mqtt.topics import destination_of, topic_of
from tandemmq.store.records.message import Message

PACKET_ID_MAX: Final = 0xFFFF


@dataclass(slots=True, eq=False, repr=False)
class OutgoingRecord:
    """``message_id`` of the subscription ``topic_filter`` is sent as ``packet_id``. "": a retained message, which
    ``retained_in`` returns; a former version did not store which. ``expiration``: milliseconds since 1970; 0: never."""

    packet_id: int
    topic_filter: str
    message_id: str
    expiration: int = 0

    def encode(self) -> bytes:
        fields = [self.packet_id, self.topic_filter, self.message_id, self.expiration]
        return json_body(fields)

    @staticmethod
    def decode(body: bytes) -> OutgoingRecord:
        """Decode a record. Raises RecordUnreadable."""
        try:
            packet_id, topic_filter, message_id, expiration = json.loads(body)
            return OutgoingRecord(_checked(packet_id), str(topic_filter), str(message_id), int(expiration))
        except (ValueError, TypeError) as error:
            raise RecordUnreadable(f"outgoing: {error}") from error


class RetainedRef(NamedTuple):
    """Message ``message_id`` of the queue of retained messages, as it is sent: the part of an OUTGOING record beside
    its body. Former versions read only the body."""

    topic: str
    message_id: str
    qos: int

    def put(self, record: Message) -> None:
        record.original_destination = destination_of(self.topic)
        record.correlation_id = self.message_id
        record.properties = {QOS: self.qos}


def retained_in(record: Message) -> RetainedRef | None:
    """Return the retained message in an OUTGOING record; None: the record has none."""
    topic, message_id = record.original_destination, record.correlation_id
    if topic is None or message_id is None:
        return None
    return RetainedRef(topic_of(topic.name), message_id, qos_of(record))


def packet_id_of(body: bytes) -> int:
    """Return the packet id of an INCOMING or RELEASED record. Raises RecordUnreadable."""
    try:
        return _checked(int(body))
    except ValueError as error:
        raise RecordUnreadable(f"packet id: {error}") from error


def _checked(packet_id: int) -> int:
    if not 0 < packet_id <= PACKET_ID_MAX:
        raise ValueError(f"{packet_id} is no packet id")
    return packet_id


class Exchange:
    """Packet id of QoS 2 whose PUBREL did not end yet. ``is_counted``: against the Receive Maximum, on this
    connection."""

    __slots__ = ("is_counted", "is_releasing", "is_stored", "record")

    def __init__(self, record: Record | None, *, is_counted: bool, is_stored: bool) -> None:
        self.record = record
        self.is_counted = is_counted
        self.is_stored = is_stored
        self.is_releasing = False


class Delivery:
    """Message for the client, as it will be written. ``subscription_id`` and ``tag`` acknowledge it to the engine;
    ``tag`` 0: there is nothing to acknowledge. ``position``: of a retained one, for a subscription that began; it moves
    when the message is sent."""

    __slots__ = (
        "is_dup",
        "is_retain",
        "message",
        "payload",
        "position",
        "qos",
        "subscription",
        "subscription_id",
        "tag",
        "topic",
    )

    def __init__(
        self,
        subscription: Subscription,
        subscription_id: str,
        tag: int,
        message: Message,
        topic: str,
        payload: bytes,
        qos: int,
        is_retain: bool,
        is_dup: bool,
        position: Position | None,
    ) -> None:
        self.subscription = subscription
        self.subscription_id = subscription_id
        self.tag = tag
        self.message = message
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.is_retain = is_retain
        self.is_dup = is_dup
        self.position = position


class Phase(Enum):
    """State of a message of QoS 1 or 2."""

    STORING = auto()  # of a bridge: its packet id is being stored, and nothing was sent
    SENT = auto()
    RECEIVED = auto()  # PUBREC came, which is to be kept before PUBREL is sent
    RELEASED = auto()  # PUBREL was sent


class Flight:
    """Packet id in use. ``record``: what is kept of it, in a stored session; ``delivery`` None: the message is the
    client's."""

    __slots__ = ("delivery", "phase", "record")

    def __init__(self, delivery: Delivery | None, phase: Phase) -> None:
        self.delivery = delivery
        self.phase = phase
        self.record: Record | None = None


class Given:
    """Packet id that a message had before its client came back. ``record``: what is kept of it; None: it has QoS 1, and
    nothing is. ``expiration``: of the message; 0: never. ``message``: the message itself, if the record holds it;
    ``topic``: of a retained message, which is the one that its topic has, or is gone. Any other comes from its
    subscription."""

    __slots__ = ("expiration", "message", "packet_id", "qos", "record", "topic")

    def __init__(
        self,
        packet_id: int,
        qos: int,
        expiration: int,
        record: Record | None,
        message: Message | None = None,
        topic: str | None = None,
    ) -> None:
        self.packet_id = packet_id
        self.qos = qos
        self.expiration = expiration
        self.record = record
        self.message = message
        self.topic = topic


class Outgoing:
    """Packet ids of one connection, from 1 to ``last``. ``limit``: so many may be in use, the client's Receive
    Maximum."""

    def __init__(self, limit: int, last: int = PACKET_ID_MAX) -> None:
        self.limit = limit
        self._max = last
        self.flights: dict[int, Flight] = {}
        # By filter and id of the message, which comes again.
        self.given: dict[tuple[str, str], Given] = {}
        self._reserved: set[int] = set()
        self._last = 0

    @property
    def has_room(self) -> bool:
        count = len(self.flights)
        # prove: room-for-a-free-id " and count + len(self._reserved) < self._max"
        return count < self.limit and count + len(self._reserved) < self._max

    def next_id(self) -> int:
        """Return a packet id that is free, while there is room."""
        number = self._last
        while True:
            number = number % self._max + 1
            # prove: id-of-another-is-not-given " and number not in self._reserved"
            if number not in self.flights and number not in self._reserved:
                self._last = number
                return number

    def reserve(self, name: tuple[str, str], given: Given) -> Given | None:
        """Reserve the packet id that the message had. Return the one that is reserved for the same message already, and
        so counts no more."""
        former = self.given.get(name)
        if former is not None:
            self._reserved.discard(former.packet_id)
        self.given[name] = given
        self._reserved.add(given.packet_id)
        return former

    def remember(self, name: tuple[str, str], packet_id: int) -> None:
        """Reserve the packet id that the message had, with QoS 1, unless another message has it by now."""
        if packet_id not in self.flights and packet_id not in self._reserved and name not in self.given:
            self.reserve(name, Given(packet_id, 1, 0, None))

    def take(self, name: tuple[str, str]) -> Given | None:
        """Return the packet id that the message had, and free it."""
        given = self.given.pop(name, None) if self.given else None
        if given is not None:
            self._reserved.discard(given.packet_id)
        return given
