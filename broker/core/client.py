"""One connected client, as core and engine see it: who it is, what it has open, and whether it can be sent anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tandemmq.broker.core.commands import ClientError, Command, ErrorKind, Receipt, refusal
from tandemmq.broker.core.containment import tell
from tandemmq.broker.core.delivery import Outlet, Session, Subscription
from tandemmq.broker.core.fan_out import Target
from tandemmq.broker.core.memory import Holder
from tandemmq.broker.core.names import MQTT_RETAINED
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.transaction import Transaction
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import XaTransactionId

NOBODY = Principal("nobody")


class Connection(Outlet, Protocol):
    """What the engine uses of a connection. ``client`` is the engine's own slot in it."""

    client: Any

    @property
    def id(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def certificate(self) -> str | None:
        """The subject of the certificate that the client showed."""

    def await_hang_up(self) -> None: ...

    def await_login(self) -> None: ...

    def stop_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Client:
    """What the engine knows of one connection. ``is_open``: commands count; ``is_there``: it can be sent something."""

    connection: Connection
    holder: Holder = field(init=False)
    session: Session = field(init=False)
    id: str | None = field(default=None, init=False)
    connection_id: str | None = field(default=None, init=False)  # its own name for its connection (OpenWire)
    # Which of the broker's own queues is its, as its session said; None: none is.
    private: Destination | None = field(default=None, init=False)
    # The broker acts for a client that is away: it gives way when that comes itself.
    is_stand_in: bool = field(default=False, init=False)
    principal: Principal = field(default=NOBODY, init=False)
    user_id: str | None = field(default=None, init=False)  # what its messages say of who sent them
    # What it said while it was found out who it is; None: that is not going on.
    awaited: list[Command] | None = field(default=None, init=False)
    # Where it may send, and of those what takes whatever comes: looked up once, for each message.
    may_send: set[Destination] = field(default_factory=set, init=False)
    targets: dict[Destination, Target] = field(default_factory=dict, init=False)
    producers: dict[str, Destination | None] = field(default_factory=dict, init=False)
    temporaries: set[Destination] = field(default_factory=set, init=False)
    is_open: bool = field(default=True, init=False)
    is_there: bool = field(default=True, init=False)
    is_busy: bool = field(default=False, init=False)  # something that it asked for takes several steps, and goes on
    subscriptions: dict[str, Subscription] = field(default_factory=dict, init=False)
    transactions: dict[str, Transaction] = field(default_factory=dict, init=False)
    transactions_begun: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.holder = self.connection.holder
        self.session = self.connection.session

    @property
    def is_asked_for(self) -> bool:
        """Whether something is being found out, and what the client says meanwhile waits."""
        return self.awaited is not None

    def owns(self, destination: Destination) -> bool:
        """Whether that is the queue of its session's state: no rights are asked for."""
        return destination == self.private

    def may_feed(self, destination: Destination) -> bool:
        """Whether its session sends there on the broker's behalf: likewise."""
        return self.private is not None and destination in (self.private, MQTT_RETAINED)

    def send_receipt(self, receipt: Receipt | None) -> None:
        """The command that asked for ``receipt`` (None: no receipt) holds. Sent only while the client is there."""
        if receipt is not None and self.is_there:
            tell(self.connection, self.session.receipt, receipt)

    def send_prepared(self, receipt: Receipt | None, *, is_read_only: bool) -> None:
        """A branch is prepared, or had nothing to prepare."""
        if receipt is not None and self.is_there:
            tell(self.connection, self.session.prepared, receipt, is_read_only)

    def send_recovered(self, receipt: Receipt | None, branches: Sequence[XaTransactionId]) -> None:
        """Those branches are prepared."""
        if receipt is not None and self.is_there:
            tell(self.connection, self.session.recovered, receipt, branches)

    def send_failure(self, error: ClientError) -> None:
        """What was asked for, and was under way, came to nothing."""
        if self.is_there:
            tell(self.connection, self.session.fail, error)

    def client_id(self) -> str:
        """The client id that CONNECT gave. ClientError if it gave none."""
        if self.id is None:
            raise refusal(
                "A durable subscription needs a client id", "CONNECT with the header client-id.", ErrorKind.CLIENT_ID
            )
        return self.id


class ReceiptDue:
    """Who waits until an operation holds that the store was given, and for which receipt (None: for none)."""

    __slots__ = ("client", "receipt")

    def __init__(self, client: Client, receipt: Receipt | None) -> None:
        self.client = client
        self.receipt = receipt

    def durable(self, operation: object) -> None:
        """It holds."""
        client = self.client
        if self.receipt is not None and client.is_there:  # as ``send_receipt``: what it raises is the caller's affair
            client.session.receipt(self.receipt)
            client.connection.touch()
