"""What a client may ask for, as values: every protocol turns its bytes into these, the engine carries them out.

A ``receipt`` (None: none was asked for) is given back to the session unread once the command holds: for a
persistent message, once it is durable. What it is only the session knows: a text in STOMP, a number in OpenWire.
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
    """How a subscription acknowledges (STOMP 1.2, SUBSCRIBE ack header)."""

    AUTO = "auto"
    CLIENT = "client"  # cumulative: everything delivered up to the one named
    INDIVIDUAL = "client-individual"
    RANGE = "range"  # each Ack names its first and last (OpenWire)


class Command:
    """What a client may ask for: one of the following."""

    __slots__ = ()


def _nothing(destination: Destination) -> bool:
    return False


@dataclass(slots=True, eq=False, repr=False)
class Connect(Command):
    """``connection_id`` names the client's connection across sockets (OpenWire): a later one takes over from an
    earlier one of the same. ``steals_client_id``: so it does from another one of the same user with its client id,
    which is told so first (ErrorKind.TAKEN_OVER). ``is_client_id_assigned``: the broker made up its client id.
    ``state``: the queue in which the broker keeps what it knows of that
    client while it is away (MQTT); it need not be there yet, and the connection may do everything with it.

    Filled in before ``session.connected``: ``has_state``, whether that queue is there; ``principal``, who it is;
    ``may_read``, whether he may read from a destination, as his rights are when it is called; ``durable_names``, the
    names of the durable subscriptions that the client id has, where ``state`` was asked for.
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
    has_state: bool = field(default=False, init=False)
    principal: Principal = field(default=_UNKNOWN, init=False)
    may_read: Callable[[Destination], bool] = field(default=_nothing, init=False)
    durable_names: tuple[str, ...] = field(default=(), init=False)


class Send(Command):
    """Store and route ``message``. The session has already given it its id, timestamp and destination.

    ``translate`` sets the body of the message, where that takes long: a thread calls it first. None: the body is set.
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

    ``prefetch`` None means the default for the kind of destination; 0: it gets one message for each Pull.
    ``durable_name`` makes it a durable topic subscription of the connection's client id. ``is_browser``: it is shown
    what a queue holds, holds back no message from others, and gets ``nothing`` at the end. ``priority``: the consumers
    of the highest one that has room are served first (OpenWire, -128 to 127). ``takes_paused``: it is given messages of
    queues that are paused, too; for operators.

    ``share`` names a group, which has no slash: of all that name the same group and the same ``destination``, one topic
    or pattern, each message goes to one, as of a queue. With ``durable_name`` the connection's client id holds that
    also while it is away, until it unsubscribes with that name; the last one that leaves and does not hold it ends it.

    Filled in before the receipt: ``held``, how many messages a durable one held when it began, by name of the topic.
    """

    id: str
    destination: Destination
    ack: AckMode = AckMode.AUTO
    _: KW_ONLY
    prefetch: int | None = None
    durable_name: str | None = None
    share: str | None = None
    selector: str | None = None
    no_local: bool = False
    is_browser: bool = False
    is_exclusive: bool = False
    is_retroactive: bool = False
    takes_paused: bool = False
    priority: int = 0
    receipt: Receipt | None = None
    held: dict[str, int] = field(default_factory=dict, init=False)


@dataclass(slots=True, eq=False, repr=False)
class Unsubscribe(Command):
    """Close the subscription ``id``. With ``durable_name`` also delete that durable one (``id`` may be None).

    ``seen``: the tag of the last delivery that the application was shown; those up to it count as delivered once
    more when they come again. None: unknown, so all of them count. 0: none was.
    """

    id: str | None
    _: KW_ONLY
    durable_name: str | None = None
    seen: int | None = None
    receipt: Receipt | None = None


