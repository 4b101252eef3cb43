"""Operations: requests of the engine to the store. One object is one change of the journal.

Each operation is atomic: after a crash it has happened completely or not at all. When operations are durable, the store
passes them to the engine on the event loop, in the order in which they were submitted (``Store.append``). ``context``
belongs to the caller; the store does not read it. Operations for single messages are no dataclasses, because even a
compiled dataclass has an interpreted ``__init__``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, Protocol

from tandemmq.store.records.marks import encode_connections
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.transactions import TransactionId

# Place in the journal where a message took effect. A queue is in this order; a later message has a larger key.
# Value: location (file << 32 | byte offset) of the Add record, or of the Commit, shifted left by 32 bits, plus the
# number of the operation within the commit.
OrderKey = int

# file << 32 | offset of a record's header
Location = int


class KnownProducer:
    """Producer, for the event loop. ``highest``: its highest message number that was submitted to the store.
    ``owners``: ids of the queues and subscriptions for which the storage thread found no higher number."""

    __slots__ = ("highest", "owners")

    def __init__(self, highest: int) -> None:
        self.highest = highest
        self.owners: set[int] = set()


class AddMessage:
    """Operation: store ``message``. ``owners`` are the ids of the queue, or of each durable subscription, that will
    hold it. In a PrepareTransaction, a message for a topic has no owners: the subscriptions that exist at the commit
    get it.

    unmatched_acks  a Remove record for each durable subscription of the topic that must not get the message, because a
                    replay of the journal gives a message to all subscriptions
    is_audited      the client made the message's id, and may send the same message again
    is_new          the broker made the id for this send, so no other message has it
    charged         bytes that the event loop counts for the sender until the store counts them

    The store sets ``order_key``, ``location`` and ``size`` (bytes in the journal). It sets ``is_duplicate`` if a
    message with that id was stored before: then nothing is stored, and the client gets a receipt as usual. ``producer``
    and ``is_newest`` are internal (store.writer.submissions).
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
    """Operation: remove a message from one owner, because it was acknowledged, has expired or is moved to a dead letter
    queue.

    ``order_key``, ``location`` and ``size`` are the values that the store set in AddMessage or PagedMessage.
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
    """Operation: several operations that take effect together. ``commit`` is the payload of the Commit command if the
    payloads of the operations have a transaction id. None: they need no transaction, because they fit one batch."""

    operations: Sequence[AddMessage | RemoveMessage]
    commit: bytes | None = None
    context: object | None = None


@dataclass(slots=True, eq=False, repr=False)
class PrepareTransaction:
    """Operation: prepare an XA transaction. Its operations, whose payloads have its id, and its Prepare record are
    written atomically.

    When it is durable, the transaction survives every crash. Until EndTransaction, the messages that it adds are
    invisible, and the messages that it removes are withheld. The store sets ``is_refused`` if a transaction with that
    id is prepared already; then nothing is written.
    """

    transaction: TransactionId
    operations: Sequence[AddMessage | RemoveMessage]
    prepare: bytes
    context: object | None = None
    is_refused: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False, repr=False)
class EndTransaction:
    """Operation: commit or roll back a prepared transaction. ``payload`` is the Commit or Rollback command.

    The store sets:

    added       (owner, message) for each message that became visible
    removed     (owner, order key) for each message that was removed
    returned    (owner, message) for each withheld message that must be delivered again
    is_unknown  no such transaction is prepared; nothing was written
    records     number of records written
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
    """Prepared transaction, whose outcome an external coordinator decides. ``added`` and ``removed`` are numbers of
    messages, ``adds_to`` and ``removes_from`` their destinations."""

    transaction: TransactionId
    added: int
    removed: int
    adds_to: frozenset[Destination] = frozenset()
    removes_from: frozenset[Destination] = frozenset()


@dataclass(slots=True, eq=False, repr=False)
class CountDeliveries:
    """Operation: store the delivery counts of messages of ``owner``, for the next master (KahaUpdateMessageCommand, as
    ActiveMQ's persistJMSRedelivered). ``counts``: order key -> count. Messages that do not exist any more, or that
    several durable subscriptions hold, are skipped."""

    owner: int
    counts: dict[OrderKey, int]
    context: object | None = None


@dataclass(slots=True, eq=False, repr=False)
class AddSubscription:
    """Operation: store a durable subscription. ``owner`` is the id that ``Store.subscription`` returned."""

    owner: int
    payload: bytes
    context: object | None = None


class AddConnection:
    """Operation: store the user of a connection id. ``payload`` is a trace record."""

    __slots__ = ("context", "pair", "payload")

    def __init__(self, id: str, user: str, context: object | None = None) -> None:
        self.pair = (id, user)
        self.payload = encode_connections([self.pair])
        self.context = context


@dataclass(slots=True, eq=False, repr=False)
class RemoveOwner:
    """Operation: remove a durable subscription or a queue, with all its messages (KahaSubscriptionCommand without info,
    KahaRemoveDestinationCommand)."""

    owner: int
    payload: bytes
    context: object | None = None


@dataclass(slots=True, eq=False, repr=False)
class Page:
    """Operation: read the next messages of ``owner`` after the order key ``after``: at most ``count`` messages and
    about ``bytes_max`` bytes, but at least one message.

    The store sets ``messages``, in order. The page includes the effects of all operations that were submitted before
    it, and of none that were submitted later. ``is_end``: no more messages follow in this state. ``priority``: read
    only messages of this priority (stored values are limited to 0 to 9). ``keys``: read only these messages, if they
    still exist.
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
    """Message that was read from the journal."""

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
    """Receiver of the results of a store, on the event loop."""

    def durable(self, operations: list[Operation]) -> None:
        """Handle operations that are durable now, in the order in which they were submitted."""

    def drained(self) -> None:
        """Handle the end of a congestion of the store."""


@dataclass(slots=True, eq=False, repr=False)
class Owner:
    """Owner of stored messages: a queue, or a durable subscription of a topic.

    ``count`` and ``bytes`` are its messages and their bytes at the start; the engine continues to count. Only a durable
    subscription has ``selector``, ``no_local``, ``pattern`` and ``user``. ``pattern`` None: it subscribes only to its
    topic. ``user`` None: no user is stored.
    """

    id: int
    destination: Destination
    count: int = 0
    bytes: int = 0
    client_id: str | None = None
    subscription_name: str | None = None
    _: KW_ONLY
    selector: str | None = None
    no_local: bool | None = False  # None: unknown, see SubscriptionInfo
    pattern: str | None = None
    user: str | None = None
