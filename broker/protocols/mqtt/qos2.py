"""QoS 2 (MQTT 5.0, 4.3.3): packet ids, the state of each exchange, and its records in a stored session. Pure.

    direction          step                          in memory    record of a stored session
    from the client    the message is stored         Exchange     INCOMING
    to the client      PUBLISH is sent               SENT         OUTGOING, or OWN with the message in it
                       PUBREC came                   RECEIVED
                       PUBREL is sent                RELEASED     RELEASED
    either             PUBCOMP                       none         none

``publish`` and ``deliver`` carry out the steps. Packet ids of QoS 1 to the client are here, too, because both QoS use
the same range of ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from tandemmq.broker.protocols.mqtt.conversation import SentIds
from tandemmq.broker.protocols.mqtt.messages import QOS, delivery_of, qos_of
from tandemmq.broker.protocols.mqtt.session_records import KeptRecords, Kind, Record, RecordUnreadable, json_body
from tandemmq.broker.protocols.mqtt.stored_session import Position, Subscription
from tandemmq.broker.protocols.mqtt.topics import destination_of, topic_of
from tandemmq.store.records.message import Message

PACKET_ID_MAX: Final = 0xFFFF


@dataclass(slots=True, eq=False, repr=False)
class OutgoingRecord:
    """Packet id of a message to the client. The message has the same packet id after a reconnect. ``message_id`` and
    ``topic_filter`` identify the message and its subscription. ``expiration``: milliseconds since 1970; 0: never.
    ``topic``: topic of a retained message; it is sent again only if it is still the retained message of that topic.
    ``message``: the message itself, in a record of kind OWN. ``record``: the stored record; None with QoS 1."""

    packet_id: int
    topic_filter: str
    message_id: str
    expiration: int = 0
    qos: int = 2
    topic: str | None = None
    message: Message | None = None
    record: Record | None = None

    @property
    def name(self) -> tuple[str, str]:
        """Key of the message: topic filter and message id, as in ``Delivery.name``."""
        return self.topic_filter, self.message_id

    def encode(self) -> bytes:
        """Return the body of the record. Former versions read only the body, and recognise a retained message by an
        empty message id."""
        message_id = self.message_id if self.topic is None else ""
        return json_body([self.packet_id, self.topic_filter, message_id, self.expiration])

    def put_retained(self, kept: Message) -> None:
        """Write topic and id of the retained message into other fields of the record ``kept`` than the body."""
        assert self.topic is not None, "of a retained message"
        kept.original_destination = destination_of(self.topic)
        kept.correlation_id = self.message_id
        kept.properties = {QOS: self.qos}

    @staticmethod
    def decode(kept: Message) -> OutgoingRecord:
        """Decode an OUTGOING or OWN record. Raises RecordUnreadable."""
        is_own = kept.type == Kind.OWN
        try:
            packet_id, topic_filter, message_id, expiration = json.loads(delivery_of(kept) if is_own else kept.body)
            found = OutgoingRecord(_checked(packet_id), str(topic_filter), str(message_id), int(expiration))
        except (ValueError, TypeError) as error:
            raise RecordUnreadable(f"outgoing: {error}") from error
        topic, retained_id = kept.original_destination, kept.correlation_id
        if is_own:
            found.message, found.message_id = kept, kept.message_id
        elif topic is not None and retained_id is not None:
            found.topic, found.message_id, found.qos = topic_of(topic.name), retained_id, qos_of(kept)
        return found


def packet_id_of(body: bytes) -> int:
    """Return the packet id of an INCOMING or RELEASED record. Raises RecordUnreadable."""
    try:
        return _checked(int(body))
    except ValueError as error:
        raise RecordUnreadable(f"packet id: {error}") from error


def _checked(packet_id: int) -> int:
    if not 0 < packet_id <= PACKET_ID_MAX:
        raise ValueError(f"{packet_id} is not a packet id")
    return packet_id


@dataclass(slots=True, eq=False, repr=False)
class Exchange:
    """State of a packet id of QoS 2 from PUBLISH to PUBCOMP. ``is_counted``: it counts for the Receive Maximum of this
    connection."""

    record: Record | None
    is_counted: bool
    is_stored: bool
    is_releasing: bool = False


class Delivery:
    """Message to the client, ready to be written. ``tag``: delivery tag of the engine; 0: nothing to acknowledge.
    ``position``: for a retained message, the position of the subscription, which moves when the message is sent."""

    __slots__ = (
        "is_dup",
        "is_retain",
        "message",
        "payload",
        "position",
        "qos",
        "subscription",
        "tag",
        "topic",
    )

    def __init__(
        self,
        subscription: Subscription,
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
        self.tag = tag
        self.message = message
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.is_retain = is_retain
        self.is_dup = is_dup
        self.position = position

    @property
    def name(self) -> tuple[str, str]:
        """Key under which its packet id is stored: topic filter and message id."""
        return self.subscription.filter.topic_filter, self.message.message_id


class Phase(Enum):
    """State of a message of QoS 1 or 2."""

    STORING = auto()  # only in a bridge: the packet id is being stored; PUBLISH is not sent
    SENT = auto()
    RECEIVED = auto()  # PUBREC arrived; PUBREL is sent when this is stored
    RELEASED = auto()  # PUBREL was sent


class Flight:
    """Packet id in use. ``record``: its record in a stored session. ``delivery``: None after PUBREC: the client has the
    message."""

    __slots__ = ("delivery", "phase", "record")

    def __init__(self, delivery: Delivery | None, phase: Phase, record: Record | None = None) -> None:
        self.delivery = delivery
        self.phase = phase
        self.record = record


class Outgoing:
    """Packet ids of the messages to one client, from 1 to ``last``. ``limit``: maximum number in use, the client's
    Receive Maximum. ``kept``: the session's records."""

    def __init__(self, kept: KeptRecords, limit: int = 1, last: int = PACKET_ID_MAX) -> None:
        self._kept = kept
        self.limit = limit
        self._max = last
        self.flights: dict[int, Flight] = {}
        # Packet ids of messages that will be delivered again, by topic filter and message id.
        self.given: dict[tuple[str, str], OutgoingRecord] = {}
        self._reserved: set[int] = set()
        self._last = 0

    @property
    def has_room(self) -> bool:
        count = len(self.flights)
        # prove: room-for-a-free-id " and count + len(self._reserved) < self._max"
        return count < self.limit and count + len(self._reserved) < self._max

    def next_id(self) -> int:
        """Return a free packet id. Call it only if ``has_room``."""
        number = self._last
        while True:
            number = number % self._max + 1
            # prove: id-of-another-is-not-given " and number not in self._reserved"
            if number not in self.flights and number not in self._reserved:
                self._last = number
                return number

    def reserve(self, given: OutgoingRecord) -> OutgoingRecord | None:
        """Reserve the packet id of a message that will be delivered again. If another id was reserved for the same
        message, return that one, which is now obsolete."""
        former = self.given.get(given.name)
        if former is not None:
            self._reserved.discard(former.packet_id)
        self.given[given.name] = given
        self._reserved.add(given.packet_id)
        return former

    def take(self, name: tuple[str, str]) -> OutgoingRecord | None:
        """Return the packet id that is reserved for the message, and end the reservation."""
        given = self.given.pop(name, None) if self.given else None
        if given is not None:
            self._reserved.discard(given.packet_id)
        return given

    def begun(self, name: tuple[str, str]) -> OutgoingRecord | None:
        """Return the packet id reserved for the message if it has a record: then the message was sent before."""
        given = self.given.get(name) if self.given else None
        return None if given is None or given.record is None else given

    # ---- a session that is resumed

    def found(self, given: OutgoingRecord, tag: int) -> None:
        """Process a record OUTGOING or OWN: the message has this packet id."""
        if not given.message_id:  # a retained message, stored by a former version; it is delivered as a new message
            self.found_released(given.packet_id, tag)
            return
        given.record = Record(tag)
        former = self.reserve(given)
        if former is not None:
            assert former.record is not None, "an OutgoingRecord from the queue has a record"
            if former.qos == 2:
                self.found_released(former.packet_id, former.record.tag)
            else:
                self._kept.is_stale(former.record.tag)

    def found_released(self, packet_id: int, tag: int) -> None:
        """Process a record RELEASED: PUBREL was sent."""
        former = self.flights.get(packet_id)
        if former is not None and former.record is not None:
            self._kept.is_stale(former.record.tag)
        self.flights[packet_id] = Flight(None, Phase.RELEASED, Record(tag))

    def forget(self) -> None:
        """Forget all that was found."""
        self.flights.clear()
        self.given.clear()
        self._reserved.clear()

    # ---- QoS 1, which has no records

    def remember(self, sent: SentIds) -> None:
        """Reserve the packet ids that messages had on the former connection, unless the ids are in use."""
        for name, packet_id in sent.items():
            if packet_id not in self.flights and packet_id not in self._reserved and name not in self.given:
                self.reserve(OutgoingRecord(packet_id, *name, qos=1))

    def sent(self) -> SentIds:
        """Return the packet ids for ``remember`` on the next connection."""
        found = {name: each.packet_id for name, each in self.given.items() if each.record is None}
        for packet_id, flight in self.flights.items():
            delivery = flight.delivery
            if delivery is not None and delivery.qos == 1 and delivery.tag and delivery.position is None:
                found[delivery.name] = packet_id
        return found
