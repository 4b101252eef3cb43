"""What a client may ask for, as values: every protocol turns its bytes into these, the engine carries them out.

A ``receipt`` (None: nobody waits) is given back to the session unread once the command holds: for a
persistent message, once it is durable. ``transaction`` is the client's own name for an open transaction.
"""

from __future__ import annotations

from enum import Enum

from store.records.message import Destination, Message


class AckMode(Enum):
    """How a subscription acknowledges (STOMP 1.2, SUBSCRIBE ack header)."""

    AUTO = "auto"
    CLIENT = "client"  # cumulative: everything delivered up to the one named
    INDIVIDUAL = "client-individual"


class Connect:
    __slots__ = ("client_id", "login", "passcode")

    def __init__(self, client_id: str | None = None, login: str | None = None, passcode: str | None = None) -> None:
        self.client_id = client_id
        self.login = login
        self.passcode = passcode


class Send:
    """Store and route ``message``. The session has already given it its id, timestamp and destination."""

    __slots__ = ("message", "receipt", "transaction")

    def __init__(self, message: Message, transaction: str | None = None, receipt: str | None = None) -> None:
        self.message = message
        self.transaction = transaction
        self.receipt = receipt


class Subscribe:
    """Open a subscription named ``id`` (unique within the connection) on ``destination``.

    ``prefetch`` None means the default for the kind of destination. ``durable_name`` makes it a durable topic
    subscription of the connection's client id.
    """

    __slots__ = ("ack", "destination", "durable_name", "id", "no_local", "prefetch", "receipt")

    def __init__(
        self,
        id: str,
        destination: Destination,
        ack: AckMode = AckMode.AUTO,
        *,
        prefetch: int | None = None,
        durable_name: str | None = None,
        no_local: bool = False,
        receipt: str | None = None,
    ) -> None:
        self.id = id
        self.destination = destination
        self.ack = ack
        self.prefetch = prefetch
        self.durable_name = durable_name
        self.no_local = no_local
        self.receipt = receipt


class Unsubscribe:
    """Close the subscription ``id``. With ``durable_name`` also delete that durable one (``id`` may be None)."""

    __slots__ = ("durable_name", "id", "receipt")

    def __init__(self, id: str | None, *, durable_name: str | None = None, receipt: str | None = None) -> None:
        self.id = id
        self.durable_name = durable_name
        self.receipt = receipt


class Ack:
    """Acknowledge the delivery ``tag`` of subscription ``id``; with AckMode.CLIENT also all before it.

    A delivery's tag is a number that grows by one with each delivery of a subscription.
    """

    __slots__ = ("id", "receipt", "tag", "transaction")

    def __init__(self, id: str, tag: int, transaction: str | None = None, receipt: str | None = None) -> None:
        self.id = id
        self.tag = tag
        self.transaction = transaction
        self.receipt = receipt


class Nack:
    """Refuse exactly the delivery ``tag``; never cumulative (ActiveMQ)."""

    __slots__ = ("id", "receipt", "tag", "transaction")

    def __init__(self, id: str, tag: int, transaction: str | None = None, receipt: str | None = None) -> None:
        self.id = id
        self.tag = tag
        self.transaction = transaction
        self.receipt = receipt


class Begin:
    __slots__ = ("receipt", "transaction")

    def __init__(self, transaction: str, receipt: str | None = None) -> None:
        self.transaction = transaction
        self.receipt = receipt


class Commit:
    __slots__ = ("receipt", "transaction")

    def __init__(self, transaction: str, receipt: str | None = None) -> None:
        self.transaction = transaction
        self.receipt = receipt


class Abort:
    __slots__ = ("receipt", "transaction")

    def __init__(self, transaction: str, receipt: str | None = None) -> None:
        self.transaction = transaction
        self.receipt = receipt


class Disconnect:
    """The client leaves in order: receipts of everything before it, then this one's, then the end."""

    __slots__ = ("receipt",)

    def __init__(self, receipt: str | None = None) -> None:
        self.receipt = receipt


class ProtocolFailure:
    """The session cannot carry out what its peer asked: tell it why (``error``), and close if that is fatal.

    After a fatal one nothing counts. One that is not refuses a single frame (something not supported, say).
    """

    __slots__ = ("error",)

    def __init__(self, error: ClientError) -> None:
        self.error = error


Command = Connect | Send | Subscribe | Unsubscribe | Ack | Nack | Begin | Commit | Abort | Disconnect | ProtocolFailure


class ClientError(Exception):
    """The peer's mistake, with the reply in it.

    ``message`` is one line for a header, ``detail`` what to do about it. ``is_fatal`` closes the connection.
    """

    def __init__(self, message: str, detail: str = "", *, is_fatal: bool = True, receipt: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.is_fatal = is_fatal
        self.receipt = receipt
