"""Requests of the engine to the store: one value for each change of the journal.

Each value is atomic: after a crash all of it happened or none of it. Values come back on the event loop, in the order
in which they were handed over, once they are durable (``Store.append``). ``context`` belongs to the caller; the store
returns it and never reads it. The values for single messages are not dataclasses, because even a compiled dataclass has
an interpreted ``__init__``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, Protocol

from tandemmq.store.records.marks import encode_connections
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.transactions import TransactionId

# Place in the journal where a message took effect; a queue is in this order. The location (file << 32 | byte offset) of
# the Add record, or of the Commit, shifted left by 32 bits, plus the number of the operation within that commit. A
# later message has a larger key.
OrderKey = int

# file << 32 | offset of a record's header
Location = int


class KnownProducer:
    """A producer, as the event loop knows it. ``highest``: the highest message number that was handed to the store.
    ``owners``: queues and subscriptions that had no higher number before."""

    __slots__ = ("highest", "owners")

    def __init__(self, highest: int) -> None:
        self.highest = highest
        self.owners: set[int] = set()


class AddMessage:
    """Store ``message``. ``owners`` are the ids of the queue, or of each durable subscription, that will hold it. In a
    PrepareTransaction, a message for a topic has none: the subscriptions that exist at the commit get it.

    ``unmatched_acks``: a Remove record for each durable subscription of the topic that must not get it, because a
    replay of the journal gives it to all of them. ``is_audited``: the client made the message's id, and may send it
    again. ``is_new``: the broker made its id for this send, so no other message has it. ``charged``: bytes that the
    event loop counts for the sender until the store counts them; 0: none.

    Filled in by the store before it comes back: ``order_key``, ``location``, ``size`` (bytes in the journal);
    ``is_duplicate``: a message of that id was stored before, so nothing was stored now; the client gets its receipt as
    usual. Only the store uses ``producer`` and ``is_newest`` (store.writer.new_messages).
    """

    __slots__ = (
        "charged",
        "context",
        "is_audited",
        "is_duplicate",
        "is_new",
        "is_newest",
        "location",
        "message",
        "order_key",
        "owners",
        "payload",
        "producer",
        "size",
        "unmatched_acks",
    )

    def __init__(
        self,
        message: Message,
        owners: tuple[int, ...],
        payload: bytes,
        context: object | None = None,
        *,
        unmatched_acks: tuple[bytes, ...] = (),
        is_audited: bool = False,
        is_new: bool = False,
    ) -> None:
        self.message = message
        self.owners = owners
        self.payload = payload
        self.context = context
        self.unmatched_acks = unmatched_acks
        self.is_audited = is_audited
        self.is_new = is_new
        self.charged = 0
        self.is_duplicate = False
        self.producer: KnownProducer | None = None
        self.is_newest = False
        self.order_key: OrderKey = 0
        self.location: Location = 0
        self.size = 0


class RemoveMessage:
    """Forget a message of one owner: acknowledged, expired or dead-lettered.

    ``order_key``, ``location`` and ``size`` are those with which the store reported the message.
    """

    __slots__ = ("context", "location", "message_id", "order_key", "owner", "payload", "size")

    def __init__(
        self,
        owner: int,
        order_key: OrderKey,
        location: Location,
        message_id: str,
        payload: bytes,
        context: object | None = None,
        size: int = 0,
    ) -> None:
        self.owner = owner
        self.order_key = order_key
        self.location = location
        self.message_id = message_id
        self.payload = payload
        self.context = context
        self.size = size


@dataclass(slots=True, eq=False, repr=False)
class Atomic:
    """Several operations that happen together. ``commit`` is the Commit command's payload when the operations'
    own payloads carry a transaction id; None when they need no transaction because they fit one batch."""

    operations: Sequence[AddMessage | RemoveMessage]
    commit: bytes | None = None
    context: object | None = None


@dataclass(slots=True, eq=False, repr=False)
class PrepareTransaction:
    """Prepare an XA transaction: write its operations, whose payloads carry its id, and its Prepare record, atomically.

    When the value comes back, the transaction survives every crash. Until EndTransaction decides the outcome, the
    messages that it adds are invisible, and those that it removes are withheld. ``is_refused``: a transaction of that
    id is already in doubt, and nothing was written.
    """

    transaction: TransactionId
    operations: Sequence[AddMessage | RemoveMessage]
    prepare: bytes
    context: object | None = None
    is_refused: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False, repr=False)
class EndTransaction:
    """Commit or roll back a prepared transaction. ``payload`` is the Commit or Rollback command.

    Filled in by the store before it comes back: ``added``: (owner, message) that became visible; ``removed``: (owner,
    order key) that are gone; ``returned``: withheld messages that must be offered again. ``is_unknown``: there is no
    such transaction (any more), and nothing was written. ``records``: number of records written.
    """

    transaction: TransactionId
    is_commit: bool
    payload: bytes
    context: object | None = None
    added: list[tuple[int, PagedMessage]] = field(default_factory=list, init=False)
    removed: list[tuple[int, OrderKey]] = field(default_factory=list, init=False)
    returned: list[tuple[int, PagedMessage]] = field(default_factory=list, init=False)
    is_unknown: bool = field(default=False, init=False)
    records: int = field(default=0, init=False)


class PreparedTransaction(NamedTuple):
    """A prepared transaction; an external coordinator decides its outcome. The fields are the numbers of messages that
    it adds and removes, and their destinations."""

    transaction: TransactionId
    added: int
    removed: int
    adds_to: frozenset[Destination] = frozenset()
    removes_from: frozenset[Destination] = frozenset()


@dataclass(slots=True, eq=False, repr=False)
class CountDeliveries:
    """Note how often messages of ``owner`` were delivered, by order key, for the next master (KahaUpdateMessageCommand,
    as ActiveMQ's persistJMSRedelivered). Messages that are gone by then, and those that several durable subscriptions
    hold, are left unchanged."""

    owner: int
    counts: dict[OrderKey, int]
    context: object | None = None


@dataclass(slots=True, eq=False, repr=False)
class AddSubscription:
    """Remember a durable subscription. ``owner`` is the id that the store gave it (``Store.subscription``)."""

    owner: int
    payload: bytes
    context: object | None = None


class AddConnection:
    """Remember the user of a connection id; ``payload`` is the trace that records it."""

    __slots__ = ("context", "pair", "payload")

    def __init__(self, id: str, user: str, context: object | None = None) -> None:
        self.pair = (id, user)
        self.payload = encode_connections([self.pair])
        self.context = context


@dataclass(slots=True, eq=False, repr=False)
class RemoveOwner:
    """Forget a durable subscription or a queue with all its messages (KahaSubscriptionCommand without info,
    KahaRemoveDestinationCommand)."""

    owner: int
    payload: bytes
    context: object | None = None


@dataclass(slots=True, eq=False, repr=False)
class Page:
    """Read the next messages of ``owner`` after ``after``, at most ``count`` and about ``bytes_max`` bytes, but at
    least one.

    It comes back with ``messages`` in order. The page reflects all values that were handed over before it, and none
    that were handed over after it; ``is_end``: in this state no message followed. ``priority``: read only messages of
    this priority (0 to 9; others are clamped). ``keys``: read only these messages, if they still exist.
    """

    owner: int
    after: OrderKey
    count: int
    bytes_max: int
    context: object | None = None
    _: KW_ONLY
    priority: int | None = None
    keys: Collection[OrderKey] | None = None
    messages: list[PagedMessage] = field(default_factory=list, init=False)
    is_end: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False, repr=False)
class PagedMessage:
    """A message as read back from the journal."""

    order_key: OrderKey
    location: Location
    size: int
    message: Message


Operation = (
    AddMessage
    | RemoveMessage
    | Atomic
    | PrepareTransaction
    | EndTransaction
    | CountDeliveries
    | AddSubscription
    | AddConnection
    | RemoveOwner
    | Page
)


class Engine(Protocol):
    """Receiver of a store's results; always called on the event loop."""

    def durable(self, operations: list[Operation]) -> None:
        """Take operations that are durable now, in the order in which they were handed over."""

    def drained(self) -> None:
        """Note that the store is not congested any more."""


@dataclass(slots=True, eq=False, repr=False)
class Owner:
    """A holder of stored messages: a queue, or a durable subscription of a topic.

    ``count`` and ``bytes`` are the values at the start; the engine continues from them. ``selector``, ``no_local`` and
    ``pattern`` belong to a durable subscription; without a pattern it subscribes to its topic alone. ``user``: None if
    no user is recorded yet.
    """

    id: int
    destination: Destination
    count: int = 0
    bytes: int = 0
    client_id: str | None = None
    subscription_name: str | None = None
    _: KW_ONLY
    selector: str | None = None
    no_local: bool | None = False  # None: as SubscriptionInfo has it
    pattern: str | None = None
    user: str | None = None
