"""The store: the interface by which the event loop reaches the storage thread.

The loop hands over operations (``append``), in one piece at the end of its turn; they come back, in order and in one
call per batch, when they are durable. Pending operations are counted; beyond a bound the transports must wait.
"""

# proofs: journal-end

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol, TypeVar

from tandemmq.store.histogram import Histogram
from tandemmq.store.maintenance.compaction import CompactionReport
from tandemmq.store.operations import (
    AddMessage,
    Atomic,
    EndTransaction,
    Engine,
    Operation,
    Owner,
    PreparedTransaction,
    PrepareTransaction,
    RemoveMessage,
    RemoveOwner,
)
from tandemmq.store.records.commands import ADD, subscription_key
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import transaction_of_key
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.prediction import Prediction, end_seconds
from tandemmq.store.recovery.promotion import Promoted
from tandemmq.store.settings import StoreSettings
from tandemmq.store.state.file_states import FileState
from tandemmq.store.state.owners import OwnerState
from tandemmq.store.state.state import State
from tandemmq.store.storage_thread import StorageThread
from tandemmq.store.threads import OS_THREADS, Threads
from tandemmq.store.writer.batch import NewQueue
from tandemmq.store.writer.journal_end import NoProof
from tandemmq.store.writer.space import Space, StoreFull
from tandemmq.store.writer.submissions import Submissions

T = TypeVar("T")

# A fence check older than this number of intervals, and than this number of seconds, no longer counts.
FENCE_CHECKS_MISSED_MAX = 2
FENCE_CHECK_AGE_SECONDS_MIN = 1.0
# An acknowledgement without a receipt waits this long for another operation that needs a sync: alone it would cost a
# write, a sync and two wake-ups, which is half of a message's cost at a low rate. docs/decisions/0025.
LINGER_SECONDS = 0.005
# This number of acknowledgements is a batch worth its sync.
LINGERING_MAX = 100
# Upper bounds of the buckets of "send_to_receipt_seconds".
RECEIPT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Watching(Protocol):
    """The part of asyncio's loop that watches descriptors."""

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> object: ...

    def remove_reader(self, fd: int, /) -> object: ...


# Name of a queue, or of a durable subscription of a topic.
_Name = Destination | tuple[Destination, str]


