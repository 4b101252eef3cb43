"""Records of a stored session: messages of the queue that is its own (docs/formats/mqtt-sessions.md). Pure.

The kind of a record is its message's type; its body is JSON, for the two that come with each message of QoS 2 a packet
id and no more than is needed.
"""

from __future__ import annotations

import base64
import json
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from tandemmq.broker.core.names import MQTT_SESSION
from tandemmq.broker.protocols.mqtt.fields import Reader
from tandemmq.broker.protocols.mqtt.messages import QOS, qos_of
from tandemmq.broker.protocols.mqtt.packets import Filter, Will
from tandemmq.broker.protocols.mqtt.properties import OF_WILL, decode, encode
from tandemmq.broker.protocols.mqtt.reasons import MqttError
from tandemmq.broker.protocols.mqtt.topics import destination_of, topic_of
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message

#: A session that never ends by itself (MQTT 5.0, 3.1.2.11.2).
NEVER: Final = 0xFFFFFFFF
PACKET_ID_MAX: Final = 0xFFFF
# json.dumps would make an encoder for each record.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Kind(StrEnum):
    MARK = "mark"  # sent to find the end of what is there; has no content
    SESSION = "session"
    SUBSCRIPTION = "sub"
    INCOMING = "in"  # the packet id of a message of QoS 2 that was stored, and whose PUBREL has not come
    OUTGOING = "out"  # the packet id with which a message of QoS 2 is sent
    OWN = "own"  # likewise, and the message itself: of a shared subscription, whose other members do not get it
    SUBSCRIBED = "subscribed"  # of a bridge: what it has begun (broker.bridges.flow)
    RELEASED = "rel"  # the packet id of one for which PUBREL was sent, and no PUBCOMP came


class RecordUnreadable(Exception):
    """Record that no version of this broker wrote. The text says what is wrong."""


def queue_of(client_id: str) -> Destination:
    """Return the queue of the session of a client id."""
    return Destination(DestinationKind.QUEUE, MQTT_SESSION + quote(client_id, safe=""))


def client_id_of(queue: str) -> str:
    """Return the client id of a queue's name."""
    return unquote(queue.removeprefix(MQTT_SESSION))


@dataclass(slots=True, eq=False, repr=False)
class SessionRecord:
    """Record of a session, one for each. ``expiry``: seconds after its client left, NEVER: for ever. ``user`` and
    ``groups``: its owner. ``left_at``: milliseconds since 1970 at which its client left; 0: it is there, or was so a
    moment ago."""

    expiry: int
    user: str | None
    groups: frozenset[str]
    _: KW_ONLY
    will: Will | None = None
    left_at: int = 0

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"expiry": self.expiry, "user": self.user, "groups": sorted(self.groups)}
        if self.left_at:
            fields["left_at"] = self.left_at
        will = self.will
        if will is not None:
            fields["will"] = {
                "topic": will.topic,
                "payload": base64.b64encode(will.payload).decode(),
                "qos": will.qos,
                "retain": will.retain,
                "properties": base64.b64encode(encode(will.properties)).decode(),
            }
        return _json(fields)

    @staticmethod
    def decode(body: bytes) -> SessionRecord:
        """Decode a record. Raises RecordUnreadable."""
        try:
            fields = json.loads(body)
            will = fields.get("will")
            carried = b"" if will is None else base64.b64decode(will["properties"])
            return SessionRecord(
                int(fields["expiry"]),
                fields["user"],
                frozenset(fields["groups"]),
                left_at=int(fields.get("left_at", 0)),
                will=None
                if will is None
                else Will(
                    will["topic"],
                    base64.b64decode(will["payload"]),
                    will["qos"],
                    will["retain"],
                    decode(Reader(carried, 0, len(carried)), OF_WILL),
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError, MqttError) as error:
            raise RecordUnreadable(f"session: {error}") from error


@dataclass(slots=True, eq=False, repr=False)
class SubscriptionRecord:
    """Record of a subscription, one for each topic filter. ``durable_name``: of the durable subscription that gathers
    for it; None: of QoS 0, it has none. ``owes_retained``: retained messages were to be sent, and not all were
    acknowledged; ``after`` and ``until``: which ones (outgoing.Position)."""

    filter: Filter
    durable_name: str | None
    subscription_id: int | None = None
    owes_retained: bool = False
    after: str = ""
    until: int | None = None

    def encode(self) -> bytes:
        filter = self.filter
        fields: dict[str, Any] = {
            "filter": filter.topic_filter,
            "qos": filter.qos,
            "nl": filter.no_local,
            "rap": filter.retain_as_published,
            "rh": filter.retain_handling,
            "durable": self.durable_name,
            "id": self.subscription_id,
            "retained": self.owes_retained,
        }
        if self.until is not None:
            fields |= {"after": self.after, "until": self.until}
        return _json(fields)

    @staticmethod
    def decode(body: bytes) -> SubscriptionRecord:
        """Decode a record. Raises RecordUnreadable."""
        try:
            fields = json.loads(body)
            filter = Filter(
                str(fields["filter"]), int(fields["qos"]), bool(fields["nl"]), bool(fields["rap"]), int(fields["rh"])
            )
            until = fields.get("until")
            return SubscriptionRecord(
                filter,
                fields["durable"],
                fields["id"],
                bool(fields["retained"]),
                str(fields.get("after", "")),
                None if until is None else int(until),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RecordUnreadable(f"subscription: {error}") from error


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
        return _json(fields)

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


def _json(fields: object) -> bytes:
    return _ENCODER.encode(fields).encode()


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


def record(queue: Destination, message_id: str, kind: Kind, body: bytes, now: int) -> Message:
    """Return the message that keeps the record."""
    return Message(queue, message_id, body, BodyKind.BYTES, persistent=True, timestamp=now, type=kind.value)
