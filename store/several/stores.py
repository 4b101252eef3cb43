"""Several stores with the face of one (``store.store.Store``): each operation goes to the store of its owner.

What an engine relies on, and how it is kept:

- **Order within an owner.** All of an owner is in one store, and a store keeps its order. A joint operation (one that
  concerns several stores, ``joint``) is a barrier in each of them: what was handed over after it waits there until it
  is decided, and what came back after it is told only when it is ended in all of them. So additions and Pages of a
  queue are told in the order in which they happened, also where a transaction is visible in one store before another.
- **An empty Atomic** comes back when everything that was handed over before it has come back, from any store.
- Nothing else is ordered between stores: a receipt of one does not wait for the disk of another.

**Where a destination is.** A store that holds something of it (messages, a durable subscription, an operation of a
prepared transaction) keeps it, whatever the filters say now; else the filters choose. So filters may be changed at any
restart, and a destination moves when its old store has no more of it.

**A new store** (of an entry with a store for each destination) is made while others go on; what is handed over for it
waits. It serves nobody before txStore was written to, and looked at, after its journal was there: a successor lists the
directories after it fenced txStore, so either it finds the new store, or the old master finds itself deposed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from store.compaction import CompactionReport
from store.figures import Figures
from store.filters import OUTCOMES_DIRECTORY, directory_name
from store.operations import (
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
from store.prediction import Prediction, together
from store.records.message import Destination
from store.records.transactions import LocalTransactionId
from store.several import sums
from store.several.founding import Founding
from store.several.joint import Joint, Late, Marker, Part, Phase, Step, joint_id, transaction_of
from store.several.layout import OWNER_BITS, Layout
from store.several.member import Backlog, Member
from store.store import Store

log = logging.getLogger(__name__)

# Stores are closed, or dropped, so many at a time.
CLOSING_THREADS = 16


@dataclass(frozen=True, slots=True)
class Term:
    """What the promotion of several stores came to. ``homes``: which store has something of a destination."""

    epoch: int
    recovery_seconds: float
    stores: Mapping[str, Store]
    outcomes: Store
    homes: Mapping[Destination, str]
    # Of each transaction that is still prepared: the stores that it is prepared in.
    prepared: Mapping[str, tuple[str, ...]]


class SeveralStores:
    """See the module. Everything but ``close``, ``halt`` and ``drop`` is called on the event loop, and never blocks.

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
        self._handed_over = 0
        self._under_way = 0  # joint operations and markers that have not come back
        self._numbers = 0
        self._opening: dict[Joint, Member] = {}  # new stores, while txStore is looked at
        self._threads = layout.threads
        self._founding = Founding(
            make_store, call_soon, made=self._look_before_opening, on_lost=on_lost, threads=self._threads
        )

    def _know(self, member: Member) -> None:
        self._members[member.name] = member
        self._by_number[member.first_owner >> OWNER_BITS] = member

    # ---- what they are

    def members(self) -> dict[str, Store]:
        """The stores that are there, by the name of their directory, txStore left out."""
        return {name: member.store for name, member in self._members.items() if member.store is not None}

    @property
    def outcomes(self) -> Store:
        """The store of outcomes, txStore."""
        assert self._outcomes.store is not None, "it is there from the beginning"
        return self._outcomes.store

    def start(self, engine: Engine) -> None:
        """Begin to serve ``engine``."""
        self._engine = engine
        for member in (*self._members.values(), self._outcomes):
            assert member.store is not None, "new stores come later"
            member.store.start(_Ear(self, member))

    def owners(self) -> list[Owner]:
        """Every queue and durable subscription with what it held at promotion; each is in one store."""
        found: list[Owner] = []
        for member in self._members.values():
            assert member.store is not None, "asked before the start"
            found += [owner for owner in member.store.owners() if self._is_home(member, owner)]
        return found

    def _is_home(self, member: Member, owner: Owner) -> bool:
        home = self._homes.get(owner.destination)
        return member is (home or self._members.get(self._chosen(owner.destination)))

    def connections(self) -> list[tuple[str, str]]:
        """As ``Store.connections``. One store alone may have been the only one before."""
        return [pair for store in (*self.members().values(), self.outcomes) for pair in store.connections()]

    def prepared(self) -> list[PreparedTransaction]:
        """The transactions that were prepared at promotion: in doubt until EndTransaction."""
        return sums.prepared_in(self.members().values())

    @property
    def figures(self) -> Figures:
        """Sums over all stores; ``last_seen_alive`` is that of the one that was silent longest."""
        return sums.figures_of((*self.members().values(), self.outcomes))

    def statistics(self) -> list[dict[str, Any]]:
        """Figures for ``status``: each store by the name of its directory, txStore last."""
        return sums.statistics_of({**dict(sorted(self.members().items())), OUTCOMES_DIRECTORY: self.outcomes})

    @property
    def is_full(self) -> bool:
        """Whether producers of some store are refused for want of disk space; ``full_reason`` says it."""
        return any(store.is_full for store in self.members().values())

    @property
    def full_reason(self) -> str:
        return sums.full_reason_of(self.members().values())

    @property
    def archive_problem(self) -> str | None:
        """Why journal files of some store wait to be moved into their archive; None when none do."""
        return sums.archive_problem_of(self.members())

    def compact(self) -> Future[CompactionReport]:
        """Empty, now, all files in which more than a little is dead, in all stores; the report sums up."""
        return sums.compact((*self.members().values(), self.outcomes), self._call_soon)

    def may_speak(self) -> bool:
        """As ``Store.may_speak``."""
        return any(store.may_speak() for store in (*self.members().values(), self.outcomes))

    def look_soon(self) -> None:
        """As ``Store.look_soon``."""
        self.outcomes.look_soon()

    def seen_alive(self) -> float:
        """As ``Store.seen_alive``: of the one that was silent for the longest, or who makes a new one."""
        stores = (*self.members().values(), self.outcomes)
        return min(self._founding.seen_alive(), *(store.seen_alive() for store in stores))

    def checkpoint(self) -> Sequence[Future[None]]:
        """As ``Store.checkpoint``, in all stores."""
        return [done for store in (*self.members().values(), self.outcomes) for done in store.checkpoint()]

    def prediction(self, lock_seconds: float = 0.0) -> Prediction:
        """As ``Store.prediction``, of all of them."""
        return together([store.prediction(lock_seconds) for store in (*self.members().values(), self.outcomes)])

    # ---- whose a destination is

    def _chosen(self, destination: Destination) -> str:
        """The store that the filters choose."""
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
            if member is None and not self._layout.has_room:
                log.warning("too many stores for one more: %s goes to %s", destination, self._layout.rest)
                member = self._members[self._layout.rest]
            home = self._homes[destination] = member or self._begin_store(name, destination)
        return home

    def queue(self, destination: Destination) -> int:
        """The owner id of a queue, a new one if it was never seen."""
        return self._home(destination).queue(destination)

    def subscription(self, client_id: str, name: str, destination: Destination) -> int:
        """The owner id of a durable subscription, a new one if there is none of that name (or it was removed)."""
        return self._home(destination).subscription(client_id, name, destination)

    # ---- new stores

    def _begin_store(self, name: str, destination: Destination) -> Member:
        log.info("%s gets a store of its own: %s", destination, name)
        member = Member(name, self._layout.number(name) << OWNER_BITS, None, self._backlog)
        self._know(member)
        self._founding.begin(member)
        return member

    def _look_before_opening(self, member: Member) -> None:
        """Write to txStore, a decision of which nothing comes: what counts is the look that it takes."""
        self._numbers += 1
        identity = joint_id(LocalTransactionId(f"ID:new-store-{self.epoch}", self._numbers))
        opening = Joint(EndTransaction(identity, True, b""), identity, {})
        self._opening[opening] = member
        self._outcomes.ask(opening, Phase.DECIDE)

    def _open(self, member: Member) -> None:
        store = self._founding.take(member)
        if store is None:
            return
        member.open(store)
        store.start(_Ear(self, member))
        member.go_on()

    # ---- in

    def _of(self, owner: int) -> Member:
        return self._by_number[owner >> OWNER_BITS]

    def append(self, operation: Operation) -> None:
        """Hand over one operation. It comes back through ``Engine.durable`` when it holds; see the module for order.

        Raises StoreFull for an AddMessage while its store's disk has no more than its reserve.
        """
        self._handed_over += 1
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
            self._join(Joint(atomic, joint_id(transaction), parts))

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
            self._join(Joint(prepare, prepare.transaction, parts))

    def _append_end(self, end: EndTransaction) -> None:
        members = self._prepared_in.pop(end.transaction.key, None) or [self._members[self._layout.rest]]
        if len(members) == 1:
            self._hand_to(members[0], end)
        else:
            joint = Joint(end, end.transaction, {member.name: () for member in members})
            self._join(joint)
            if joint.must_decide:
                self._decide(joint)

    def _by_store(self, operations: Iterable[Part]) -> dict[str, list[Part]]:
        parts: dict[str, list[Part]] = {}
        for part in operations:
            owner = part.owners[0] if isinstance(part, AddMessage) else part.owner
            parts.setdefault(self._of(owner).name, []).append(part)
        return parts

    def _append_everywhere(self, atomic: Atomic) -> None:
        # txStore, too: an earlier one that found nobody busy may be on its way there.
        members = (*self._members.values(), self._outcomes)
        busy = [member for member in members if member.is_busy] or [self._outcomes]
        marker = Marker(atomic, len(busy))
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
        self._outcomes.ask(joint, Phase.DECIDE)

    # ---- back from the stores

    def came_back(self, member: Member, operations: list[Operation]) -> None:
        """Those hold now in one store, in its order (``_Ear``)."""
        if self._engine is None:
            return
        if not member.steps and member.gate is None:
            self._engine.durable(operations)
        else:
            self._sort_out(member, operations)
        if not member.is_busy:
            self._active.discard(member)
        if self._was_congested:
            self._look_for_room()

    def _sort_out(self, member: Member, operations: list[Operation]) -> None:
        """Tell the engine what is its own, as far as it may know; carry on what is not."""
        assert self._engine is not None, "it was started"
        plain: list[Operation] = []
        for operation in operations:
            context = operation.context
            if type(context) is Step and context.phase is not Phase.END:
                member.steps -= 1
                self._stepped(context.joint, context.phase)
            elif member.gate is not None:
                member.unreported.append(operation)
            elif type(context) is Step:
                member.steps -= 1
                if plain:
                    self._engine.durable(plain)
                    plain = []
                self._ended(member, context.joint)
            elif type(context) is Marker:
                member.steps -= 1
                context.outstanding -= 1
                if not context.outstanding:
                    self._under_way -= 1
                    plain.append(context.operation)
            elif type(context) is Late:
                member.steps -= 1
                plain.append(context.operation)
            else:
                plain.append(operation)
        if plain:
            self._engine.durable(plain)

    def _stepped(self, joint: Joint, phase: Phase) -> None:
        """One store has prepared, or txStore has decided, or knows that all is done."""
        if phase is Phase.DECIDE:
            new = self._opening.pop(joint, None)
            if new is not None:
                self._open(new)
                self._outcomes.ask(joint, Phase.COMPLETE)
                return
            joint.is_decided = True
            for member in self._taking_part(joint):
                member.go_on()
        elif phase is Phase.PREPARE and joint.came_back():
            if joint.must_decide:
                self._decide(joint)
            else:
                self._finish(joint)

    def _ended(self, member: Member, joint: Joint) -> None:
        """It is visible in one store; until it is in all, what came after it there is not told."""
        if not joint.came_back():
            member.gate = joint
            return
        self._finish(joint)
        if joint.must_decide:
            self._outcomes.ask(joint, Phase.COMPLETE)
        gated = [each for each in self._members.values() if each.gate is joint]
        for each in gated:
            each.gate = None
            unreported, each.unreported = each.unreported, []
            self._sort_out(each, unreported)

    def _finish(self, joint: Joint) -> None:
        assert self._engine is not None, "it was started"
        self._under_way -= 1
        joint.finish()
        self._engine.durable([joint.operation])

    # ---- congestion

    @property
    def is_congested(self) -> bool:
        """Whether producers are to wait for ``Engine.drained``."""
        if self._backlog.is_too_much or any(
            member.store is not None and member.store.is_congested for member in self._active
        ):
            self._was_congested = True
            return True
        return False

    def drained(self) -> None:
        """One of the stores is not congested any more (``_Ear``)."""
        self._look_for_room()

    def _look_for_room(self) -> None:
        if not self.is_congested and self._engine is not None:
            self._was_congested = False
            self._engine.drained()

    @property
    def handed_over(self) -> int:
        """How many operations it was given so far."""
        return self._handed_over

    @property
    def has_pending(self) -> bool:
        """Whether anything was handed over that has not come back yet."""
        return self._under_way > 0 or any(member.is_busy for member in self._members.values())

    # ---- the end

    def close(self) -> None:
        """Write what is waiting, make last checkpoints, let go of the files. Blocking; durable on return.

        A joint operation that is under way is left as it is: with a decision it is carried out by the next promotion.
        Raises what stopped a store, if something did.
        """
        self._founding.end()
        with self._threads.executor(CLOSING_THREADS, "tandemmq-closing") as closing:
            closed = [closing.submit(store.close) for store in self.members().values()]
        self.outcomes.close()
        for each in closed:
            each.result()

    def halt(self) -> None:
        """From now on nothing is reported durable, and nothing new is begun. Any thread; at once."""
        self._founding.halt()
        for store in (*self.members().values(), self.outcomes):
            store.halt()

    def drop(self) -> None:
        """As ``Store.drop``, of all of them."""
        self.halt()
        stores = [*self.members().values(), self.outcomes]
        with self._threads.executor(max(CLOSING_THREADS, len(stores) + 1), "tandemmq-dropping") as dropping:
            dropping.submit(self._founding.end)
            for store in stores:
                dropping.submit(store.drop)


class _Ear:
    """Whom one of the stores tells."""

    __slots__ = ("_member", "_several")

    def __init__(self, several: SeveralStores, member: Member) -> None:
        self._several = several
        self._member = member

    def durable(self, operations: list[Operation]) -> None:
        self._several.came_back(self._member, operations)

    def drained(self) -> None:
        self._several.drained()
