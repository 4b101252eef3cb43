"""Several stores behind the interface of one (``store.store.Store``): each operation goes to the store of its owner.

Guarantees to the engine:

- **Order within an owner.** All of an owner is in one store, and a store keeps its order. A joint operation (one that
  concerns several stores, ``joint``) is a barrier in each of them: later operations wait there until it is decided, and
  their results are reported only when it is ended in all of them. So additions and Pages of a queue are reported in the
  order in which they happened, also where a transaction is visible in one store before another.
- **An empty Atomic** comes back when all operations that were handed over before it have come back, from any store.
- Nothing else is ordered between stores: a receipt of one does not wait for the disk of another.

**The store of a destination.** A store that holds something of it (messages, a durable subscription, an operation of a
prepared transaction) keeps it, whatever the filters are now; else the filters choose. So filters may be changed at any
restart, and a destination moves when its old store has no more of it.

**A new store** (of an entry with a store for each destination) is made while others continue; operations for it
wait. It serves no client before a write to txStore, with its fence check, followed the creation of its journal: a
successor lists the directories after it fenced txStore, so either it finds the new store, or the old master is deposed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tandemmq.store.histogram import Histogram
from tandemmq.store.maintenance.compaction import CompactionReport
from tandemmq.store.operations import (
    AddConnection,
    AddMessage,
    Atomic,
    EndTransaction,
    Engine,
    Operation,
    Owner,
    PreparedTransaction,
    PrepareTransaction,
)
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId
from tandemmq.store.recovery.prediction import Prediction, together
from tandemmq.store.several import sums
from tandemmq.store.several.filters import OUTCOMES_DIRECTORY, directory_name
from tandemmq.store.several.joint import Completion, Joint, Part, completed, decision, joint_id, transaction_of
from tandemmq.store.several.layout import OWNER_BITS, Layout
from tandemmq.store.several.member import Backlog, Member
from tandemmq.store.several.store_maker import StoreMaker
from tandemmq.store.store import Store, Watching
from tandemmq.store.writer.figures import Figures

log = logging.getLogger(__name__)

# Stores that are closed, or dropped, at a time.
CLOSING_THREADS = 16


@dataclass(frozen=True, slots=True)
class Term:
    """Result of the promotion of several stores. ``homes``: the store that has something of a destination."""

    epoch: int
    recovery_seconds: float
    stores: Mapping[str, Store]
    outcomes: Store
    homes: Mapping[Destination, str]
    # For each transaction that is still prepared: the stores that it is prepared in.
    prepared: Mapping[str, tuple[str, ...]]


class SeveralStores:
    """Several stores behind the interface of one. All methods except ``close``, ``halt`` and ``drop`` are called on the
    event loop, and never block.

    ``make_store`` makes a new store by name, blocking, on a thread of its own; ``call_soon`` runs a function on the
    loop, from any thread.
    """

    def __init__(
        self,
        layout: Layout,
        term: Term,
        *,
        make_store: Callable[[str], Store],
        call_soon: Callable[[Callable[[], None]], object],
        on_lost: Callable[[BaseException], None],
    ) -> None:
        self.epoch = term.epoch
        self.recovery_seconds = term.recovery_seconds
        self.records_replayed = sum(store.records_replayed for store in (*term.stores.values(), term.outcomes))
        self._layout = layout
        self._call_soon = call_soon
        self._engine: Engine | None = None
        self._loop: Watching | None = None
        self._backlog = Backlog()
        self._outcomes = Member("", 0, term.outcomes, self._backlog)
        self._members: dict[str, Member] = {}
        self._by_number: dict[int, Member] = {}
        for name, store in term.stores.items():
            self._know(Member(name, layout.number(name) << OWNER_BITS, store, self._backlog))
        self._homes = {destination: self._members[name] for destination, name in term.homes.items()}
        self._prepared_in = {key: [self._members[name] for name in names] for key, names in term.prepared.items()}
        self._active: set[Member] = set()
        self._was_congested = False
        self.handed_over = 0  # operations so far
        self._under_way = 0  # joint operations and markers that have not come back
        self._numbers = 0
        self._threads = layout.threads
        self._store_maker = StoreMaker(
            make_store, call_soon, made=self._check_before_opening, on_lost=on_lost, threads=self._threads
        )

    def _know(self, member: Member) -> None:
        self._members[member.name] = member
        self._by_number[member.first_owner >> OWNER_BITS] = member

    # ---- the stores

    def members(self) -> dict[str, Store]:
        """Return the stores that are there, by the name of their directory, without txStore."""
        return {name: member.store for name, member in self._members.items() if member.store is not None}

    @property
    def outcomes(self) -> Store:
        """Store of outcomes, txStore."""
        assert self._outcomes.store is not None, "it is there from the beginning"
        return self._outcomes.store

    def start(self, engine: Engine, loop: Watching | None = None) -> None:
        """Start all stores, as ``Store.start`` does."""
        self._engine = engine
        self._loop = loop
        for member in (*self._members.values(), self._outcomes):
            assert member.store is not None, "new stores come later"
            member.store.start(_StoreListener(self, member), loop)

    def owners(self) -> list[Owner]:
        """Return every queue and durable subscription with its messages at promotion; each is in one store."""
        found: list[Owner] = []
        for member in self._members.values():
            assert member.store is not None, "called before the start"
            found += [owner for owner in member.store.owners() if self._is_home(member, owner)]
        return found

    def _is_home(self, member: Member, owner: Owner) -> bool:
        home = self._homes.get(owner.destination)
        return member is (home or self._members.get(self._chosen(owner.destination)))

    def connections(self) -> list[tuple[str, str]]:
        """Return the connections of all stores, as ``Store.connections`` does. One of them may have been the only store
        before."""
        return [pair for store in (*self.members().values(), self.outcomes) for pair in store.connections()]

    def prepared(self) -> list[PreparedTransaction]:
        """Return the transactions that were prepared at promotion: in doubt until EndTransaction."""
        return sums.prepared_in(self.members().values())

    @property
    def figures(self) -> Figures:
        """Sums over all stores; ``last_seen_alive`` is that of the store that was silent longest."""
        return sums.figures_of((*self.members().values(), self.outcomes))

    def measured(self) -> dict[str, Histogram]:
        """Return the histograms of all stores together, as ``Store.measured`` does."""
        return sums.measured_in((*self.members().values(), self.outcomes))

    def statistics(self) -> list[dict[str, Any]]:
        """Return figures for ``status``: each store by the name of its directory, txStore last."""
        return sums.statistics_of({**dict(sorted(self.members().items())), OUTCOMES_DIRECTORY: self.outcomes})

    @property
    def is_full(self) -> bool:
        """True if some store refuses producers because disk space is short; ``full_reason`` names the store."""
        return any(store.is_full for store in self.members().values())

    @property
    def full_reason(self) -> str:
        return sums.full_reason_of(self.members().values())

    @property
    def archive_problem(self) -> str | None:
        """Reason why journal files of some store wait to be moved into their archive, or None."""
        return sums.archive_problem_of(self.members())

    def compact(self) -> Future[CompactionReport]:
        """Compact now all files with more than a little dead content, in all stores; the report sums up."""
        return sums.compact((*self.members().values(), self.outcomes), self._call_soon)

    def user_balance(self, user: str) -> int:
        """Return the balance of a user over all stores, as ``Store.user_balance`` does."""
        return sum(store.user_balance(user) for store in self.members().values())

    def take_reports(self) -> bool:
        """Do what ``Store.take_reports`` does, for all stores."""
        taken = [store.take_reports() for store in (*self.members().values(), self.outcomes)]
        return any(taken)

    def may_speak(self) -> bool:
        """Return the answer of ``Store.may_speak`` for any store."""
        return any(store.may_speak() for store in (*self.members().values(), self.outcomes))

    def check_fence_soon(self) -> None:
        """Do what ``Store.check_fence_soon`` does."""
        self.outcomes.check_fence_soon()

    def seen_alive(self) -> float:
        """Return the oldest ``Store.seen_alive`` of the stores and of the thread that makes new ones."""
        stores = (*self.members().values(), self.outcomes)
        return min(self._store_maker.seen_alive(), *(store.seen_alive() for store in stores))

    def checkpoint(self) -> Sequence[Future[None]]:
        """Do what ``Store.checkpoint`` does, in all stores."""
        return [done for store in (*self.members().values(), self.outcomes) for done in store.checkpoint()]

    def prediction(self, lock_seconds: float = 0.0) -> Prediction:
        """Return the prediction for all stores, as ``Store.prediction`` does."""
        return together([store.prediction(lock_seconds) for store in (*self.members().values(), self.outcomes)])

    # ---- the store of a destination

    def _chosen(self, destination: Destination) -> str:
        """Return the name of the store that the filters choose."""
        layout = self._layout
        entry = layout.filters.choose(destination)
        if entry is None:
            return layout.rest
        if entry.is_per_destination:
            return directory_name(str(destination))
        return entry.directory

    def _home(self, destination: Destination) -> Member:
        home = self._homes.get(destination)
        if home is None:
            name = self._chosen(destination)
            member = self._members.get(name)
            if member is None and not self._layout.has_space:
                log.warning("too many stores for one more: %s goes to %s", destination, self._layout.rest)
                member = self._members[self._layout.rest]
            home = self._homes[destination] = member or self._begin_store(name, destination)
        return home

    def queue(self, destination: Destination) -> int:
        """Return the owner id of a queue, a new one if it is unknown."""
        return self._home(destination).queue(destination)

    def subscription(self, client_id: str, name: str, destination: Destination) -> int:
        """Return the owner id of a durable subscription, a new one if there is none of that name (or it was
        removed)."""
        return self._home(destination).subscription(client_id, name, destination)

    # ---- new stores

    def _begin_store(self, name: str, destination: Destination) -> Member:
        log.info("%s gets a store of its own: %s", destination, name)
        member = Member(name, self._layout.number(name) << OWNER_BITS, None, self._backlog)
        self._know(member)
        self._store_maker.begin(member)
        return member

    def _check_before_opening(self, member: Member) -> None:
        """Write an empty decision to txStore: only its fence check matters."""
        self._numbers += 1
        identity = joint_id(LocalTransactionId(f"ID:new-store-{self.epoch}", self._numbers))
        self._outcomes.ask(decision(identity, _Checked(self, member, identity)))

    def open(self, member: Member, check: TransactionId) -> None:
        """Serve the new store, whose decision ``check`` is in txStore, unless it was dropped meanwhile."""
        store = self._store_maker.take(member)
        if store is not None:
            member.open(store)
            store.start(_StoreListener(self, member), self._loop)
            member.go_on()
        self._outcomes.ask(completed(check))

    def is_of_former_term(self, owner: int, order_key: int) -> bool:
        """Return whether a message was there when this broker became master."""
        store = self._of(owner).store
        return store is not None and store.is_of_former_term(owner, order_key)

    # ---- in

    def _of(self, owner: int) -> Member:
        return self._by_number[owner >> OWNER_BITS]

    def append(self, operation: Operation) -> None:
        """Hand over one operation. It comes back through ``Engine.durable`` when it is durable; see the module for
        order.

        Raises StoreFull for an AddMessage while its store's disk has no more than its reserve.
        """
        self.handed_over += 1
        if isinstance(operation, AddMessage):
            self._hand_to(self._of(operation.owners[0]), operation)
        elif isinstance(operation, Atomic):
            self._append_atomic(operation)
        elif isinstance(operation, PrepareTransaction):
            self._append_prepare(operation)
        elif isinstance(operation, EndTransaction):
            self._append_end(operation)
        elif isinstance(operation, AddConnection):
            self._hand_to(self._outcomes, operation)
        else:
            self._hand_to(self._of(operation.owner), operation)

    def _hand_to(self, member: Member, operation: Operation) -> None:
        self._active.add(member)
        member.take(operation)

    def _append_atomic(self, atomic: Atomic) -> None:
        parts = self._by_store(atomic.operations)
        if not parts:
            self._append_everywhere(atomic)
        elif len(parts) == 1:
            self._hand_to(self._members[next(iter(parts))], atomic)
        else:
            transaction = transaction_of(atomic)
            if transaction is None:
                self._numbers += 1
                transaction = LocalTransactionId(f"ID:joint-{self.epoch}", self._numbers)
            self._join(Joint(atomic, joint_id(transaction), parts, self))

    def _append_prepare(self, prepare: PrepareTransaction) -> None:
        known = self._prepared_in.get(prepare.transaction.key)
        if known:
            self._hand_to(known[0], prepare)  # where it is refused
            return
        parts = self._by_store(prepare.operations) or {self._layout.rest: []}
        self._prepared_in[prepare.transaction.key] = [self._members[name] for name in parts]
        if len(parts) == 1:
            self._hand_to(self._members[next(iter(parts))], prepare)
        else:
            self._join(Joint(prepare, prepare.transaction, parts, self))

    def _append_end(self, end: EndTransaction) -> None:
        members = self._prepared_in.pop(end.transaction.key, None) or [self._members[self._layout.rest]]
        if len(members) == 1:
            self._hand_to(members[0], end)
        else:
            joint = Joint(end, end.transaction, {member.name: () for member in members}, self)
            self._join(joint)
            if joint.must_decide:
                self._decide(joint)

    def _by_store(self, operations: Iterable[Part]) -> dict[str, list[Part]]:
        parts: dict[str, list[Part]] = {}
        for part in operations:
            if isinstance(part, AddMessage) and not part.owners:
                member = self._home(part.message.destination)
            else:
                member = self._of(part.owners[0] if isinstance(part, AddMessage) else part.owner)
            parts.setdefault(member.name, []).append(part)
        return parts

    def _append_everywhere(self, atomic: Atomic) -> None:
        # txStore, too: an earlier empty operation that found no store busy may be on its way there.
        members = (*self._members.values(), self._outcomes)
        busy = [member for member in members if member.is_busy] or [self._outcomes]
        marker = _Marker(self, atomic, len(busy))
        self._under_way += 1
        for member in busy:
            member.steps += 1
            self._hand_to(member, Atomic((), None, marker))

    def _join(self, joint: Joint) -> None:
        self._under_way += 1
        for member in self._taking_part(joint):
            self._active.add(member)
            member.join(joint)

    def _taking_part(self, joint: Joint) -> list[Member]:
        return [self._members[name] for name in joint.parts]

    def _decide(self, joint: Joint) -> None:
        self._active.add(self._outcomes)
        self._outcomes.ask(joint.decide())

    # ---- back from the stores

    def came_back(self, member: Member, operations: list[Operation]) -> None:
        """Take operations that are durable in one store, in its order (called by ``_StoreListener``)."""
        if self._engine is None:
            return
        if not member.steps and member.gate is None:
            self._engine.durable(operations)
        else:
            told: list[Operation] = []
            self._sort_out(member, operations, told)
            if told:
                self._engine.durable(told)
        if not member.is_busy:
            self._active.discard(member)
        if self._was_congested:
            self._check_backlog()

    def _sort_out(self, member: Member, operations: list[Operation], told: list[Operation]) -> None:
        """Collect the operations that the engine may know of now; continue the steps that it does not know."""
        for operation in operations:
            completion = operation.context if isinstance(operation.context, Completion) else None
            if member.gate is not None and not (completion is not None and completion.passes_gate):
                member.unreported.append(operation)
            elif completion is not None:
                member.steps -= 1
                completion.durable(member.name, told)
            else:
                told.append(operation)

    def prepared_everywhere(self, joint: Joint, told: list[Operation]) -> None:
        """Decide or finish an operation that every store has prepared."""
        if joint.must_decide:
            self._decide(joint)
        else:
            self._finish(joint, told)

    def decided(self, joint: Joint) -> None:
        """Continue the operations that waited for its outcome, which is in txStore now."""
        joint.is_decided = True
        for member in self._taking_part(joint):
            member.go_on()

    def ended(self, joint: Joint, store: str, told: list[Operation]) -> None:
        """Note that it is visible in one store; until it is in all, later operations there are not reported."""
        if not joint.came_back():
            self._members[store].gate = joint
            return
        self._finish(joint, told)
        if joint.must_decide:
            self._outcomes.ask(completed(joint.transaction))
        gated = [each for each in self._members.values() if each.gate is joint]
        for each in gated:
            each.gate = None
            unreported, each.unreported = each.unreported, []
            self._sort_out(each, unreported, told)

    def _finish(self, joint: Joint, told: list[Operation]) -> None:
        joint.finish()
        self.came_back_everywhere(joint.operation, told)

    def came_back_everywhere(self, operation: Operation, told: list[Operation]) -> None:
        """Report an operation that came back from each of several stores."""
        self._under_way -= 1
        told.append(operation)

    # ---- congestion

    @property
    def is_congested(self) -> bool:
        """True if producers must wait for ``Engine.drained``."""
        if self._backlog.is_too_much or any(
            member.store is not None and member.store.is_congested for member in self._active
        ):
            self._was_congested = True
            return True
        return False

    def drained(self) -> None:
        """Note that one of the stores is not congested any more (called by ``_StoreListener``)."""
        self._check_backlog()

    def _check_backlog(self) -> None:
        if not self.is_congested and self._engine is not None:
            self._was_congested = False
            self._engine.drained()

    @property
    def has_pending(self) -> bool:
        """True if an operation was handed over that has not come back yet."""
        return self._under_way > 0 or any(member.is_busy for member in self._members.values())

    # ---- the end

    def close(self) -> None:
        """Write what is waiting, make last checkpoints, close the files. Blocking; durable on return.

        A joint operation that is under way is left as it is: if it is decided, the next promotion carries it out.
        Raises the error that stopped a store, if one did.
        """
        self._store_maker.end()
        with self._threads.executor(CLOSING_THREADS, "tandemmq-closing") as closing:
            closed = [closing.submit(store.close) for store in self.members().values()]
        self.outcomes.close()
        for each in closed:
            each.result()

    def halt(self) -> None:
        """Report nothing as durable from now on, and begin nothing new. Any thread; returns at once."""
        self._store_maker.halt()
        for store in (*self.members().values(), self.outcomes):
            store.halt()

    def drop(self) -> None:
        """Do what ``Store.drop`` does, in all of them."""
        self.halt()
        stores = [*self.members().values(), self.outcomes]
        with self._threads.executor(max(CLOSING_THREADS, len(stores) + 1), "tandemmq-dropping") as dropping:
            dropping.submit(self._store_maker.end)
            for store in stores:
                dropping.submit(store.drop)


@dataclass(slots=True, eq=False)
class _StoreListener:
    """Listener of one of the stores."""

    _several: SeveralStores
    _member: Member

    def durable(self, operations: list[Operation]) -> None:
        self._several.came_back(self._member, operations)

    def drained(self) -> None:
        self._several.drained()


@dataclass(slots=True, eq=False, repr=False)
class _Checked(Completion):
    """Context of an empty decision: txStore was written to and fence-checked, so a new store may serve."""

    several: SeveralStores
    member: Member
    transaction: TransactionId

    def durable(self, store: str, told: list[Operation]) -> None:
        self.several.open(self.member, self.transaction)


@dataclass(slots=True, eq=False, repr=False)
class _Marker(Completion):
    """Context of the empty operations that stand for one: that one comes back when all of them have come back."""

    several: SeveralStores
    operation: Operation
    outstanding: int
    passes_gate = False

    def durable(self, store: str, told: list[Operation]) -> None:
        self.outstanding -= 1
        if not self.outstanding:
            self.several.came_back_everywhere(self.operation, told)
