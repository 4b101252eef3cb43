"""Protocols between the parts of the engine, the store and the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandemmq.broker.core.advisor import MessageEvent
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.store.operations import AddMessage, Operation, OrderKey, Owner, PreparedTransaction, RemoveMessage
from tandemmq.store.records.message import Destination, Message

# (work, then): does ``work`` in a thread, and calls ``then`` on the loop afterwards.
InThread = Callable[[Callable[[], object], Callable[[], None]], object]
# (seconds, function): ``call_later`` of the loop.
CallLater = Callable[[float, Callable[[], None]], object]
# Begins work, whose steps are done in slices of the loop's time.
Start = Callable[[Work[None]], object]


class Store(Protocol):
    """Functions of a store that the engine uses (store.store.Store; tests have one in memory)."""

    epoch: int
    handed_over: int

    @property
    def is_congested(self) -> bool: ...

    @property
    def is_full(self) -> bool: ...

    @property
    def full_reason(self) -> str: ...

    def user_balance(self, user: str) -> int: ...

    def may_speak(self) -> bool: ...

    def take_reports(self) -> bool: ...

    def check_fence_soon(self) -> None: ...

    def queue(self, destination: Destination) -> int: ...

    def subscription(self, client_id: str, name: str, destination: Destination) -> int: ...

    def append(self, operation: Operation) -> None: ...

    def owners(self) -> Iterable[Owner]: ...

    def is_of_former_term(self, owner: int, order_key: OrderKey) -> bool:
        """Return whether a message was stored before this broker became master."""

    def connections(self) -> list[tuple[str, str]]: ...

    def prepared(self) -> list[PreparedTransaction]: ...


class Completion(Protocol):
    """Continuation of an operation of the store. It is created with the operation, and called when the operation is
    durable."""

    @property
    def client(self) -> Client | None:
        """Client that waits for the operation."""

    def durable(self, operation: Any) -> Work[None] | None:
        """Continue after ``operation`` has become durable. The caller must do the returned work before the next
        operation. Queues that got messages are in ``Dispatcher.touched``, and are dispatched at the end of the step."""


class DueSender(Protocol):
    """Sends scheduled messages that are due."""

    def acting_for(self, user: str | None) -> Client:
        """Return a client for later work of ``user``, with the rights that the user has now. The client receives no
        messages. Raise ClientError as Access.identify does."""

    def check_due(self, client: Client, message: Message) -> None:
        """Raise ClientError if a destination that ``message`` would reach is closed to ``client``."""

    def check_room(self, message: Message) -> None:
        """Raise ClientError if ``message`` exceeds the limit of its user (user_stored_bytes_max)."""

    def send_due(
        self, client: Client, message: Message, parts: Sequence[AddMessage | RemoveMessage], pace: Pace
    ) -> Work[None]:
        """Store ``message`` in its destinations, in one Atomic with ``parts``. When that is durable, make the message
        visible, in steps. Raise ClientError if ``message`` cannot be sent; then nothing was stored."""

    def bury_due(
        self, user: str | None, message: Message, cause: str, parts: Sequence[AddMessage | RemoveMessage]
    ) -> Destination | None:
        """Store ``message`` of ``user`` as a dead letter, in one Atomic with ``parts``. Return its destination, or None
        if the policy keeps no such dead letter."""


@dataclass(slots=True, eq=False, repr=False)
class Callback:
    """Completion that calls ``durable``; ``client``: the client that waits, if any."""

    client: Client | None
    durable: Callable[[Any], Work[None] | None]


class Tracing(Protocol):
    """Receives the events of messages if the operator has configured tracing (broker.engine.tracing)."""

    def sent(self, message: Message) -> None: ...

    def refused(self, message: Message, reason: str) -> None: ...

    def arrived(self, message: Message) -> None: ...

    def delivered(self, message: Message, destination: Destination) -> None: ...


# (event, message, destination, consumer): reports an event of a message. The consumer is None if none is concerned.
Notify = Callable[[MessageEvent, Message, Destination, Subscription | None], None]
