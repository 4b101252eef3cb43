"""State of one connected client for core and engine: its identity, its open subscriptions and transactions, and its
life cycle.

``TRANSITIONS`` lists each event that is legal in each state, and the state that follows. Work that was begun for a
client ends before the client does, and the client ends once. Each client ends in ``State.GONE``:

    READY <-> ASKING, READY <-> WORKING             its commands are carried out, or wait
    READY -> DISCONNECTING -> DISCONNECTED -> GONE  the client disconnects
    READY, ASKING, DISCONNECTING -> LOST -> GONE    its connection closes
    WORKING -> LOST_AT_WORK -> LOST -> GONE         its connection closes during work for it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from tandemmq.broker.core.commands import ClientError, Command, ErrorKind, Receipt, refusal
from tandemmq.broker.core.containment import tell
from tandemmq.broker.core.delivery import Outlet, Session, Subscription
from tandemmq.broker.core.memory import Holder
from tandemmq.broker.core.names import MQTT_RETAINED
from tandemmq.broker.core.open_transaction import Transaction
from tandemmq.broker.core.operations import Target
from tandemmq.broker.core.principal import Principal
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import XaTransactionId

NOBODY = Principal("nobody")


class State(Enum):
    """The states of a client's life."""

    READY = "its commands are carried out as they come"
    ASKING = "an answer is being waited for, and its commands wait"
    WORKING = "work for it runs in steps, and its commands wait"
    DISCONNECTING = "it disconnected cleanly, and its state ends"
    DISCONNECTED = "all that it had is over, and its receipt is due"
    LOST_AT_WORK = "its connection closed, and its work continues"
    LOST = "its connection closed, and its state ends"
    GONE = "all of it is over"


class Event(Enum):
    """The events of a client's life, each with its rule."""

    ASK = "a client waits for one thing at a time, while it is open"
    ANSWER = "a question has one answer"
    WORK = "work begins for an open client that waits for nothing"
    WORK_END = "work ends once"
    DISCONNECT = "a client disconnects once, after all its earlier commands"
    CLOSE = "a connection may close at any time"
    END = "the state of a client ends once, after its work"
    RECEIPT = "a disconnect has one receipt, after the end"


# More than any prefetch.
UNBOUNDED: Final = 1 << 62
_OPEN: Final = (State.READY, State.ASKING, State.WORKING)
# States in which output can still be sent to the client.
_THERE: Final = (*_OPEN, State.DISCONNECTING, State.DISCONNECTED)

TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.READY, Event.ASK): State.ASKING,
    (State.READY, Event.WORK): State.WORKING,
    (State.READY, Event.DISCONNECT): State.DISCONNECTING,
    (State.READY, Event.CLOSE): State.LOST,
    (State.ASKING, Event.ANSWER): State.READY,
    (State.ASKING, Event.CLOSE): State.LOST,
    (State.WORKING, Event.WORK_END): State.READY,
    (State.WORKING, Event.CLOSE): State.LOST_AT_WORK,
    (State.DISCONNECTING, Event.END): State.DISCONNECTED,
    (State.DISCONNECTING, Event.CLOSE): State.LOST,
    (State.DISCONNECTED, Event.RECEIPT): State.GONE,
    (State.DISCONNECTED, Event.CLOSE): State.GONE,
    (State.LOST_AT_WORK, Event.WORK_END): State.LOST,
    (State.LOST_AT_WORK, Event.CLOSE): State.LOST_AT_WORK,
    (State.LOST, Event.END): State.GONE,
    (State.LOST, Event.CLOSE): State.LOST,
    (State.GONE, Event.RECEIPT): State.GONE,
    (State.GONE, Event.CLOSE): State.GONE,
    # An answer may come late, when it is no longer needed.
    (State.LOST, Event.ANSWER): State.LOST,
    (State.GONE, Event.ANSWER): State.GONE,
}


