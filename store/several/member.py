"""One of several stores, and what waits for it or with it. All on the event loop."""

from __future__ import annotations

from collections import deque

from store.operations import AddMessage, Atomic, Operation, RemoveOwner
from store.records.message import Destination
from store.several.joint import Joint, Late, Phase
from store.space import StoreFull
from store.store import Store

# So much may wait behind joint operations or for a new store, over all stores; then producers wait.
WAITING_OPERATIONS_MAX = 20_000
WAITING_BYTES_MAX = 32 << 20


class Backlog:
    """What waits in the members of all stores together; producers wait when it is too much."""

    __slots__ = ("bytes", "operations")

    def __init__(self) -> None:
        self.operations = 0
        self.bytes = 0

    @property
    def is_too_much(self) -> bool:
        return self.operations > WAITING_OPERATIONS_MAX or self.bytes > WAITING_BYTES_MAX

    def add(self, operation: Operation | Joint, sign: int) -> None:
        self.operations += sign
        if isinstance(operation, AddMessage):
            self.bytes += sign * len(operation.payload)


class Member:
    """See the module. ``store`` is None until a store that was made for a new destination is there.

    ``waiting`` is what was handed over and may not go on yet, in order: joint operations that are not decided, and all
    that came after them. ``unreported`` is what came back and may not be told yet, because ``gate``, a joint operation
    that is visible in this store already, is not ended in all others.
    """

    __slots__ = (
        "_backlog",
        "_new",
        "_plain",
        "_unprepared",
        "first_owner",
        "gate",
        "name",
        "steps",
        "store",
        "unreported",
        "waiting",
    )

    def __init__(self, name: str, first_owner: int, store: Store | None, backlog: Backlog) -> None:
        self.name = name
        self.first_owner = first_owner
        self.store = store
        self.waiting: deque[Operation | Joint] = deque()
        self.unreported: list[Operation] = []
        self.gate: Joint | None = None
        self.steps = 0  # how many of the operations under way are not the engine's own
        self._backlog = backlog
        self._unprepared = 0  # how many joint operations among them this store was not asked to prepare yet
        self._plain = 0  # how many of those that wait are no joint operations
        self._new: list[_NewOwner] = []  # those that a store is to be told that is not there yet

    @property
    def is_busy(self) -> bool:
        """Whether anything was handed over for it that was not told yet."""
        store = self.store
        return bool(self.waiting or self.gate) or (store is not None and store.has_pending)

    # ---- owners

    def queue(self, destination: Destination) -> int:
        """As ``Store.queue``."""
        return self._new_owner(destination, ("", "")) if self.store is None else self.store.queue(destination)

    def subscription(self, client_id: str, name: str, destination: Destination) -> int:
        """As ``Store.subscription``."""
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
        """``store``, new and empty, is there: it is told the owners that were numbered meanwhile."""
        for new in self._new:
            client_id, name = new.subscriber
            is_queue = not new.destination.is_topic
            given = store.queue(new.destination) if is_queue else store.subscription(client_id, name, new.destination)
            assert given == new.id, "a new store numbers its owners from the first"
            if new.is_removed:
                store.forget(given)
        self._new = []
        self.store = store

    # ---- in

    def take(self, operation: Operation) -> None:
        """Hand over one operation of this store alone. Raises StoreFull as ``Store.append``."""
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
        """The name of an owner is free at once, as when nothing waits."""
        if self.store is not None:
            self.store.forget(owner)
        for new in self._new:
            new.is_removed = new.is_removed or new.id == owner

    def join(self, joint: Joint) -> None:
        """Take part in a joint operation, behind all that was handed over before."""
        self._wait(joint)
        if self._plain or self.store is None:
            self._unprepared += joint.must_prepare
            return
        if joint.must_prepare_in(self.name):
            self.ask(joint, Phase.PREPARE)
        if self.waiting[0] is joint:
            self.go_on()

    def go_on(self) -> None:
        """Hand over what waits, as far as it may go."""
        store = self.store
        if store is None:
            return
        waiting = self.waiting
        while waiting:
            item = waiting[0]
            if isinstance(item, Joint):
                if self._unprepared:
                    self._prepare_joints()
                if not item.may_go_on:
                    return
            waiting.popleft()
            self._backlog.add(item, -1)
            if isinstance(item, Joint):
                if item.is_visible:
                    self.ask(item, Phase.END)
                continue
            self._plain -= 1
            if type(item) is AddMessage:
                self.steps += 1
                store.append(Atomic((item,), None, Late(item)))
            else:
                store.append(item)

    def _prepare_joints(self) -> None:
        """Joint operations that follow each other are prepared together."""
        for item in self.waiting:
            if not isinstance(item, Joint):
                return
            if item.must_prepare_in(self.name):
                self._unprepared -= 1
                self.ask(item, Phase.PREPARE)

    def ask(self, joint: Joint, phase: Phase) -> None:
        assert self.store is not None, "only an open store is asked"
        self.steps += 1
        self.store.append(joint.step(phase, self.name))


class _NewOwner:
    """A queue or durable subscription of a store that is not there yet."""

    __slots__ = ("destination", "id", "is_removed", "subscriber")

    def __init__(self, id: int, destination: Destination, subscriber: tuple[str, str]) -> None:
        self.id = id
        self.destination = destination
        self.subscriber = subscriber  # client id and name, empty for a queue
        self.is_removed = False
