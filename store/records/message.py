"""A message as every room of the broker sees it, and nothing of how a protocol or the journal writes it.

One value serves all protocols and the store: what a STOMP client sent, what a JMS client sent and what the
journal kept are the same :class:`Message`. Times are milliseconds since 1970 (0: none), as in JMS.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple


class DestinationKind(IntEnum):
    """The numbers are those of KahaDestination.DestinationType."""

    QUEUE = 0
    TOPIC = 1
    TEMP_QUEUE = 2
    TEMP_TOPIC = 3


class Destination(NamedTuple):
    """Where messages go. ``name`` is the physical name, without ``queue://`` or ``/queue/``."""

    kind: DestinationKind
    name: str

    @property
    def is_topic(self) -> bool:
        return self.kind is DestinationKind.TOPIC or self.kind is DestinationKind.TEMP_TOPIC

    def __str__(self) -> str:
        return f"{SCHEMES[self.kind]}://{self.name}"


# The words for the kinds, as ActiveMQ's qualified names have them.
SCHEMES = {
    DestinationKind.QUEUE: "queue",
    DestinationKind.TOPIC: "topic",
    DestinationKind.TEMP_QUEUE: "temp-queue",
    DestinationKind.TEMP_TOPIC: "temp-topic",
}


class BodyKind(IntEnum):
    """How ``Message.body`` is meant. The numbers are the OpenWire data types of the message classes."""

    NONE = 23
    BYTES = 24
    MAP = 25
    OBJECT = 26
    STREAM = 27
    TEXT = 28
    BLOB = 29


# A JMS client may nest lists and maps.
PropertyValue = bool | int | float | str | bytes | list[Any] | dict[str, Any] | None


# The last millisecond that a message can say.
TIME_MAX = (1 << 63) - 1

# What Python takes for a property beside the characters of its name and value.
PROPERTY_BYTES = 140


@dataclass(slots=True, eq=False)
class SharedBody:
    """A body of ``size`` bytes that several messages have: how many of them are held in memory (broker.core.memory)."""

    size: int
    holders: int = 0


class Message:
    """One message.

    ``body`` is UTF-8 for TEXT, the plain bytes for BYTES, and the OpenWire content as it stands for all other
    kinds. ``message_id`` is the producer key ``<connection id>:<session>:<producer>:<sequence>`` of KahaDB.
    ``properties`` may be None, which means empty: most messages have none, and a dict costs more than a message.
    A message is not changed once it was handed to the engine, except ``redelivery_counter``.
    ``raw`` holds the whole OpenWire frame (loose, version 11) if it came as one: it need not be written again.
    ``holders``, ``held_bytes`` and ``shared_body`` belong to who counts what is held in memory (broker.core.memory).
    ``broker_sequence`` is the number that a broker gave it when it took it (0: none), which clients tell back.
    ``sender`` is the user for whom its bytes in the store count; None: they count for no user. No client says it.
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
        "message_id",
        "original_destination",
        "persistent",
        "priority",
        "redelivery_counter",
        "reply_to",
        "sender",
        "shared_body",
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
        # To be given by name. They are not keyword-only: Python would look up the default of each.
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
        self.broker_sequence = 0
        self.holders = 0
        self.held_bytes = 0
        self.shared_body: SharedBody | None = None
        self.sender: str | None = None

    # Properties, for messages that are opened frames decode theirs when they are asked for (frames.OpenedMessage).

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

    @property
    def quick_properties(self) -> dict[str, PropertyValue] | None:
        """``properties``, for the event loop. Raises RecordTooLarge where it would take milliseconds to decode them."""
        return self._properties

    @property
    def raw(self) -> bytes | None:
        return self._raw

    @property
    def size(self) -> int:
        """Bytes that it holds in memory, about: without what Python adds to the message itself. The same as long as it
        lives."""
        size = len(self._body)
        if self.correlation_id is not None:
            size += len(self.correlation_id)
        if self.type is not None:
            size += len(self.type)
        if self.group_id is not None:
            size += len(self.group_id)
        if self.user_id is not None:
            size += len(self.user_id)
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
        """Whether it is worth while to ask for ``properties``: asked without decoding anything, and no false No."""
        return self._properties is not None

    def __repr__(self) -> str:
        return f"<Message {self.message_id} for {self.destination}, {self.size} bytes>"


# The fields that the header of a frame says, by name.
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
    "timestamp",
    "type",
    "user_id",
)

_NOWHERE = Destination(DestinationKind.QUEUE, "")


def unread() -> Message:
    """One whose fields are still to be read (fields.read_fields)."""
    return Message(_NOWHERE, "")
