"""One connected client, as core and engine see it: who it is, what it has open, and whether it can be told anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from broker.core.access import Principal
from broker.core.commands import ClientError, Command, ErrorKind, Receipt
from broker.core.memory import Holder
from broker.core.queue import Queue
from broker.core.subscription import Session, Subscription
from broker.core.telling import tell
from broker.core.transaction import Transaction
from store.records.message import Destination
from store.records.transactions import XaTransactionId

NOBODY = Principal("nobody")


class Connection(Protocol):
    """What the engine uses of a connection. ``client`` is the engine's own slot in it."""

    client: Any
    is_held: bool

    @property
    def holder(self) -> Holder: ...

    @property
    def id(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def certificate(self) -> str | None:
        """The subject of the certificate that the client showed."""

    @property
    def session(self) -> Session: ...

    @property
    def is_writable(self) -> bool: ...

    def touch(self) -> None: ...

    def close(self, after_flush: bool = True) -> None: ...

    def await_hang_up(self) -> None: ...

    def await_login(self) -> None: ...

    def stop_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Client:
    """What the engine knows of one connection. ``is_open``: commands count; ``is_there``: it can be told something."""

    __slots__ = (
        "awaited",
        "connection",
        "connection_id",
        "holder",
        "id",
        "is_busy",
        "is_open",
        "is_there",
        "may_send",
        "principal",
        "producers",
        "session",
        "subscriptions",
        "targets",
        "temporaries",
        "transactions",
        "transactions_begun",
        "user_id",
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.holder = connection.holder
        self.session = connection.session
        self.id: str | None = None
        self.connection_id: str | None = None  # its own name for its connection (OpenWire)
        self.principal = NOBODY
        self.user_id: str | None = None  # what its messages say of who sent them
        # What it said while it was found out who it is; None: that is not going on.
        self.awaited: list[Command] | None = None
        # Where it may send, and of those the queues that take whatever comes: looked up once, for each message.
        self.may_send: set[Destination] = set()
        self.targets: dict[Destination, Queue] = {}
        self.producers: dict[str, Destination | None] = {}
        self.temporaries: set[Destination] = set()
        self.is_open = True
        self.is_there = True
        self.is_busy = False  # something that it asked for takes several steps, and goes on
        self.subscriptions: dict[str, Subscription] = {}
        self.transactions: dict[str, Transaction] = {}
        self.transactions_begun = 0

    def tell_receipt(self, receipt: Receipt | None) -> None:
        """What asked for ``receipt`` (None: nothing did) holds. Told only while somebody is there."""
        if receipt is not None and self.is_there:
            tell(self.connection, self.session.receipt, receipt)

    def tell_prepared(self, receipt: Receipt | None, *, is_read_only: bool) -> None:
        """A branch is prepared, or had nothing to prepare."""
        if receipt is not None and self.is_there:
            tell(self.connection, self.session.prepared, receipt, is_read_only)

    def tell_recovered(self, receipt: Receipt | None, branches: Sequence[XaTransactionId]) -> None:
        """Those branches are prepared."""
        if receipt is not None and self.is_there:
            tell(self.connection, self.session.recovered, receipt, branches)

    def tell_failure(self, error: ClientError) -> None:
        """What was asked for, and was under way, came to nothing."""
        if self.is_there:
            tell(self.connection, self.session.fail, error)

    def client_id(self) -> str:
        """The client id that CONNECT gave. ClientError if it gave none."""
        if self.id is None:
            raise ClientError(
                "A durable subscription needs a client id",
                "CONNECT with the header client-id.",
                is_fatal=False,
                kind=ErrorKind.CLIENT_ID,
            )
        return self.id


# What the store is given as context: who waits, and for which receipt.
Waiting = tuple[Client, Receipt | None]
