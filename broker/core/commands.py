"""What a client may ask for, as values: every protocol turns its bytes into these, the engine carries them out.

A ``receipt`` (None: nobody waits) is given back to the session unread once the command holds: for a
persistent message, once it is durable. What it is only the session knows: a text in STOMP, a number in OpenWire.
``transaction`` is the name of an open transaction: the client's own, or the key of an XA branch.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto

from store.records.message import Destination, Message
from store.records.transactions import XaTransactionId

Receipt = Hashable


class AckMode(Enum):
    """How a subscription acknowledges (STOMP 1.2, SUBSCRIBE ack header)."""

    AUTO = "auto"
    CLIENT = "client"  # cumulative: everything delivered up to the one named
    INDIVIDUAL = "client-individual"
    RANGE = "range"  # each Ack names its first and last (OpenWire)


class Connect:
    """``connection_id`` names the client's connection across sockets (OpenWire): a later one takes over from an
    earlier one of the same. ``steals_client_id``: so it does from another one of the same user with its client id."""

    __slots__ = ("client_id", "connection_id", "login", "passcode", "receipt", "steals_client_id")

    def __init__(
        self,
        client_id: str | None = None,
        login: str | None = None,
        passcode: str | None = None,
        *,
        connection_id: str | None = None,
        receipt: Receipt | None = None,
        steals_client_id: bool = False,
    ) -> None:
        self.client_id = client_id
        self.steals_client_id = steals_client_id
        self.login = login
        self.passcode = passcode
        self.connection_id = connection_id
        self.receipt = receipt


class Send:
    """Store and route ``message``. The session has already given it its id, timestamp and destination."""

    __slots__ = ("message", "receipt", "transaction")

    def __init__(self, message: Message, transaction: str | None = None, receipt: Receipt | None = None) -> None:
        self.message = message
        self.transaction = transaction
        self.receipt = receipt


class Subscribe:
    """Open a subscription named ``id`` (unique within the connection) on ``destination``, which may be composite or
    have wildcards.

    ``prefetch`` None means the default for the kind of destination; 0: it gets one message for each Pull.
    ``durable_name`` makes it a durable topic subscription of the connection's client id. ``is_browser``: it is shown
    what a queue holds, keeps nothing from anybody, and is told ``nothing`` at the end. ``priority``: the consumers of
    the highest one that has room are served first (OpenWire, -128 to 127).
    """

    __slots__ = (
        "ack",
        "destination",
        "durable_name",
        "id",
        "is_browser",
        "is_exclusive",
        "is_retroactive",
        "no_local",
        "prefetch",
        "priority",
        "receipt",
        "selector",
    )

    def __init__(
        self,
        id: str,
        destination: Destination,
        ack: AckMode = AckMode.AUTO,
        *,
        prefetch: int | None = None,
        durable_name: str | None = None,
        selector: str | None = None,
        no_local: bool = False,
        is_browser: bool = False,
        is_exclusive: bool = False,
        is_retroactive: bool = False,
        priority: int = 0,
        receipt: Receipt | None = None,
    ) -> None:
        self.id = id
        self.destination = destination
        self.ack = ack
        self.prefetch = prefetch
        self.durable_name = durable_name
        self.selector = selector
        self.no_local = no_local
        self.is_browser = is_browser
        self.is_exclusive = is_exclusive
        self.is_retroactive = is_retroactive
        self.priority = priority
        self.receipt = receipt


class Unsubscribe:
    """Close the subscription ``id``. With ``durable_name`` also delete that durable one (``id`` may be None).

    ``seen``: the tag of the last delivery that the application was shown; those up to it count as delivered once
    more when they come again. None: nobody knows, all of them do. 0: none was.
    """

    __slots__ = ("durable_name", "id", "receipt", "seen")

    def __init__(
        self,
        id: str | None,
        *,
        durable_name: str | None = None,
        seen: int | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        self.id = id
        self.durable_name = durable_name
        self.seen = seen
        self.receipt = receipt


class Ack:
    """Acknowledge the delivery ``tag`` of subscription ``id``; with AckMode.CLIENT also all before it, with
    AckMode.RANGE all from ``first`` on (0: from the oldest). ``count``: so many they must be (0: any number).

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


class Nack:
    """Refuse the delivery ``tag``, with the mode CLIENT all up to it."""

    __slots__ = ("id", "receipt", "tag", "transaction")

    def __init__(self, id: str, tag: int, transaction: str | None = None, receipt: Receipt | None = None) -> None:
        self.id = id
        self.tag = tag
        self.transaction = transaction
        self.receipt = receipt


class GiveUp:
    """The deliveries from ``first`` to ``tag`` are dead letters, by their client's decision (OpenWire POISON), or have
    expired by its clock (``is_expired``: then they only go to the dead letters if they expired by ours too)."""

    __slots__ = ("cause", "first", "id", "is_expired", "receipt", "tag")

    def __init__(
        self, id: str, first: int, tag: int, cause: str, *, is_expired: bool = False, receipt: Receipt | None = None
    ) -> None:
        self.id = id
        self.first = first
        self.tag = tag
        self.cause = cause
        self.is_expired = is_expired
        self.receipt = receipt


class Delivered:
    """``count`` deliveries reached the application, which acknowledges them later: so many more may be given."""

    __slots__ = ("count", "id", "receipt")

    def __init__(self, id: str, count: int, receipt: Receipt | None = None) -> None:
        self.id = id
        self.count = count
        self.receipt = receipt