class Store:
    """A promoted store. All methods except ``close``, ``halt`` and ``drop`` are called on the event loop, and never
    block.

    ``call_soon`` runs a function on the loop, from any thread; ``call_later``, from the loop, after a number of seconds
    (0: at the end of this turn). ``on_lost(error)`` is called on the loop, once, when the store must not continue: a
    failed write or sync, a foreign fence, no proof of ownership, operations that could not be handed over. ``chores``
    are done in the background once it serves, so that they do not prolong the outage.
    """

    def __init__(
        self,
        follower: Follower,
        promoted: Promoted,
        settings: StoreSettings,
        *,
        broker: str,
        has_proof: Callable[[], bool],
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        on_lost: Callable[[BaseException], None],
        space: Space | None = None,
        chores: Sequence[Callable[[], object]] = (),
        threads: Threads = OS_THREADS,
    ) -> None:
        self._state = state = follower.state
        follower.replay.list_known_ids()
        self.epoch = promoted.epoch
        self._first_file = promoted.writer.position[0]
        self.records_replayed = promoted.records_replayed
        self.recovery_seconds = promoted.recovery_seconds
        self.is_congested = False
        self._settings = settings
        self._speed = follower.speed
        self._load_seconds = follower.load_seconds
        self._call_later = call_later
        self._engine: Engine | None = None
        self._is_halted = False
        self._threads = threads
        self._has_proof = has_proof
        self._fence_check_age_max = max(
            FENCE_CHECKS_MISSED_MAX * settings.fence_check_interval, FENCE_CHECK_AGE_SECONDS_MIN
        )
        self._turn: list[Operation | NewQueue] = []
        self._is_turn_due = False
        self._is_lingering = False
        # Approximate size of what waits: message bodies outweigh all else. First that of the present turn; then, for
        # each turn that was handed over, the number of operations that have come back when it has.
        self._turn_bytes = 0
        self._pending: deque[tuple[int, int]] = deque()
        self._pending_bytes = 0
        self.handed_over = 0  # operations so far that come back
        self._came_back = 0
        # For one turn at a time that begins with a message: its time, and the number of operations that have come back
        # when it has.
        self._turn_began = 0.0
        self._turn_ends = 0
        self._clock = threads.monotonic
        self._receipts = Histogram(RECEIPT_SECONDS)
        self._chores = chores
        self._owners = owners_of(state)
        self._prepared = _prepared(state)
        self._connections = state.connections.pairs()
        # The queues that each prepared transaction adds to.
        self._prepared_queues = {
            each.transaction.key: {destination for destination in each.adds_to if not destination.is_topic}
            for each in self._prepared
        }
        self._space = space or Space((follower.files.directory,), settings.disk_reserve)
        self._next_owner = state.next_owner
        known: list[tuple[_Name, int]] = [*state.queues.items(), *state.subscriptions.items()]
        self._names = {owner: name for name, owner in known}
        self._ids = {name: owner for owner, name in self._names.items()}
        self._call_soon = call_soon
        self._on_lost = on_lost
        self._submissions: Submissions | None = None
        self._unwatch: Callable[[], object] | None = None
        self._lost: BaseException | None = None  # the error that is passed to on_lost
        self._storage = StorageThread(
            follower,
            promoted,
            settings,
            space=self._space,
            broker=broker,
            has_proof=has_proof,
            report_durable=self._report,
            failed=lambda error: call_soon(partial(self._lose, error)),
            threads=threads,
        )
        self.figures = self._storage.figures

    def start(self, engine: Engine, loop: Watching | None = None) -> None:
        """Begin to serve ``engine``. With ``loop``, the loop of all these calls, the disk wakes the loop."""
        self._engine = engine
        self._submissions = submissions = self._storage.start(takes_submissions=loop is not None)
        if loop is not None and submissions is not None:
            descriptor = submissions.queue.fileno()
            loop.add_reader(descriptor, self._completed)
            self._unwatch = partial(loop.remove_reader, descriptor)
        for chore in self._chores:
            self._storage.soon(chore)

    def prediction(self, lock_seconds: float = 0.0) -> Prediction:
        """Return the cost of a take-over if this process died now, by a broker that has only the last checkpoint: a
        cold start, after ``lock_seconds``. A standby that has caught up needs less. Any thread."""
        frozen = self._state.frozen
        records = self._state.tail.operations + (0 if frozen is None else frozen.operations)
        return Prediction(
            lock_seconds,
            end_seconds(self._settings) + records * self._speed.seconds_per_record,
            self._load_seconds,
            records,
            len(self._state.owners),
            self._settings.failover_budget,
        )

    def measured(self) -> dict[str, Histogram]:
        """Return histograms of durations and batch sizes, by the names of the metrics. On the loop."""
        return {"send_to_receipt_seconds": self._receipts} | self.figures.measured()

    def owner_states(self) -> list[OwnerState]:
        """Return every queue and durable subscription with its present contents. These are the live figures, which go
        on changing: only read them. Any thread."""
        return list(self._state.owners.values())

    def file_states(self) -> list[FileState]:
        """Return the live figures of the journal files; only read them. Any thread."""
        return list(self._state.files.values())

    def owners(self) -> list[Owner]:
        """Return every queue and durable subscription with its contents at promotion."""
        return self._owners

    def connections(self) -> list[tuple[str, str]]:
        """Return the connection ids at promotion with their users: (id, user), the latest at the end."""
        return self._connections

    def prepared(self) -> list[PreparedTransaction]:
        """Return the transactions that were prepared at promotion: in doubt until EndTransaction."""
        return self._prepared

    @property
    def is_full(self) -> bool:
        """True if producers are refused because disk space is short; ``full_reason`` is the reason in a sentence."""
        return self._space.is_short

    @property
    def full_reason(self) -> str:
        return self._space.reason

    @property
    def archive_problem(self) -> str | None:
        """Reason why files that were given up are not in the archive yet; None: no problem."""
        return self._storage.archive_problem

    def ask(self, function: Callable[[State], T]) -> Future[T]:
        """Call a short function of the state on the storage thread, between two batches. Any thread.

        The Future is cancelled when the store ends before.
        """
        state = self._state
        return self._storage.ask(lambda: function(state))

    def compact(self) -> Future[CompactionReport]:
        """Compact now all files with more than a little dead content. The report comes when they are gone. Any
        thread; the Future is cancelled when the store ends before."""
        return self._storage.compact()

    def rotate(self) -> Future[None]:
        """Continue in a new journal file, whose header has the authority's current view of the set: a change of voters.

        Done when the header is final. Any thread; cancelled when the store ends before.
        """
        return self._storage.rotate()

    def user_balance(self, user: str) -> int:
        """Return the bytes that count for ``user``, less those ``charged`` with operations that the store has applied.
        Any thread."""
        return self._state.users.balances.get(user, 0)

    def may_speak(self) -> bool:
        """Return whether clients may be answered: the last fence check is young and ownership is proved.

        After sleep, a process finds this false until the storage thread has checked: a successor may be master, and
        facts known here may be undone there. The loop calls this once a turn. With several stores one fence check is
        enough, since a successor fences all before it reads any.
        """
        # prove: last-fence-check-is-young "self._fence_check_age_max" -> "1e9"
        is_young = self._threads.boottime() - self.figures.last_fence_check < self._fence_check_age_max
        return is_young and self._has_proof()  # prove: no-proof-no-word

    def check_fence_soon(self) -> None:
        """Make the storage thread check the fence, unless it is about to."""
        self._storage.ask(lambda: None)

    def seen_alive(self) -> float:
        """Return the monotonic time of the storage thread's last sign of life; the current time after its end. Any
        thread."""
        return self._storage.seen_alive()

    def checkpoint(self) -> Sequence[Future[None]]:
        """Make a checkpoint of the present state, so that the one at ``close`` has little to do.

        Any thread; each Future is done when its checkpoint is durable, and cancelled when the store ends before.
        """
        return (self._storage.checkpoint(),)

    def queue(self, destination: Destination) -> int:
        """Return the owner id of a queue, a new one if it is unknown."""
        found = self._ids.get(destination)
        if found is None:
            found = self._new_owner(destination)
            self._know_queue(NewQueue(found, destination))
        return found

    def subscription(self, client_id: str, name: str, destination: Destination) -> int:
        """Return the owner id of a durable subscription, a new one if that topic has none of that name (any more)."""
        key = destination, subscription_key(client_id, name)
        found = self._ids.get(key)
        return self._new_owner(key) if found is None else found

    def is_of_former_term(self, owner: int, order_key: int) -> bool:
        """Return whether a message was there when this broker became master."""
        return order_key >> 64 < self._first_file

    def _new_owner(self, name: _Name) -> int:
        owner = self._ids[name] = self._next_owner
        self._names[owner] = name
        self._next_owner += 1
        return owner

    def append(self, operation: Operation) -> None:
        """Hand over one operation. It comes back through ``Engine.durable`` when it is durable, in order.

        Handed over in one piece at the end of the loop's turn; a RemoveMessage without a waiting client goes with the
        next of the others, after LINGER_SECONDS at the latest. Bounded by ``is_congested``: then the transports must
        read no more, but messages that were read already are still accepted. Raises StoreFull for an AddMessage while
        the disk has no more than its reserve; all other operations are accepted.
        """
        turn = self._turn
        if type(operation) is RemoveMessage:
            if operation.context is not None or len(turn) >= LINGERING_MAX:
                self._end_turn()
            elif not self._is_lingering:
                self._is_lingering = True
                self._call_later(LINGER_SECONDS, self._end_lingering)
        elif type(operation) is AddMessage:
            if self._space.is_short:
                raise StoreFull(self._space.reason)
            self._turn_bytes += len(operation.payload)
            if not self._is_turn_due:
                self._begin_turn()
        else:
            self._append_rare(operation)
        turn.append(operation)
        self.handed_over += 1

    def _append_rare(self, operation: Operation) -> None:
        """Do ``append`` for operations that neither add nor remove one message."""
        if type(operation) is Atomic:
            self._turn_bytes += sum(len(part.payload) for part in operation.operations if type(part) is AddMessage)
            if not self._is_turn_due:
                self._begin_turn()
            return
        if type(operation) is PrepareTransaction or type(operation) is EndTransaction:
            self._keep_queues(operation)
        elif type(operation) is RemoveOwner:
            self.forget(operation.owner)
        self._end_turn()

    def _begin_turn(self) -> None:
        """Note the time of an appended message, and hand over at the end of this turn of the loop."""
        self._end_turn()
        if not self._turn_began:
            self._turn_began = self._clock()

    def _end_turn(self) -> None:
        """Hand over the appended operations at the end of this turn of the loop."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._call_later(0, self._hand_over)

    def _keep_queues(self, operation: PrepareTransaction | EndTransaction) -> None:
        """Note the queues of a prepared transaction: a queue that is removed before its commit begins anew at the
        commit."""
        key = operation.transaction.key
        if isinstance(operation, PrepareTransaction):
            added = (part.message.destination for part in operation.operations if isinstance(part, AddMessage))
            self._prepared_queues.setdefault(key, set()).update(each for each in added if not each.is_topic)
            return
        for destination in self._prepared_queues.pop(key, ()):
            if operation.is_commit:
                self.queue(destination)

    def _know_queue(self, queue: NewQueue) -> None:
        self._end_turn()
        self._turn.append(queue)

    def forget(self, owner: int) -> None:
        """Free the name of an owner that is being removed: it gets a new id at its next use."""
        name = self._names.pop(owner, None)
        if name is not None:
            del self._ids[name]

    def _end_lingering(self) -> None:
        self._is_lingering = False
        if self._turn:
            self._hand_over()

    def _hand_over(self) -> None:
        """Hand over the turn, or end the store: a turn that is neither submitted nor in the inbox is lost, and nothing
        after it may be confirmed."""
        self._is_turn_due = False
        turn, self._turn = self._turn, []
        if not turn:
            return  # already handed over with lingering acknowledgements
        if self._turn_began and not self._turn_ends:
            self._turn_ends = self.handed_over
        self._pending.append((self.handed_over, self._turn_bytes))
        self._pending_bytes += self._turn_bytes
        self._turn_bytes = 0
        if (
            self._pending_bytes > self._space.in_flight_max(self._settings.pending_bytes_max)
            or self.handed_over - self._came_back > self._settings.max_async_jobs
        ):
            self.is_congested = True
        try:
            if self._submissions is None or not self._submissions.submit(turn):
                self._storage.put(turn)
        except Exception as error:
            self._lose(error)  # prove: lost-turn-ends-the-store

    def take_reports(self) -> bool:
        """Take what has become durable, before the loop finds the storage thread's signal; return whether there was
        something. The loop calls this between the steps of a long turn."""
        before = self._came_back
        self._completed()
        return self._came_back != before

    def _completed(self) -> None:
        """Take submitted operations that are on the disk. Without proof there is no receipt, as for the storage
        thread's reports."""
        submissions = self._submissions
        if submissions is None or self._lost is not None:
            return
        operations, checked_at = submissions.completed()
        if checked_at:
            if not self._has_proof():  # prove: no-proof-no-completion
                self._lose(NoProof("the locker's last proof of ownership is too old"))
                return
            # The storage thread may have checked since.
            # prove: completion-is-as-old-as-its-check "checked_at)" -> "self._threads.boottime())"
            self.figures.last_fence_check = max(self.figures.last_fence_check, checked_at)
        if operations:
            self._delivered(operations)

    def _lose(self, error: BaseException) -> None:
        """Stop the store, and report ``error`` if it is the first. On the loop."""
        if self._lost is None:
            self._lost = error  # prove: lost-reports-nothing-more
            self.halt()  # prove: lost-writes-nothing-more
            self._on_lost(error)

    def _report(self, operations: list[Operation]) -> None:
        """Report operations that are durable. On the storage thread."""
        submissions = self._submissions
        if submissions is None:
            self._call_soon(partial(self._delivered, operations))
        else:
            submissions.report(operations)
            self._call_soon(self._completed)

    def _end_watching(self) -> None:
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            self._completed()
            unwatch()

    def _delivered(self, operations: list[Operation]) -> None:
        if self._is_halted or self._engine is None:  # prove: halted-delivers-nothing "self._is_halted or "
            return
        self._came_back += len(operations)
        while self._pending and self._pending[0][0] <= self._came_back:
            self._pending_bytes -= self._pending.popleft()[1]
        self._engine.durable(operations)
        if self._turn_ends and self._came_back >= self._turn_ends:
            seconds = self._clock() - self._turn_began
            self._receipts.counts[bisect_left(RECEIPT_SECONDS, seconds)] += 1
            self._receipts.sum += seconds
            self._turn_began, self._turn_ends = 0.0, 0
        if (
            self.is_congested
            and self._pending_bytes <= self._space.in_flight_max(self._settings.pending_bytes_max) // 2
            and self.handed_over - self._came_back <= self._settings.max_async_jobs // 2
        ):
            self.is_congested = False
            self._engine.drained()

    @property
    def has_pending(self) -> bool:
        """True if an operation was handed over that has not come back yet."""
        return bool(self._turn) or self.handed_over > self._came_back

    def close(self) -> None:
        """Write what is waiting, make a last checkpoint, close the files. Blocking; durable on return.

        Raises the error that stopped the store, if there was one.
        """
        self._storage.close()
        if self._unwatch is not None:
            self._call_soon(self._end_watching)
        error = self._storage.error or self._lost
        if error is not None:
            raise error

    def halt(self) -> None:
        """Report nothing as durable from now on, and begin nothing new. Any thread; returns at once."""
        self._is_halted = True
        self._storage.halt()

    def drop(self) -> None:
        """Close all without writing anything: another broker may be master.

        Blocking until calls that hang in the volume have returned; nothing is left open then. Also after ``close``.
        """
        self.halt()
        self._storage.drop()
        if self._unwatch is not None:
            self._call_soon(self._end_watching)


def owners_of(state: State) -> list[Owner]:
    """Return every queue and durable subscription with its contents, without those that a prepared transaction
    removes."""
    return [
        Owner(
            o.id,
            o.destination,
            o.count - len(state.withheld.get(o.id, ())),
            o.bytes,
            o.client_id,
            o.subscription_name,
            selector=None if o.terms is None else o.terms.selector,
            no_local=False if o.terms is None else o.terms.no_local,
            pattern=None if o.terms is None else o.terms.pattern,
            user=None if o.terms is None else o.terms.user,
        )
        for o in state.owners.values()
    ]


def _prepared(state: State) -> list[PreparedTransaction]:
    return [
        PreparedTransaction(
            transaction_of_key(key),
            sum(operation.kind == ADD for operation in transaction.operations),
            sum(operation.order_key > 0 for operation in transaction.operations),
            frozenset(operation.destination for operation in transaction.operations if operation.kind == ADD),
            frozenset(operation.destination for operation in transaction.operations if operation.kind != ADD),
        )
        for key, transaction in state.transactions.items()
        if transaction.is_prepared
    ]
