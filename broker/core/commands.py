"""Commands that a client may send, as values: every protocol converts its bytes to these, and the engine carries them
out.

A ``receipt`` (None: no receipt requested) is returned unchanged to the session when the command is complete: for a
persistent message, when it is durable. Only the session knows its type: a text in STOMP, a number in OpenWire.
``transaction`` is the name of an open transaction: the client's own, or the key of an XA branch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto

from tandemmq.broker.core.principal import ANONYMOUS, Principal
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.transactions import XaTransactionId

Receipt = Hashable
_UNKNOWN = Principal(ANONYMOUS, is_proved=False)


class AckMode(Enum):
    """Acknowledgement mode of a subscription (STOMP 1.2, SUBSCRIBE ack header)."""

    AUTO = "auto"
    CLIENT = "client"  # cumulative: everything delivered up to the named delivery
    INDIVIDUAL = "client-individual"
    RANGE = "range"  # each Ack names its first and last (OpenWire)


class Command:
    """Base of all commands of a client."""

    __slots__ = ()


def _may_read_nothing(destination: Destination) -> bool:
    return False


@dataclass(slots=True, eq=False, repr=False)
class Connect(Command):
    """``connection_id`` names the client's connection across sockets (OpenWire): a later connection replaces an earlier
    one with the same name. ``steals_client_id``: the connection also replaces another connection of the same user with
    its client id, which is notified first (ErrorKind.TAKEN_OVER). ``is_client_id_assigned``: the broker chose the
    client id. ``state``: the queue in which the broker keeps the state of that client while it is away (MQTT); the
    queue need not exist yet, and the connection may do everything with it. ``is_logged_in``: a LogIn before it was
    accepted, and its user connects.

    Filled in before ``session.connected``: ``has_state``, whether that queue exists; ``principal``, the logged-in user;
    ``may_read``, whether the user may read from a destination, by its rights at the time of the call;
    ``durable_names``, the names of the durable subscriptions that the client id has, if ``state`` was given.
    """

    client_id: str | None = None
    login: str | None = None
    passcode: str | None = None
    _: KW_ONLY
    connection_id: str | None = None
    receipt: Receipt | None = None
    steals_client_id: bool = False
    is_client_id_assigned: bool = False
    state: Destination | None = None
    is_logged_in: bool = False
    has_state: bool = field(default=False, init=False)
    principal: Principal = field(default=_UNKNOWN, init=False)
    may_read: Callable[[Destination], bool] = field(default=_may_read_nothing, init=False)
    durable_names: tuple[str, ...] = field(default=(), init=False)


@dataclass(slots=True, eq=False, repr=False)
class LogIn(Command):
    """Check the credentials of a client that names its client id later, in a Connect with ``is_logged_in`` (AMQP).
    ``is_external``: the client wants to be the user of its certificate (SASL EXTERNAL). Without it the certificate is
    ignored."""

    login: str | None
    passcode: str | None
    receipt: Receipt | None = None
    is_external: bool = False


@dataclass(slots=True, eq=False, repr=False)
class ShareClientId(Command):
    """Give a connection that has no client id this one, beside other connections of its user (AMQP: connections of one
    container). These connections have the same durable subscriptions: a consumer that begins on one connection replaces
    the consumer on another, which is notified (ErrorKind.TAKEN_OVER)."""

    client_id: str
    receipt: Receipt | None = None


class Send(Command):
    """Store and route ``message``. The session has already given it its id, timestamp and destination.

    ``translate`` sets the body of the message, if that takes long: a thread calls it first. None: the body is set.
    """

    __slots__ = ("message", "receipt", "transaction", "translate")

    def __init__(
        self,
        message: Message,
        transaction: str | None = None,
        receipt: Receipt | None = None,
        translate: Callable[[], None] | None = None,
    ) -> None:
        self.message = message
        self.transaction = transaction
        self.receipt = receipt
        self.translate = translate


@dataclass(slots=True, eq=False, repr=False)
class Subscribe(Command):
    """Open a subscription named ``id`` (unique within the connection) on ``destination``, which may be composite or
    have wildcards.

    ``prefetch`` None means the default for the kind of destination; 0: it receives one message for each Pull.
    ``durable_name`` makes it a durable topic subscription of the connection's client id. ``is_browser``: it gets the
    messages of a queue without taking them from consumers, and ``nothing`` at the end. ``priority``: of the consumers
    that can take a message, those of the highest priority are served first (OpenWire, -128 to 127). ``takes_paused``:
    it also receives messages of paused queues; for operators.

    ``share`` names a group, without a slash: of all subscriptions that name the same group and the same
    ``destination``, one topic or pattern, each message goes to one, as from a queue. With ``durable_name`` the
    connection's client id keeps the membership while it is away, until it unsubscribes with that name. The group ends
    when no subscription is in it and no client id keeps a membership. ``has_terms``: all subscriptions of the group
    have the same destination and selector (JMS); the group may have any name. While the group is used, a subscription
    with other terms is refused; otherwise it begins the group again. ``is_global``: no client id keeps the membership,
    and every client may use it by ``durable_name``.

    Filled in before the receipt: ``held``, the messages that a durable subscription held when it began, by topic name;
    ``selector_bytes``, the memory of the compiled selector.
    """

    id: str
    destination: Destination
    ack: AckMode = AckMode.AUTO
    _: KW_ONLY
    prefetch: int | None = None
    durable_name: str | None = None
    share: str | None = None
    has_terms: bool = False
    is_global: bool = False
    selector: str | None = None
    no_local: bool = False
    is_browser: bool = False
    is_exclusive: bool = False
    is_retroactive: bool = False
    takes_paused: bool = False
    priority: int = 0
    receipt: Receipt | None = None
    held: dict[str, int] = field(default_factory=dict, init=False)
    selector_bytes: int = field(default=0, init=False)


@dataclass(slots=True, eq=False, repr=False)
class Unsubscribe(Command):
    """Close the subscription ``id``. With ``durable_name`` also delete that durable subscription (``id`` may be None).
    ``is_global``: see Subscribe. ``unless_used``: a shared one is not deleted while it has consumers (ErrorKind.STATE).

    ``seen``: tag of the last delivery that reached the application; deliveries up to it count as delivered once more
    when they are redelivered. None: unknown, so all of them count. 0: none reached it.
    """

    id: str | None
    _: KW_ONLY
    durable_name: str | None = None
    is_global: bool = False
    unless_used: bool = False
    seen: int | None = None
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class FoundDurable:
    """Terms of a durable subscription. ``destination`` None: its first consumer is about to begin it."""

    destination: Destination | None = None
    selector: str | None = None
    no_local: bool = False
    is_shared: bool = False


@dataclass(slots=True, eq=False, repr=False)
class FindDurable(Command):
    """Look up the durable subscription ``name`` of the connection's client id, or a global one (see Subscribe).
    Refused with ErrorKind.DESTINATION if there is none. Filled in before the receipt: ``found``."""

    name: str
    is_global: bool = False
    receipt: Receipt | None = None
    found: FoundDurable = field(default_factory=FoundDurable, init=False)


class Ack(Command):
    """Acknowledge the delivery ``tag`` of subscription ``id``; with AckMode.CLIENT also all before it, with
    AckMode.RANGE all from ``first`` on (0: from the oldest). ``count``: in a transaction, the minimum number of
    deliveries (0: any number), including those that the transaction acknowledged before.

    A delivery's tag is a number that grows by one with each delivery of a subscription.
    """

    __slots__ = ("count", "first", "id", "receipt", "tag", "transaction")

    def __init__(
        self,
        id: str,
        tag: int,
        transaction: str | None = None,
        receipt: Receipt | None = None,
        *,
        first: int | None = None,
        count: int = 0,
    ) -> None:
        self.id = id
        self.tag = tag
        self.transaction = transaction
        self.receipt = receipt
        self.first = tag if first is None else first
        self.count = count


@dataclass(slots=True, eq=False, repr=False)
class AckOfNothing(Command):
    """Acknowledge a delivery that this connection did not receive, or no longer has: the command is confirmed and
    changes nothing. ``error`` describes the missing delivery; a ``transaction`` can then only be rolled back, as
    another consumer may take that message."""

    error: ClientError
    transaction: str | None = None
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Nack(Command):
    """Refuse the delivery ``tag``; with AckMode.CLIENT also all before it."""

    id: str
    tag: int
    transaction: str | None = None
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class AckOfMessage(Command):
    """Acknowledge or refuse (``is_nack``) the delivery of the message with this id, if exactly one delivery of it on
    this connection waits for an acknowledgement. ``subscription``, if it is open, selects the subscription."""

    message_id: str
    is_nack: bool
    transaction: str | None = None
    receipt: Receipt | None = None
    subscription: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class GiveUp(Command):
    """Make dead letters of the deliveries from ``first`` to ``tag``: by the client's decision (OpenWire POISON), or
    because they expired by the client's clock (``is_expired``: then only if they also expired by the broker's
    clock)."""

    id: str
    first: int
    tag: int
    cause: str
    _: KW_ONLY
    is_expired: bool = False
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class GiveBack(Command):
    """Give the deliveries from ``first`` to ``tag`` back to their queues, for any consumer. ``is_failed``: the client
    refused them, so they count as redelivered, and the redelivery policy may make dead letters of them. A plain
    subscription of a topic has no queue: the same subscription gets its deliveries again, unless the policy ends
    them."""

    id: str
    first: int
    tag: int
    _: KW_ONLY
    is_failed: bool = False
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Redelivered(Command):
    """Count one more delivery to the client's application of each delivery from ``first`` to ``tag``; the client still
    holds them (OpenWire REDELIVERED)."""

    id: str
    first: int
    tag: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Move(Command):
    """Store ``message`` at its destination and remove the delivery ``tag``, atomically.

    Filled in before the receipt: ``added``, the operations that the store received for it.
    """

    id: str
    tag: int
    message: Message
    receipt: Receipt | None = None
    added: list[AddMessage] = field(default_factory=list, init=False)


@dataclass(slots=True, eq=False, repr=False)
class Delivered(Command):
    """Grant ``count`` more deliveries: that many reached the application, which acknowledges them later."""

    id: str
    count: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Pull(Command):
    """Request one message for a subscription with prefetch 0. ``timeout_ms``: 0 waits without limit, below 0 not at
    all; if no message comes in time, the session gets ``nothing``."""

    id: str
    timeout_ms: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Grant(Command):
    """Set the tag up to which a subscription with prefetch 0 receives messages; acknowledgements do not change it
    (AMQP). ``is_drain``: if fewer messages are there now, the rest of the grant ends and the session gets ``nothing``;
    otherwise it does not get ``nothing``."""

    id: str
    limit: int
    _: KW_ONLY
    is_drain: bool = False
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class SetPrefetch(Command):
    id: str
    prefetch: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class SetNoLocal(Command):
    """Set whether the subscription skips messages of its own connection from now on. Messages that it already holds
    stay."""

    id: str
    no_local: bool
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Hold(Command):
    """Reserve ``bytes`` more for the session while the connection lasts. Refused (ErrorKind.RESOURCE) if connections,
    subscriptions and destinations fill their memory."""

    bytes: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class AddProducer(Command):
    """Start a producer. ``destination`` None: each message names its own."""

    id: str
    destination: Destination | None
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class RemoveProducer(Command):
    id: str
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class AddDestination(Command):
    """Create ``destination``. A temporary one belongs to this connection and ends with it."""

    destination: Destination
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class RemoveDestination(Command):
    """Delete ``destination`` with all its messages; refused while it has consumers."""

    destination: Destination
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Begin(Command):
    """Open a transaction. ``xa``: the branch of a distributed transaction; opening it again is then no error."""

    transaction: str
    receipt: Receipt | None = None
    _: KW_ONLY
    xa: XaTransactionId | None = None


@dataclass(slots=True, eq=False, repr=False)
class Prepare(Command):
    """Make an XA branch survive until its commit or rollback; the session gets ``prepared``."""

    transaction: str
    xa: XaTransactionId
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Commit(Command):
    """``xa``: the XA branch, which any connection may have prepared. ``is_two_phase``: the branch must have been
    prepared."""

    transaction: str
    receipt: Receipt | None = None
    _: KW_ONLY
    xa: XaTransactionId | None = None
    is_two_phase: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Abort(Command):
    transaction: str
    receipt: Receipt | None = None
    _: KW_ONLY
    xa: XaTransactionId | None = None


@dataclass(slots=True, eq=False, repr=False)
class Recover(Command):
    """List the prepared XA branches: the session gets ``recovered``."""

    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Disconnect(Command):
    """Disconnect cleanly: receipts of all commands before, then the receipt of this command, then the end.

    ``is_awaited``: the client closes the connection when it has the receipt, or connects again on the same socket.
    """

    receipt: Receipt | None = None
    _: KW_ONLY
    is_awaited: bool = False


@dataclass(slots=True, eq=False, repr=False)
class ProtocolFailure(Command):
    """Report that the session cannot carry out a request of its peer (``error``), and close if the error is fatal.

    Commands after a fatal error are ignored. An error that is not fatal refuses a single frame (an unsupported one, for
    example). ``transaction``: the transaction of that frame, which can then only be rolled back.
    """

    error: ClientError
    transaction: str | None = None

    def __post_init__(self) -> None:
        forget_frames(self.error)


class ErrorKind(Enum):
    """Kind of an error; protocols that distinguish kinds (JMS) map each in their own way."""

    GENERAL = auto()
    SECURITY = auto()  # a missing right, or a client that is not served
    LOGIN = auto()  # a wrong name or password
    CLIENT_ID = auto()
    TAKEN_OVER = auto()  # another connection of the same client took its place
    TIMEOUT = auto()  # it was silent for too long
    SELECTOR = auto()
    DESTINATION = auto()  # there is no such destination or durable subscription
    RESOURCE = auto()  # a limit is reached now
    ROLLED_BACK = auto()
    STATE = auto()  # not possible in the present state
    FORMAT = auto()  # a property of a message has a value that cannot be stored
    XA = auto()  # ``xa_code`` is the code (javax.transaction.xa.XAException)


XAER_NOTA = -4
XAER_PROTO = -6
XAER_RMFAIL = -7
XA_RBROLLBACK = 100


class Undeliverable(Exception):
    """A message is damaged and cannot be delivered. The text describes the damage."""


class ClientError(Exception):
    """An error of the peer, with the reply to send.

    ``message`` is one line for a header; ``detail`` advises the user. ``is_fatal`` closes the connection.
    ``refused_id`` is the id of a Subscribe that was refused.
    """

    def __init__(
        self,
        message: str,
        detail: str = "",
        *,
        is_fatal: bool = True,
        receipt: Receipt | None = None,
        kind: ErrorKind = ErrorKind.GENERAL,
        xa_code: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.is_fatal = is_fatal
        self.receipt = receipt
        self.kind = kind
        self.xa_code = xa_code
        self.refused_id: str | None = None


def forget_frames(error: ClientError) -> None:
    """Drop the traceback, which is never shown. Its frames hold the command and its client, and the command may hold
    the error: a cycle, which would keep all of them in memory."""
    error.__traceback__ = error.__context__ = None


class Undecided(ClientError):
    """A login without a result: there were too many logins, or the directory does not answer. Try again."""


def refusal(
    message: str,
    detail: str = "",
    kind: ErrorKind = ErrorKind.GENERAL,
    xa_code: int = 0,
    receipt: Receipt | None = None,
) -> ClientError:
    """Make the error that refuses one command; the connection stays open."""
    return ClientError(message, detail, is_fatal=False, kind=kind, xa_code=xa_code, receipt=receipt)