class Ack(Command):
    """Acknowledge the delivery ``tag`` of subscription ``id``; with AckMode.CLIENT also all before it, with
    AckMode.RANGE all from ``first`` on (0: from the oldest). ``count``: in a transaction, at least so many (0: any
    number), with what that transaction acknowledged before.

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
    """Acknowledge what this connection was not given, or has no more: it is confirmed and changes nothing. ``error``
    says what is missing; a ``transaction`` can only be rolled back then, as another one may take that message."""

    error: ClientError
    transaction: str | None = None
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Nack(Command):
    """Refuse the delivery ``tag``, with the mode CLIENT all up to it."""

    id: str
    tag: int
    transaction: str | None = None
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class AckOfMessage(Command):
    """As Ack, or as Nack, for the delivery of the message with this id, if this connection has exactly one that waits
    for an acknowledgement. ``subscription``, if it is open, says of which."""

    message_id: str
    is_nack: bool
    transaction: str | None = None
    receipt: Receipt | None = None
    subscription: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class GiveUp(Command):
    """The deliveries from ``first`` to ``tag`` are dead letters, by their client's decision (OpenWire POISON), or have
    expired by its clock (``is_expired``: then they only go to the dead letters if they expired by ours too)."""

    id: str
    first: int
    tag: int
    cause: str
    _: KW_ONLY
    is_expired: bool = False
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Redelivered(Command):
    """The client delivered those from ``first`` to ``tag`` to its application once more, and holds them still (OpenWire
    REDELIVERED)."""

    id: str
    first: int
    tag: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Move(Command):
    """Have ``message`` stored where it belongs in the place of the delivery ``tag``: both hold or neither does.

    Filled in before the receipt: ``added``, what the store was given for it.
    """

    id: str
    tag: int
    message: Message
    receipt: Receipt | None = None
    added: list[AddMessage] = field(default_factory=list, init=False)


@dataclass(slots=True, eq=False, repr=False)
class Delivered(Command):
    """``count`` deliveries reached the application, which acknowledges them later: so many more may be given."""

    id: str
    count: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Pull(Command):
    """A subscription of prefetch 0 wants one message. ``timeout_ms``: 0 waits for ever, below 0 not at all; when it is
    over, and nothing came, the session gets ``nothing``."""

    id: str
    timeout_ms: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class SetPrefetch(Command):
    id: str
    prefetch: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class SetNoLocal(Command):
    """Whether that subscription takes what its own connection sends from now on. What is there for it stays."""

    id: str
    no_local: bool
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Hold(Command):
    """The session keeps ``bytes`` more as long as the connection lasts. Refused (ErrorKind.RESOURCE) where connections,
    subscriptions and destinations fill their memory."""

    bytes: int
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class AddProducer(Command):
    """A producer begins. ``destination`` None: it names one with each message."""

    id: str
    destination: Destination | None
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class RemoveProducer(Command):
    id: str
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class AddDestination(Command):
    """Create ``destination``. A temporary one belongs to this connection, and ends with it."""

    destination: Destination
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class RemoveDestination(Command):
    """Delete ``destination`` with all it holds; refused while it has consumers."""

    destination: Destination
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Begin(Command):
    """Open a transaction. ``xa``: it is that branch of a distributed one; begun already is no mistake then."""

    transaction: str
    receipt: Receipt | None = None
    _: KW_ONLY
    xa: XaTransactionId | None = None


@dataclass(slots=True, eq=False, repr=False)
class Prepare(Command):
    """Make an XA branch survive until it is decided; the session gets ``prepared``."""

    transaction: str
    xa: XaTransactionId
    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Commit(Command):
    """``xa``: of an XA branch, on whatever connection it was prepared. ``is_two_phase``: it must have been prepared."""

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
    """Which XA branches are prepared: the session gets ``recovered``."""

    receipt: Receipt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Disconnect(Command):
    """The client leaves in order: receipts of everything before it, then this one's, then the end.

    ``is_awaited``: the client hangs up itself once it has its receipt, or comes again on the same socket.
    """

    receipt: Receipt | None = None
    _: KW_ONLY
    is_awaited: bool = False


@dataclass(slots=True, eq=False, repr=False)
class ProtocolFailure(Command):
    """The session cannot carry out what its peer asked: tell it why (``error``), and close if that is fatal.

    After a fatal one nothing counts. One that is not refuses a single frame (something not supported, say);
    ``transaction``: that frame was a part of it, which can only be rolled back now.
    """

    error: ClientError
    transaction: str | None = None

    def __post_init__(self) -> None:
        forget_frames(self.error)


class ErrorKind(Enum):
    """What a mistake is about: protocols that tell kinds apart (JMS) say each in their own way."""

    GENERAL = auto()
    SECURITY = auto()  # what it may do, or whether it may be here at all
    LOGIN = auto()  # a wrong name or password
    CLIENT_ID = auto()
    TAKEN_OVER = auto()  # another connection of the same client took its place
    TIMEOUT = auto()  # it was silent for too long
    SELECTOR = auto()
    DESTINATION = auto()  # there is no such destination or durable subscription
    RESOURCE = auto()  # no room, now
    ROLLED_BACK = auto()
    STATE = auto()  # not now, or not any more
    FORMAT = auto()  # a property of a message has no value that can be kept
    XA = auto()  # ``xa_code`` says it (javax.transaction.xa.XAException)


XAER_NOTA = -4
XAER_PROTO = -6
XAER_RMFAIL = -7
XA_RBROLLBACK = 100


class Undeliverable(Exception):
    """A message that cannot be delivered because it is damaged. The text says how."""


class ClientError(Exception):
    """The peer's mistake, with the reply in it.

    ``message`` is one line for a header, ``detail`` what to do about it. ``is_fatal`` closes the connection.
    ``refused_id`` is that of a Subscribe that came to nothing.
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
    """Its traceback is shown nowhere. The frames hold the command and its client, and the command may hold the error:
    a cycle, which would keep all of them in memory."""
    error.__traceback__ = error.__context__ = None


class Undecided(ClientError):
    """No password was found wrong: there were too many logins, or who decides does not answer. Try again."""


def refusal(
    message: str,
    detail: str = "",
    kind: ErrorKind = ErrorKind.GENERAL,
    xa_code: int = 0,
    receipt: Receipt | None = None,
) -> ClientError:
    """One command is refused, and the connection goes on."""
    return ClientError(message, detail, is_fatal=False, kind=kind, xa_code=xa_code, receipt=receipt)