class Pull:
    """A subscription of prefetch 0 wants one message. ``timeout_ms``: 0 waits for ever, below 0 not at all; when it is
    over, and nothing came, the session is told ``nothing``."""

    __slots__ = ("id", "receipt", "timeout_ms")

    def __init__(self, id: str, timeout_ms: int, receipt: Receipt | None = None) -> None:
        self.id = id
        self.timeout_ms = timeout_ms
        self.receipt = receipt


class SetPrefetch:
    __slots__ = ("id", "prefetch", "receipt")

    def __init__(self, id: str, prefetch: int, receipt: Receipt | None = None) -> None:
        self.id = id
        self.prefetch = prefetch
        self.receipt = receipt


class AddProducer:
    """A producer begins. ``destination`` None: it names one with each message."""

    __slots__ = ("destination", "id", "receipt")

    def __init__(self, id: str, destination: Destination | None, receipt: Receipt | None = None) -> None:
        self.id = id
        self.destination = destination
        self.receipt = receipt


class RemoveProducer:
    __slots__ = ("id", "receipt")

    def __init__(self, id: str, receipt: Receipt | None = None) -> None:
        self.id = id
        self.receipt = receipt


class AddDestination:
    """Create ``destination``. A temporary one belongs to this connection, and ends with it."""

    __slots__ = ("destination", "receipt")

    def __init__(self, destination: Destination, receipt: Receipt | None = None) -> None:
        self.destination = destination
        self.receipt = receipt


class RemoveDestination:
    """Delete ``destination`` with all it holds; refused while it has consumers."""

    __slots__ = ("destination", "receipt")

    def __init__(self, destination: Destination, receipt: Receipt | None = None) -> None:
        self.destination = destination
        self.receipt = receipt


class Begin:
    """Open a transaction. ``xa``: it is that branch of a distributed one; begun already is no mistake then."""

    __slots__ = ("receipt", "transaction", "xa")

    def __init__(self, transaction: str, receipt: Receipt | None = None, *, xa: XaTransactionId | None = None) -> None:
        self.transaction = transaction
        self.receipt = receipt
        self.xa = xa


class Prepare:
    """Make an XA branch survive until it is decided; the session is told ``prepared``."""

    __slots__ = ("receipt", "transaction", "xa")

    def __init__(self, transaction: str, xa: XaTransactionId, receipt: Receipt | None = None) -> None:
        self.transaction = transaction
        self.xa = xa
        self.receipt = receipt


class Commit:
    """``xa``: of an XA branch, on whatever connection it was prepared. ``is_two_phase``: it must have been prepared."""

    __slots__ = ("is_two_phase", "receipt", "transaction", "xa")

    def __init__(
        self,
        transaction: str,
        receipt: Receipt | None = None,
        *,
        xa: XaTransactionId | None = None,
        is_two_phase: bool = False,
    ) -> None:
        self.transaction = transaction
        self.receipt = receipt
        self.xa = xa
        self.is_two_phase = is_two_phase


class Abort:
    __slots__ = ("receipt", "transaction", "xa")

    def __init__(self, transaction: str, receipt: Receipt | None = None, *, xa: XaTransactionId | None = None) -> None:
        self.transaction = transaction
        self.receipt = receipt
        self.xa = xa


class Recover:
    """Which XA branches are prepared: the session is told ``recovered``."""

    __slots__ = ("receipt",)

    def __init__(self, receipt: Receipt | None = None) -> None:
        self.receipt = receipt


class Disconnect:
    """The client leaves in order: receipts of everything before it, then this one's, then the end.

    ``is_awaited``: the client hangs up itself once it has its receipt, or comes again on the same socket.
    """

    __slots__ = ("is_awaited", "receipt")

    def __init__(self, receipt: Receipt | None = None, *, is_awaited: bool = False) -> None:
        self.receipt = receipt
        self.is_awaited = is_awaited


class ProtocolFailure:
    """The session cannot carry out what its peer asked: tell it why (``error``), and close if that is fatal.

    After a fatal one nothing counts. One that is not refuses a single frame (something not supported, say);
    ``transaction``: that frame was a part of it, which can only be rolled back now.
    """

    __slots__ = ("error", "transaction")

    def __init__(self, error: ClientError, transaction: str | None = None) -> None:
        self.error = error
        self.transaction = transaction


Command = (
    Connect
    | Send
    | Subscribe
    | Unsubscribe
    | Ack
    | Nack
    | GiveUp
    | Delivered
    | Pull
    | SetPrefetch
    | AddProducer
    | RemoveProducer
    | AddDestination
    | RemoveDestination
    | Begin
    | Prepare
    | Commit
    | Abort
    | Recover
    | Disconnect
    | ProtocolFailure
)


class ErrorKind(Enum):
    """What a mistake is about: protocols that tell kinds apart (JMS) say each in their own way."""

    GENERAL = auto()
    SECURITY = auto()  # who it is, or what it may do
    CLIENT_ID = auto()
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
    """What is in a message that its consumer cannot be told: it is damaged. The text says how."""


class ClientError(Exception):
    """The peer's mistake, with the reply in it.

    ``message`` is one line for a header, ``detail`` what to do about it. ``is_fatal`` closes the connection.
    ``refused_id`` is that of a Subscribe that came to nothing.
    """

    refused_id: str | None = None

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
