"""Records of an MQTT session (docs/formats/mqtt-sessions.md) or of a bridge that outlive its connection. Pure.

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
from tandemmq.broker.protocols.mqtt.conversation import Receipt, nothing
from tandemmq.broker.protocols.mqtt.packets import Filter, Will
from tandemmq.broker.protocols.mqtt.properties import OF_WILL, Reader, read_properties, write_properties
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message

#: Session Expiry Interval of a session that does not expire (MQTT 5.0, 3.1.2.11.2).
NEVER: Final = 0xFFFFFFFF
# A shared encoder, because json.dumps with these options makes one for each call.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
#: Id of the subscription to the owner's queue.
STATE: Final = "state"
# Prefetch of the subscription, and the number by which it is extended after that many records.
_PREFETCH: Final = 1_000
_WIDENED: Final = 250


class Kind(StrEnum):
    MARK = "mark"  # no content; its delivery shows that all former records were delivered
    SESSION = "session"
    SUBSCRIPTION = "sub"
    INCOMING = "in"  # packet id of a stored message of QoS 2 from the client, until PUBREL
    OUTGOING = "out"  # packet id of a message of QoS 2 to the client
    OWN = "own"  # like OUTGOING, with the message itself, which is removed from its shared subscription
    SUBSCRIBED = "subscribed"  # of a bridge: its subscriptions (broker.bridges.flow)
    RELEASED = "rel"  # packet id of a message to the client, from PUBREL to PUBCOMP


class RecordUnreadable(Exception):
    """A record is invalid; the text gives the reason."""


def queue_of(client_id: str) -> Destination:
    """Return the queue of the session with that client id."""
    return Destination(DestinationKind.QUEUE, MQTT_SESSION + quote(client_id, safe=""))


def client_id_of(queue: str) -> str:
    """Return the client id of the session with that queue."""
    return unquote(queue.removeprefix(MQTT_SESSION))


@dataclass(slots=True, eq=False, repr=False)
class SessionRecord:
    """Record of a session. ``expiry``: seconds that the session lives after its client left; NEVER: no limit. ``user``
    and ``groups``: its owner. ``left_at``: when its client left, in milliseconds since 1970; 0: the client is
    connected, or its absence is not stored yet."""

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
        """Decode the body of a record. Raises RecordUnreadable."""
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
    """Record of the subscription to one topic filter. ``durable_name``: the durable subscription that collects its
    messages; None: QoS is 0. ``owes_retained``: some retained messages are not acknowledged yet; ``after`` and
    ``until`` are their stored_session.Position."""

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
        """Decode the body of a record. Raises RecordUnreadable."""
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
    """Return the message that contains the record."""
    return Message(queue, message_id, body, BodyKind.BYTES, persistent=True, timestamp=now, type=kind.value)


class Record:
    """A record in the owner's queue. ``tag``: its delivery tag; 0: it is not delivered to the owner yet. ``then`` is
    called when it is delivered."""

    __slots__ = ("tag", "then")

    def __init__(self, tag: int = 0) -> None:
        self.tag = tag
        self.then: Callable[[], None] | None = None


class RecordOwner(Protocol):
    """Interface of the records to their owner, which sends commands to the broker."""

    @property
    def clock(self) -> Callable[[], int]: ...

    def later(self, *commands: Command) -> None:
        """Request that the commands are carried out soon, in this order."""

    def next_message_id(self) -> str: ...

    def next_transaction(self) -> str: ...


class KeptRecords:
    """Records of one owner. ``queue``: where they are stored; None: they are not stored."""

    def __init__(self, owner: RecordOwner) -> None:
        self._owner = owner
        self.queue: Destination | None = None
        self._on_found: Callable[[int, Message], None] | None = None  # set while former records are read
        self._on_all: Callable[[], None] | None = None
        self._mark_id = ""
        self._mark_tag = 0
        self._stale: list[int] = []
        self._sent: dict[str, Record] = {}  # records that are not delivered to the owner yet, by message id
        self._came = 0

    def begin(self, queue: Destination, failed: Callable[[ClientError], None]) -> None:
        """Begin to store records in ``queue``. ``failed`` is called if the queue cannot be subscribed to."""
        self.queue = queue
        receipt = Receipt(nothing, failed)
        self._owner.later(Subscribe(STATE, queue, AckMode.INDIVIDUAL, prefetch=_PREFETCH, receipt=receipt))

    def read_all(
        self,
        on_found: Callable[[int, Message], None],
        on_all: Callable[[], None],
        failed: Callable[[ClientError], None],
    ) -> None:
        """Read all stored records: call ``on_found`` with delivery tag and message of each, and then ``on_all``."""
        self._on_found, self._on_all = on_found, on_all
        mark = self._message(Kind.MARK, b"")
        self._mark_id = mark.message_id
        self._owner.later(*self.send(mark, Receipt(nothing, failed)))

    def deliver(self, tag: int, message: Message) -> None:
        """Process a message of the queue."""
        self._came += 1
        if self._came % _WIDENED == 0:
            self._owner.later(Delivered(STATE, _WIDENED))
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
            self._owner.later(Ack(STATE, tag))

    def cut(self) -> None:
        """Stop: the owner has ended, so no callback is called any more."""
        for kept in self._sent.values():
            kept.then = None
        self._sent.clear()
        self._on_found = self._on_all = None

    def is_stale(self, tag: int) -> None:
        """Mark the record with this delivery tag as obsolete; ``sweep`` removes it."""
        self._stale.append(tag)

    def sweep(self, transaction: str | None = None) -> list[Command]:
        """Return the commands that remove the obsolete records and the mark. Call it after all records were read."""
        tags, self._stale = [*self._stale, self._mark_tag], []
        return [Ack(STATE, tag, transaction) for tag in tags]

    # ---- records

    def keep(self, kind: Kind, body: bytes) -> tuple[Message, Record]:
        """Return the message for a new record, which the caller must send, and the record."""
        message = self._message(kind, body)
        return message, self.keep_as(message)

    def keep_as(self, message: Message) -> Record:
        """Return the record for ``message``, which the caller must send to the queue."""
        self._sent[message.message_id] = kept = Record()
        return kept

    def was_refused(self, message: Message) -> None:
        """Forget a record that was refused, and so is not delivered."""
        self._sent.pop(message.message_id, None)

    def send(self, message: Message, receipt: Receipt) -> list[Command]:
        """Return the commands that store the message in a transaction. A transaction does not wait for free space:
        consumers need these records to empty the store."""
        name = self._owner.next_transaction()
        return [Begin(name), Send(message, name), Commit(name, receipt)]

    def _message(self, kind: Kind, body: bytes) -> Message:
        owner = self._owner
        assert self.queue is not None, "only a stored session has records"
        return record(self.queue, owner.next_message_id(), kind, body, owner.clock())

    def drop(self, kept: Record, receipt: Receipt | None = None) -> list[Command]:
        """Return the commands that remove a record. ``receipt`` gets the result when it is durable. A record that is
        not delivered yet is removed when it is delivered."""
        tag = kept.tag
        if tag:
            return [Ack(STATE, tag, receipt=receipt)]
        # prove: record-ends-when-it-is-back
        kept.then = lambda: self._owner.later(Ack(STATE, kept.tag, receipt=receipt))
        return []
