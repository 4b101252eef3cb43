"""One connected client, as core and engine see it: who it is, what it has open, and whether it can be told anything."""

from __future__ import annotations

from typing import Any, Protocol

from broker.core.commands import ClientError
from broker.core.subscription import Session, Subscription
from broker.core.transaction import Transaction


class Connection(Protocol):
    """What the engine uses of a connection. ``client`` is the engine's own slot in it."""

    client: Any

    @property
    def id(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def session(self) -> Session: ...

    @property
    def is_writable(self) -> bool: ...

    def touch(self) -> None: ...

    def close(self, after_flush: bool = True) -> None: ...


class Client:
    """What the engine knows of one connection. ``is_open``: commands count; ``is_there``: it can be told something."""

    __slots__ = (
        "connection",
        "id",
        "is_open",
        "is_there",
        "session",
        "subscriptions",
        "transactions",
        "transactions_begun",
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.session = connection.session
        self.id: str | None = None
        self.is_open = True
        self.is_there = True
        self.subscriptions: dict[str, Subscription] = {}
        self.transactions: dict[str, Transaction] = {}
        self.transactions_begun = 0

    def tell_receipt(self, receipt: str | None) -> None:
        """What asked for ``receipt`` (None: nothing did) holds. Told only while somebody is there."""
        if receipt is not None and self.is_there:
            self.session.receipt(receipt)
            self.connection.touch()

    def client_id(self) -> str:
        """The client id that CONNECT gave. ClientError if it gave none."""
        if self.id is None:
            raise ClientError("A durable subscription needs a client id", "CONNECT with the header client-id.")
        return self.id


# What the store is given as context: who waits, and for which receipt.
Waiting = tuple[Client, str | None]
