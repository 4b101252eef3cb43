"""Member: one of several stores, and the operations that wait for it. All on the event loop."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tandemmq.store.operations import AddMessage, Atomic, EndTransaction, Operation, PrepareTransaction, RemoveOwner
from tandemmq.store.records.message import Destination
from tandemmq.store.several.joint import Completion, Joint
from tandemmq.store.store import Store
from tandemmq.store.writer.space import StoreFull

# Limits, for all stores together, of operations that wait for joint operations or for a new store. Above them,
# producers wait.
WAITING_OPERATIONS_MAX = 20_000
WAITING_BYTES_MAX = 32 << 20


@dataclass(slots=True, eq=False)
class Backlog:
    """Size of all waiting operations of all members. Producers wait while it ``is_too_much``."""

    operations: int = 0
    bytes: int = 0

    @property
    def is_too_much(self) -> bool:
        return self.operations > WAITING_OPERATIONS_MAX or self.bytes > WAITING_BYTES_MAX

    def add(self, operation: Operation | Joint, sign: int) -> None:
        self.operations += sign
        if isinstance(operation, AddMessage):
            self.bytes += sign * len(operation.payload)


@dataclass(slots=True, eq=False, repr=False)
class Member:
    """Member of a group of stores. ``store`` is None while the store of a new destination is being made.

    waiting     submitted operations that cannot be executed yet, in order: joint operations without a decision, and all
                operations after them
    unreported  durable operations that may not be reported yet, because of ``gate``
    gate        a joint operation that this store has ended, and that another store has not ended yet
    steps       number of submitted operations whose context is a Completion
    """

    name: str
    first_owner: int
    store: Store | None
    _backlog: Backlog
    waiting: deque[Operation | Joint] = field(default_factory=deque, init=False)
    unreported: list[Operation] = field(default_factory=list, init=False)
    gate: Joint | None = field(default=None, init=False)
    steps: int = field(default=0, init=False)
    _unprepared: int = field(default=0, init=False)  # waiting joint operations that this store must still prepare
    _plain: int = field(default=0, init=False)  # waiting operations that are no joint operations
    _new: list[_NewOwner] = field(default_factory=list, init=False)  # owners of a store that does not exist yet

    @property
    def is_busy(self) -> bool:
        """True if an operation was submitted to this store and not reported yet."""
        store = self.store
        return bool(self.waiting or self.gate) or (store is not None and store.has_pending)

    # ---- owners

    def queue(self, destination: Destination) -> int:
        """Return the owner id of a queue. See ``Store.queue``."""
        return self._new_owner(destination, ("", "")) if self.store is None else self.store.queue(destination)

    def subscription(self, client_id: str, name: str, destination: Destination) -> int:
        """Return the owner id of a durable subscription. See ``Store.subscription``."""
        if self.store is None:
            return self._new_owner(destination, (client_id, name))
        return self.store.subscription(client_id, name, destination)

    def _new_owner(self, destination: Destination, subscriber: tuple[str, str]) -> int:
        for known in self._new:
            if not known.is_removed and known.destination == destination and known.subscriber == subscriber:
                return known.id
        new = _NewOwner(self.first_owner + 1 + len(self._new), destination, subscriber)
        self._new.append(new)
        return new.id

    def open(self, store: Store) -> None:
        """Set the new, empty ``store``, and create in it the owners that have an id already."""
        for new in self._new:
            client_id, name = new.subscriber
            is_queue = not new.destination.is_topic
            given = store.queue(new.destination) if is_queue else store.subscription(client_id, name, new.destination)
            assert given == new.id, "a new store numbers its owners from the first"
            if new.is_removed:
                store.forget(given)
        self._new = []
        self.store = store

    # ---- submitting

    def take(self, operation: Operation) -> None:
        """Submit an operation that concerns only this store. Raises StoreFull like ``Store.append``."""
        store = self.store
        if not self.waiting and store is not None:
            store.append(operation)
            return
        if store is not None and store.is_full and type(operation) is AddMessage:
            raise StoreFull(store.full_reason)
        self._wait(operation)
        self._plain += 1
        if type(operation) is RemoveOwner:
            self._forget(operation.owner)

    def _wait(self, item: Operation | Joint) -> None:
        self.waiting.append(item)
        self._backlog.add(item, 1)

    def _forget(self, owner: int) -> None:
        """Free the name of an owner at once, although its RemoveOwner waits."""
        if self.store is not None:
            self.store.forget(owner)
        for new in self._new:
            new.is_removed = new.is_removed or new.id == owner

    def join(self, joint: Joint) -> None:
        """Submit a joint operation, which is executed after all operations that were submitted before."""
        self._wait(joint)
        if self._plain or self.store is None:
            self._unprepared += joint.must_prepare
            return
        if joint.must_prepare_in(self.name):
            self.submit_step(joint.prepare(self.name))
        if self.waiting[0] is joint:
            self.submit_waiting()

    def submit_waiting(self) -> None:
        """Submit the waiting operations that can be executed now to the store."""
        store = self.store
        if store is None:
            return
        waiting = self.waiting
        while waiting:
            item = waiting[0]
            if isinstance(item, Joint):
                if self._unprepared:
                    self._prepare_joints()
                if not item.may_continue:
                    return
            waiting.popleft()
            self._backlog.add(item, -1)
            if isinstance(item, Joint):
                if item.is_visible:
                    self.submit_step(item.end(self.name))
                continue
            self._plain -= 1
            if type(item) is AddMessage:
                self.steps += 1
                store.append(Atomic((item,), None, _WaitingAdd(item)))
            else:
                store.append(item)

    def _prepare_joints(self) -> None:
        """Prepare all waiting joint operations up to the first other operation."""
        for item in self.waiting:
            if not isinstance(item, Joint):
                return
            if item.must_prepare_in(self.name):
                self._unprepared -= 1
                self.submit_step(item.prepare(self.name))

    def submit_step(self, step: PrepareTransaction | EndTransaction) -> None:
        """Submit a step of a joint operation. Its context is a Completion."""
        assert self.store is not None, "only an open store takes steps"
        self.steps += 1
        self.store.append(step)


@dataclass(slots=True, eq=False)
class _NewOwner:
    """Queue or durable subscription of a store that does not exist yet."""

    id: int
    destination: Destination
    subscriber: tuple[str, str]  # client id and name, empty for a queue
    is_removed: bool = False


@dataclass(slots=True, eq=False)
class _WaitingAdd(Completion):
    """Context of an Atomic with one message that was accepted and had to wait. In an Atomic, a full disk cannot refuse
    it."""

    operation: AddMessage
    passes_gate = False

    def durable(self, store: str, reports: list[Operation]) -> None:
        reports.append(self.operation)