class Connection(Outlet, Protocol):
    """Part of a connection that the engine uses. ``client`` is set by the engine."""

    client: Any

    @property
    def id(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def certificate(self) -> str | None:
        """Subject of the certificate that the client presented."""

    @property
    def has_hung_up(self) -> bool:
        """True if the peer closed the connection before the client announced it, and before the broker closed its
        end."""

    def await_hang_up(self) -> None: ...

    def await_login(self) -> None: ...

    def stop_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Client:
    """State of one connection in the engine. ``state``, its state in the life cycle, determines ``is_ready`` (commands
    are carried out at once), ``is_open`` (commands are accepted) and ``is_there`` (output can be sent to the client).
    These are plain values, because they are read for each message. Only ``move`` writes them."""

    connection: Connection
    holder: Holder = field(init=False)
    session: Session = field(init=False)
    id: str | None = field(default=None, init=False)
    shares_id: bool = field(default=False, init=False)  # other connections of its user may have the same id
    connection_id: str | None = field(default=None, init=False)  # the client's own name for its connection (OpenWire)
    # Queue of the broker with the state of this client's session, as the session named it; None: no such queue.
    private: Destination | None = field(default=None, init=False)
    # The broker acts for a client that is away, and gives way when that client connects.
    is_stand_in: bool = field(default=False, init=False)
    # The client has no socket: it is the broker, or the admin server on behalf of a user.
    is_inside: bool = field(default=False, init=False)
    # An operator, connected with the client id of another user: it creates no state under that id (id_owners).
    is_guest: bool = field(default=False, init=False)
    # The broker does later work for the user through this client, which has no connection.
    is_acting: bool = field(default=False, init=False)
    is_due: bool = field(default=False, init=False)  # the action was allowed when its user requested it
    principal: Principal = field(default=NOBODY, init=False)
    user_id: str | None = field(default=None, init=False)  # the sender that its messages name
    # The commands that wait: for an answer, for the end of work, or, after a disconnect, for the end of the client.
    waiting: list[Command] = field(default_factory=list, init=False)
    is_held: bool = field(default=False, init=False)  # reading is stopped because its commands wait
    _unread: int = field(default=0, init=False)  # number of callers that stopped it
    is_lost: bool = field(default=False, init=False)  # its connection ended without a Disconnect, and not by the broker
    # Destinations that it may send to; and the targets of those that take every message. They are looked up once, and
    # used for each message.
    may_send: set[Destination] = field(default_factory=set, init=False)
    targets: dict[Destination, Target] = field(default_factory=dict, init=False)
    producers: dict[str, Destination | None] = field(default_factory=dict, init=False)
    temporaries: set[Destination] = field(default_factory=set, init=False)
    state: State = field(default=State.READY, init=False)
    is_ready: bool = field(default=True, init=False)
    is_open: bool = field(default=True, init=False)
    is_there: bool = field(default=True, init=False)
    subscriptions: dict[str, Subscription] = field(default_factory=dict, init=False)
    # Maximum number of messages that its next subscription to queues receives at once; the others follow later.
    first_deliveries: int = field(default=UNBOUNDED, init=False)
    transactions: dict[str, Transaction] = field(default_factory=dict, init=False)
    transactions_begun: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.holder = self.connection.holder
        self.session = self.connection.session

    def move(self, event: Event) -> State:
        """Apply ``event`` and return the state that follows. Only the client's owner calls it
        (broker.engine.clients)."""
        state = TRANSITIONS.get((self.state, event))
        assert state is not None, f"{event.value}; the state of this client: {self.state.value}"
        self.state = state
        self.is_ready = state is State.READY
        self.is_open = state in _OPEN
        self.is_there = state in _THERE
        return state

    def stop_reading(self) -> None:
        """Stop reading from the connection until each caller has called ``resume_reading``."""
        self._unread += 1
        if self._unread == 1:
            self.connection.stop_reading()

    def resume_reading(self) -> None:
        """Undo one ``stop_reading``."""
        self._unread -= 1
        if not self._unread:
            self.connection.resume_reading()

    def owns(self, destination: Destination) -> bool:
        """Return whether ``destination`` is the queue of the session's state, which needs no rights."""
        return destination == self.private

    def may_feed(self, destination: Destination) -> bool:
        """Return whether the session sends to ``destination`` on the broker's behalf, which needs no rights."""
        return self.private is not None and destination in (self.private, MQTT_RETAINED)

    def send_receipt(self, receipt: Receipt | None) -> None:
        """Confirm the command with ``receipt`` (None: no receipt). Sent only while the client is there."""
        if receipt is not None and self.is_there:
            tell(self.connection, self.session.receipt, receipt)

    def send_prepared(self, receipt: Receipt | None, *, is_read_only: bool) -> None:
        """Report that a branch is prepared, or had nothing to prepare."""
        if receipt is not None and self.is_there:
            tell(self.connection, self.session.prepared, receipt, is_read_only)

    def send_recovered(self, receipt: Receipt | None, branches: Sequence[XaTransactionId]) -> None:
        """Report the branches that are prepared."""
        if receipt is not None and self.is_there:
            tell(self.connection, self.session.recovered, receipt, branches)

    def send_failure(self, error: ClientError) -> None:
        """Report that a requested operation failed."""
        if self.is_there:
            tell(self.connection, self.session.fail, error)

    def client_id(self) -> str:
        """Return the client id that CONNECT gave. ClientError if it gave none."""
        if self.id is None:
            raise refusal(
                "A durable subscription needs a client id", "CONNECT with the header client-id.", ErrorKind.CLIENT_ID
            )
        return self.id


class ReceiptDue:
    """Client that waits until the store has made an operation durable, and the receipt to send then (None: no
    receipt)."""

    __slots__ = ("client", "receipt")

    def __init__(self, client: Client, receipt: Receipt | None) -> None:
        self.client = client
        self.receipt = receipt

    def durable(self, operation: object) -> None:
        """Send the receipt: the operation is durable."""
        client = self.client
        if self.receipt is not None and client.is_there:  # unlike ``send_receipt``: the caller handles its errors
            client.session.receipt(self.receipt)
            client.connection.touch()
