"""Records that outlive a connection of MQTT: those of a session (docs/formats/mqtt-sessions.md) or a bridge. Pure.

A record is a message in the queue of its owner, a session or bridge. Its kind is the message's type. Its body is JSON;
the two kinds that each message of QoS 2 needs (``qos2``) have only a packet id and the necessary fields. The owner
subscribes to its queue like a client; an acknowledgement removes a record. The owner sends a mark: when the mark is
delivered, the owner has all former records. A record that the owner sends is delivered to it, too, and can be removed
from then on.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

from tandemmq.broker.core.commands import Ack, AckMode, Begin, ClientError, Command, Commit, Delivered, Send, Subscribe
from tandemmq.broker.core.names import MQTT_SESSION
from tandemmq.broker.protocols.mqtt.conversation import Waiting, nothing
from tandemmq.broker.protocols.mqtt.packets import Filter, Will
from tandemmq.broker.protocols.mqtt.properties import OF_WILL, Reader, read_properties, write_properties
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message

#: A session that never ends by itself (MQTT 5.0, 3.1.2.11.2).
NEVER: Final = 0xFFFFFFFF
# json.dumps would make an encoder for each record.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
#: The id of the subscription to the queue.
STATE: Final = "state"
# Maximum number of records that are delivered at once; each record that arrives allows another one.
_PREFETCH: Final = 1_000
_WIDENED: Final = 250


class Kind(StrEnum):
    MARK = "mark"  # sent to find the end of what is there; has no content
    SESSION = "session"
    SUBSCRIPTION = "sub"
    INCOMING = "in"  # the packet id of a message of QoS 2 that was stored, and whose PUBREL has not come
    OUTGOING = "out"  # the packet id with which a message of QoS 2 is sent
    OWN = "own"  # as OUTGOING, with the message itself, of a shared subscription: other members do not get it
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
    """Record of a session, one for each. ``expiry``: seconds after its client left, NEVER: forever. ``user`` and
    ``groups``: its owner. ``left_at``: milliseconds since 1970 at which its client left; 0: the client is connected, or
    was a moment ago."""

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
                "properties": base64.b64encode(write_properties(will.properties)).decode(),
            }
        return json_body(fields)

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
                    read_properties(Reader(carried, 0, len(carried)), OF_WILL),
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError, MqttError) as error:
            raise RecordUnreadable(f"session: {error}") from error


@dataclass(slots=True, eq=False, repr=False)
class SubscriptionRecord:
    """Record of a subscription, one for each topic filter. ``durable_name``: of the durable subscription that collects
    for it; None: it has none, because its QoS is 0. ``owes_retained``: not all retained messages are sent and
    acknowledged yet; ``after`` and ``until``: which ones (stored_session.Position)."""

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
        return json_body(fields)

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


def json_body(fields: object) -> bytes:
    return _ENCODER.encode(fields).encode()


def record(queue: Destination, message_id: str, kind: Kind, body: bytes, now: int) -> Message:
    """Return the message that keeps the record."""
    return Message(queue, message_id, body, BodyKind.BYTES, persistent=True, timestamp=now, type=kind.value)


class Record:
    """Message of the session's queue. ``tag``: of its delivery; 0: it has not come back yet, and then ``then`` is
    called when it does."""

    __slots__ = ("tag", "then")

    def __init__(self, tag: int = 0) -> None:
        self.tag = tag
        self.then: Callable[[], None] | None = None


class Ways(Protocol):
    """Interface of the owner to the broker."""

    @property
    def clock(self) -> Callable[[], int]: ...

    def later(self, *commands: Command) -> None:
        """Request that the commands are carried out soon, in this order."""

    def next_message_id(self) -> str: ...

    def next_transaction(self) -> str: ...


class KeptRecords:
    """Records of one owner. ``queue`` None: no records are stored."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self.queue: Destination | None = None
        self._on_found: Callable[[int, Message], None] | None = None  # while former records come
        self._on_all: Callable[[], None] | None = None
        self._mark_id = ""
        self._mark_tag = 0
        self._stale: list[int] = []
        self._sent: dict[str, Record] = {}  # by id of the message; they come back
        self._came = 0

    def begin(self, queue: Destination, failed: Callable[[ClientError], None]) -> None:
        """Begin to keep records in ``queue``."""
        self.queue = queue
        receipt = Waiting(nothing, failed)
        self._ways.later(Subscribe(STATE, queue, AckMode.INDIVIDUAL, prefetch=_PREFETCH, receipt=receipt))

    def look(
        self,
        on_found: Callable[[int, Message], None],
        on_all: Callable[[], None],
        failed: Callable[[ClientError], None],
    ) -> None:
        """Call ``on_found`` with tag and message of each existing record, and then ``on_all``."""
        self._on_found, self._on_all = on_found, on_all
        mark = self._message(Kind.MARK, b"")
        self._mark_id = mark.message_id
        self._ways.later(*self.send(mark, Waiting(nothing, failed)))

    def deliver(self, tag: int, message: Message) -> None:
        """Take a message of the queue."""
        self._came += 1
        if self._came % _WIDENED == 0:
            self._ways.later(Delivered(STATE, _WIDENED))
        kept = self._sent.pop(message.message_id, None)
        if kept is not None:
            kept.tag = tag
            then, kept.then = kept.then, None
            if then is not None:
                then()
        elif message.message_id == self._mark_id and self._on_all is not None:
            self._mark_tag = tag
            on_all = self._on_all
            self._on_found = self._on_all = None
            on_all()
        elif self._on_found is not None:
            self._on_found(tag, message)
        else:
            self._ways.later(Ack(STATE, tag))

    def cut(self) -> None:
        """End the records of this connection: the owner has ended, and waits for no record."""
        for kept in self._sent.values():
            kept.then = None
        self._sent.clear()
        self._on_found = self._on_all = None

    def is_stale(self, tag: int) -> None:
        """Mark a record that was read as obsolete."""
        self._stale.append(tag)

    def sweep(self, transaction: str | None = None) -> list[Command]:
        """Return the commands that remove the obsolete records and the mark, after all records were read."""
        tags, self._stale = [*self._stale, self._mark_tag], []
        return [Ack(STATE, tag, transaction) for tag in tags]

    # ---- records

    def keep(self, kind: Kind, body: bytes) -> tuple[Message, Record]:
        """Return a message that is to be sent, and its record."""
        message = self._message(kind, body)
        return message, self.keep_as(message)

    def keep_as(self, message: Message) -> Record:
        """Return the record for ``message``, which is to be sent to the queue."""
        self._sent[message.message_id] = kept = Record()
        return kept

    def was_refused(self, message: Message) -> None:
        """Forget a record that was not stored, and does not come back."""
        self._sent.pop(message.message_id, None)

    def send(self, message: Message, receipt: Waiting) -> list[Command]:
        """Return the commands that store the message in a transaction. A transaction does not wait for space, because
        the records of deliveries let consumers empty the store."""
        name = self._ways.next_transaction()
        return [Begin(name), Send(message, name), Commit(name, receipt)]

    def _message(self, kind: Kind, body: bytes) -> Message:
        ways = self._ways
        assert self.queue is not None, "only of what is stored"
        return record(self.queue, ways.next_message_id(), kind, body, ways.clock())

    def drop(self, kept: Record, receipt: Waiting | None = None) -> list[Command]:
        """Return the commands that remove a record; ``receipt`` is called when this is durable. A record that was not
        delivered yet is removed when it is."""
        tag = kept.tag
        if tag:
            return [Ack(STATE, tag, receipt=receipt)]
        # prove: record-ends-when-it-is-back
        kept.then = lambda: self._ways.later(Ack(STATE, kept.tag, receipt=receipt))
        return []
