"""Message for all parts of the broker, independent of its form in protocols and journal.

All protocols and the store use the same class, :class:`Message`. Times are milliseconds since 1970 (0: none), as in
JMS.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple


class DestinationKind(IntEnum):
    """Kind of a destination. The numbers are those of KahaDestination.DestinationType."""

    QUEUE = 0
    TOPIC = 1
    TEMP_QUEUE = 2
    TEMP_TOPIC = 3


class Destination(NamedTuple):
    """Destination of messages. ``name`` is the physical name, without ``queue://`` or ``/queue/``."""

    kind: DestinationKind
    name: str

    @property
    def is_topic(self) -> bool:
        return self.kind is DestinationKind.TOPIC or self.kind is DestinationKind.TEMP_TOPIC

    def __str__(self) -> str:
        return f"{SCHEMES[self.kind]}://{self.name}"


# Prefixes of destinations, as in ActiveMQ's qualified names.
SCHEMES = {
    DestinationKind.QUEUE: "queue",
    DestinationKind.TOPIC: "topic",
    DestinationKind.TEMP_QUEUE: "temp-queue",
    DestinationKind.TEMP_TOPIC: "temp-topic",
}


class BodyKind(IntEnum):
    """Kind of ``Message.body``. The numbers are the OpenWire data types of the message classes."""

    NONE = 23
    BYTES = 24
    MAP = 25
    OBJECT = 26
    STREAM = 27
    TEXT = 28
    BLOB = 29


# A JMS client may nest lists and maps.
PropertyValue = bool | int | float | str | bytes | list[Any] | dict[str, Any] | None


# Largest time in a message, in milliseconds.
TIME_MAX = (1 << 63) - 1

# Memory in bytes of a property in Python, without the characters of its name and value.
PROPERTY_BYTES = 140


@dataclass(slots=True, eq=False)
class SharedBody:
    """Body of ``size`` bytes that several messages share. ``holders``: number of these messages that count in memory
    (broker.core.memory)."""

    size: int
    holders: int = 0


class Message:
    """Message of any protocol.

    body             UTF-8 for TEXT, the bytes for BYTES, the unchanged OpenWire content for all other kinds
    message_id       producer key ``<connection id>:<session>:<producer>:<sequence>`` of KahaDB
    text_view        id that the client gave the message (AMQP), which JMS clients see; None: they see ``message_id``
    properties       None if there are none, which saves the memory of a dict
    raw              the OpenWire frame (loose, version 11) if the message has one
    broker_sequence  number that the broker assigned when it accepted the message (0: none); clients send it back
    sender           user that is charged for its bytes in the store (None: no user); set only by the broker
    marshalled       the encoded properties, if they are known
    holders, held_bytes, shared_body   for the memory accounting (broker.core.memory)

    After it was passed to the engine, only ``redelivery_counter`` of a message may be changed.
    """

    __slots__ = (
        "_body",
        "_properties",
        "_raw",
        "body_kind",
        "broker_sequence",
        "correlation_id",
        "destination",
        "expiration",
        "group_id",
        "group_sequence",
        "held_bytes",
        "holders",
        "marshalled",
        "message_id",
        "original_destination",
        "persistent",
        "priority",
        "redelivery_counter",
        "reply_to",
        "sender",
        "shared_body",
        "text_view",
        "timestamp",
        "type",
        "user_id",
    )

    def __init__(
        self,
        destination: Destination,
        message_id: str,
        body: bytes = b"",
        body_kind: BodyKind = BodyKind.BYTES,
        # Pass the following arguments by name. They are not keyword-only because that would be slower.
        persistent: bool = False,
        priority: int = 4,
        expiration: int = 0,
        timestamp: int = 0,
        properties: dict[str, PropertyValue] | None = None,
        correlation_id: str | None = None,
        reply_to: Destination | None = None,
        type: str | None = None,
        group_id: str | None = None,
        group_sequence: int = 0,
        user_id: str | None = None,
        redelivery_counter: int = 0,
        original_destination: Destination | None = None,
        raw: bytes | None = None,
    ) -> None:
        self.destination = destination
        self.message_id = message_id
        self._body = body
        self.body_kind = body_kind
        self.persistent = persistent
        self.priority = priority
        self.expiration = expiration
        self.timestamp = timestamp
        self._properties = properties
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.type = type
        self.group_id = group_id
        self.group_sequence = group_sequence
        self.user_id = user_id
        self.redelivery_counter = redelivery_counter
        self.original_destination = original_destination
        self._raw = raw
        self.marshalled: bytes | None = None
        self.broker_sequence = 0
        self.text_view: str | None = None
        self.holders = 0
        self.held_bytes = 0
        self.shared_body: SharedBody | None = None
        self.sender: str | None = None

    # These are properties because messages over frames decode them on access (frames.OpenedMessage).

    @property
    def body(self) -> bytes:
        return self._body

    @body.setter
    def body(self, body: bytes) -> None:
        self._body = body

    @property
    def properties(self) -> dict[str, PropertyValue] | None:
        return self._properties

    @properties.setter
    def properties(self, properties: dict[str, PropertyValue] | None) -> None:
        self._properties = properties
        self.marshalled = None

    @property
    def quick_properties(self) -> dict[str, PropertyValue] | None:
        """Properties for the event loop. Raises RecordTooLarge if decoding them would take too long."""
        return self._properties

    @property
    def raw(self) -> bytes | None:
        return self._raw

    @property
    def size(self) -> int:
        """Approximate bytes in memory, without Python's overhead for the message itself. The value never changes."""
        size = len(self._body)
        if self.correlation_id is not None:
            size += len(self.correlation_id)
        if self.type is not None:
            size += len(self.type)
        if self.group_id is not None:
            size += len(self.group_id)
        if self.user_id is not None:
            size += len(self.user_id)
        if self.text_view is not None:
            size += len(self.text_view)
        properties = self._properties
        if properties:
            size += PROPERTY_BYTES * len(properties)
            for name, value in properties.items():
                size += len(name)
                if isinstance(value, (str, bytes)):
                    size += len(value)
        return size

    @property
    def may_have_properties(self) -> bool:
        """True if there may be properties, determined without decoding. False: there are none."""
        return self._properties is not None

    def __repr__(self) -> str:
        return f"<Message {self.message_id} for {self.destination}, {self.size} bytes>"


# Names of the fields in the header of a frame.
HEADER = (
    "body_kind",
    "broker_sequence",
    "correlation_id",
    "destination",
    "expiration",
    "group_id",
    "group_sequence",
    "message_id",
    "original_destination",
    "persistent",
    "priority",
    "redelivery_counter",
    "reply_to",
    "text_view",
    "timestamp",
    "type",
    "user_id",
)

_NOWHERE = Destination(DestinationKind.QUEUE, "")


def unread() -> Message:
    """Return a message whose fields must still be read (fields.read_fields)."""
    return Message(_NOWHERE, "")
