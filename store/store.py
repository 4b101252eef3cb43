"""The store: interface between the event loop and the storage thread.

The loop appends operations (``append``); at the end of a turn of the loop, the store hands them over together. When
they are durable, it reports them to the engine, in order, in one call for each batch. It counts the operations that are
not reported yet; if there are too many, the transports must wait.
"""

# proofs: journal-end

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, Protocol, TypeVar

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

# A fence check is too old if it is older than this number of intervals and than this number of seconds.
FENCE_CHECKS_MISSED_MAX = 2
FENCE_CHECK_AGE_SECONDS_MIN = 1.0
# Maximum time that an acknowledgement without a receipt waits for another operation that needs a sync. Alone it would
# cost a write, a sync and two wake-ups: at a low rate, half the cost of a message. docs/decisions/0025.
LINGER_SECONDS = 0.005
# This number of acknowledgements is submitted without a further wait.
LINGERING_MAX: Final = 100
# Upper bounds, in seconds, of the buckets of "send_to_receipt_seconds".
RECEIPT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Watching(Protocol):
    """Part of the interface of asyncio's loop: callbacks for readable descriptors."""

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> object: ...

    def remove_reader(self, fd: int, /) -> object: ...


# Name of a queue, or of a durable subscription of a topic.
_Name = Destination | tuple[Destination, str]


class Store:
    """A promoted store. All methods except ``close``, ``halt`` and ``drop`` are called on the event loop, unless they
    say otherwise, and never block.

    ``call_soon`` runs a function on the loop; any thread may call it. ``call_later`` runs a function after a number of
    seconds (0: at the end of this turn); only the loop calls it. ``on_lost(error)`` is called on the loop, once, when
    the store must not continue: after a failed write or sync, a fence of another broker, a missing proof of ownership,
    or operations that could not be submitted. ``chores`` run in the background after ``start``, so that they do not
    prolong the outage.
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
        # Approximate size of the operations that are not reported yet: bytes of the messages only, because all else is
        # small. ``_turn_bytes``: those of the present turn. ``_pending``: for each turn that was submitted and is not
        # reported, the value of ``_reported`` after its report, and its bytes. ``_pending_bytes``: sum of those bytes.
        self._turn_bytes = 0
        self._pending: deque[tuple[int, int]] = deque()
        self._pending_bytes = 0
        self.handed_over = 0  # number of operations that were appended since the start, without NewQueue
        self._reported = 0  # how many of these were reported to the engine
        # The receipt time is measured for one turn at a time, from its first message: the monotonic time of that
        # message (0: none), and the value of ``_reported`` after the report of the turn (0: not submitted yet).
        self._turn_began = 0.0
        self._turn_ends = 0
        self._clock = threads.monotonic
        self._receipts = Histogram(RECEIPT_SECONDS)
        self._chores = chores
        self._owners = owners_of(state)
        self._prepared = _prepared(state)
        self._connections = state.connections.pairs()
        # Key of each prepared transaction -> the queues to which it adds messages
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
        """Begin to serve ``engine``. With ``loop``, the loop that makes all calls, a descriptor wakes the loop when
        operations are durable, if the compiled queue is available."""
        self._engine = engine
        self._submissions = submissions = self._storage.start(takes_submissions=loop is not None)
        if loop is not None and submissions is not None:
            descriptor = submissions.queue.fileno()
            loop.add_reader(descriptor, self._completed)
            self._unwatch = partial(loop.remove_reader, descriptor)
        for chore in self._chores:
            self._storage.soon(chore)

    def prediction(self, lock_seconds: float = 0.0) -> Prediction:
        """Return the predicted duration of a failover if this process died now. Any thread.

        The prediction is for a cold start: the other broker has only the last checkpoint, and gets the lock after
        ``lock_seconds``. A standby that has caught up needs less time.
        """
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
        """Return the histograms of durations and batch sizes: name of the metric -> histogram. Runs on the loop."""
        return {"send_to_receipt_seconds": self._receipts} | self.figures.measured()

    def owner_states(self) -> list[OwnerState]:
        """Return the state of every queue and durable subscription. Any thread.

        These are the objects of the storage thread, which changes them: the caller must only read them.
        """
        return list(self._state.owners.values())

    def file_states(self) -> list[FileState]:
        """Return the state of every journal file. Any thread. As for ``owner_states``, only read the objects."""
        return list(self._state.files.values())

    def owners(self) -> list[Owner]:
        """Return every queue and durable subscription with its count and bytes at promotion."""
        return self._owners

    def connections(self) -> list[tuple[str, str]]:
        """Return the connection ids that were known at promotion with their users: (id, user), the latest last."""
        return self._connections

    def prepared(self) -> list[PreparedTransaction]:
        """Return the transactions that were prepared at promotion. They are in doubt until an EndTransaction."""
        return self._prepared

    @property
    def is_full(self) -> bool:
        """True if producers are refused because of a lack of disk space. ``full_reason`` gives the reason."""
        return self._space.is_short

    @property
    def full_reason(self) -> str:
        return self._space.reason

    @property
    def archive_problem(self) -> str | None:
        """Reason why removed files are not in the archive yet; None: no problem."""
        return self._storage.archive_problem

    def ask(self, function: Callable[[State], T]) -> Future[T]:
        """Call ``function``, which must be short, with the state on the storage thread, between two batches.

        Any thread. The Future gets the result. It is cancelled if the storage thread ends before the call.
        """
        state = self._state
        return self._storage.ask(lambda: function(state))

    def compact(self) -> Future[CompactionReport]:
        """Compact now all files that have more than a small part of dead content. Any thread.

        The Future gets its report when these files are removed. It is cancelled if the storage thread ends before.
        """
        return self._storage.compact()

    def rotate(self) -> Future[None]:
        """Continue in a new journal file. Its header has the voters that the authority names now. Any thread.

        The Future is done when the header is final, and cancelled if the storage thread ends before.
        """
        return self._storage.rotate()

    def user_balance(self, user: str) -> int:
        """Return the bytes that are stored for ``user``, minus the bytes of its operations that the store has handled
        since promotion (``UserBytes.balances``). Any thread."""
        return self._state.users.balances.get(user, 0)

    def may_speak(self) -> bool:
        """Return whether clients may be answered: the last fence check is recent, and ownership is proved.

        After a suspend of the process, this is False until the storage thread has checked the fence: a successor may be
        master, with another state. The loop calls this once in each turn. With several stores, the fence check of one
        store is enough, because a successor fences all stores before it reads any.
        """
        # prove: last-fence-check-is-young "self._fence_check_age_max" -> "1e9"
        is_recent = self._threads.boottime() - self.figures.last_fence_check < self._fence_check_age_max
        return is_recent and self._has_proof()  # prove: no-proof-no-word

    def check_fence_soon(self) -> None:
        """Wake the storage thread, so that it checks the fence soon: alone, or with the next write."""
        self._storage.ask(lambda: None)

    def seen_alive(self) -> float:
        """Return the monotonic time at which the storage thread, or a thread that it waits for, was last found at work.

        Returns the current time after ``close`` or ``drop``. Any thread.
        """
        return self._storage.seen_alive()

    def checkpoint(self) -> Sequence[Future[None]]:
        """Make a checkpoint of the present state, so that the last checkpoint, in ``close``, takes little time.

        Any thread. Each Future is done when its checkpoint is durable, and cancelled if the storage thread ends before.
        """
        return (self._storage.checkpoint(),)

    def queue(self, destination: Destination) -> int:
        """Return the owner id of a queue. Gives a new id if the queue is unknown."""
        found = self._ids.get(destination)
        if found is None:
            found = self._new_owner(destination)
            self._append_queue(NewQueue(found, destination))
        return found

    def subscription(self, client_id: str, name: str, destination: Destination) -> int:
        """Return the owner id of a durable subscription. Gives a new id if the topic has no subscription of that
        name."""
        key = destination, subscription_key(client_id, name)
        found = self._ids.get(key)
        return self._new_owner(key) if found is None else found

    def is_of_former_term(self, owner: int, order_key: int) -> bool:
        """Return whether the message with ``order_key`` was stored before this broker became master."""
        return order_key >> 64 < self._first_file

    def _new_owner(self, name: _Name) -> int:
        owner = self._ids[name] = self._next_owner
        self._names[owner] = name
        self._next_owner += 1
        return owner

    def append(self, operation: Operation) -> None:
        """Append one operation. When it is durable, ``Engine.durable`` gets it. Operations are reported in order.

        All operations of a turn of the loop are submitted together at its end. A RemoveMessage without a context
        waits for another operation, at most LINGER_SECONDS. While ``is_congested`` is set, the transports must not read
        further input; messages that they have read are still accepted. Raises StoreFull for an AddMessage while the
        disk has no free space beyond its reserve; all other operations are accepted.
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
        """Prepare the append of an operation that is neither an AddMessage nor a RemoveMessage."""
        if type(operation) is Atomic:
            self._turn_bytes += sum(len(part.payload) for part in operation.operations if type(part) is AddMessage)
            if not self._is_turn_due:
                self._begin_turn()
            return
        if type(operation) is PrepareTransaction or type(operation) is EndTransaction:
            self._note_prepared_queues(operation)
        elif type(operation) is RemoveOwner:
            self.forget(operation.owner)
        self._end_turn()

    def _begin_turn(self) -> None:
        """Note the time of an appended message, and arrange the hand-over at the end of this turn of the loop."""
        self._end_turn()
        if not self._turn_began:
            self._turn_began = self._clock()

    def _end_turn(self) -> None:
        """Arrange that the appended operations are submitted at the end of this turn of the loop."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._call_later(0, self._hand_over)

    def _note_prepared_queues(self, operation: PrepareTransaction | EndTransaction) -> None:
        """Note the queues of a prepared transaction. At its commit, a queue that was removed meanwhile gets a new
        owner id."""
        key = operation.transaction.key
        if isinstance(operation, PrepareTransaction):
            added = (part.message.destination for part in operation.operations if isinstance(part, AddMessage))
            self._prepared_queues.setdefault(key, set()).update(each for each in added if not each.is_topic)
            return
        for destination in self._prepared_queues.pop(key, ()):
            if operation.is_commit:
                self.queue(destination)

    def _append_queue(self, queue: NewQueue) -> None:
        self._end_turn()
        self._turn.append(queue)

    def forget(self, owner: int) -> None:
        """Free the name of an owner that is being removed. The name gets a new owner id at its next use."""
        name = self._names.pop(owner, None)
        if name is not None:
            del self._ids[name]

    def _end_lingering(self) -> None:
        self._is_lingering = False
        if self._turn:
            self._hand_over()

    def _hand_over(self) -> None:
        """Hand over the operations of the turn. If that fails, end the store: the turn is lost, so no later operation
        may be confirmed."""
        self._is_turn_due = False
        turn, self._turn = self._turn, []
        if not turn:
            return  # already submitted when the wait of an acknowledgement ended
        if self._turn_began and not self._turn_ends:
            self._turn_ends = self.handed_over
        self._pending.append((self.handed_over, self._turn_bytes))
        self._pending_bytes += self._turn_bytes
        self._turn_bytes = 0
        if (
            self._pending_bytes > self._space.in_flight_max(self._settings.pending_bytes_max)
            or self.handed_over - self._reported > self._settings.max_async_jobs
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
        before = self._reported
        self._completed()
        return self._reported != before

    def _completed(self) -> None:
        """Report to the engine all operations that are durable. Without a proof of ownership, end the store: it may
        send no receipt, as for operations that the storage thread reports."""
        submissions = self._submissions
        if submissions is None or self._lost is not None:
            return
        operations, checked_at = submissions.completed()
        if checked_at:
            if not self._has_proof():  # prove: no-proof-no-completion
                self._lose(NoProof("the locker's last proof of ownership is too old"))
                return
            # The storage thread may have checked the fence meanwhile.
            # prove: completion-is-as-old-as-its-check "checked_at)" -> "self._threads.boottime())"
            self.figures.last_fence_check = max(self.figures.last_fence_check, checked_at)
        if operations:
            self._report_to_engine(operations)

    def _lose(self, error: BaseException) -> None:
        """Stop the store, and report ``error`` if it is the first. Runs on the loop."""
        if self._lost is None:
            self._lost = error  # prove: lost-reports-nothing-more
            self.halt()  # prove: lost-writes-nothing-more
            self._on_lost(error)

    def _report(self, operations: list[Operation]) -> None:
        """Report operations that are durable to the loop. On the storage thread."""
        submissions = self._submissions
        if submissions is None:
            self._call_soon(partial(self._report_to_engine, operations))
        else:
            submissions.report(operations)
            self._call_soon(self._completed)

    def _end_watching(self) -> None:
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            self._completed()
            unwatch()

    def _report_to_engine(self, operations: list[Operation]) -> None:
        if self._is_halted or self._engine is None:  # prove: halted-delivers-nothing "self._is_halted or "
            return
        self._reported += len(operations)
        while self._pending and self._pending[0][0] <= self._reported:
            self._pending_bytes -= self._pending.popleft()[1]
        self._engine.durable(operations)
        if self._turn_ends and self._reported >= self._turn_ends:
            seconds = self._clock() - self._turn_began
            self._receipts.counts[bisect_left(RECEIPT_SECONDS, seconds)] += 1
            self._receipts.sum += seconds
            self._turn_began, self._turn_ends = 0.0, 0
        if (
            self.is_congested
            and self._pending_bytes <= self._space.in_flight_max(self._settings.pending_bytes_max) // 2
            and self.handed_over - self._reported <= self._settings.max_async_jobs // 2
        ):
            self.is_congested = False
            self._engine.drained()

    @property
    def has_pending(self) -> bool:
        """True if an appended operation was not reported yet."""
        return bool(self._turn) or self.handed_over > self._reported

    def close(self) -> None:
        """Write the waiting operations, make a last checkpoint, close the files. Blocking; durable on return.

        Raises the error that ended the store, if there was one.
        """
        self._storage.close()
        if self._unwatch is not None:
            self._call_soon(self._end_watching)
        error = self._storage.error or self._lost
        if error is not None:
            raise error

    def halt(self) -> None:
        """Report no operation as durable from now on, and begin no further work. Any thread; returns at once."""
        self._is_halted = True
        self._storage.halt()

    def drop(self) -> None:
        """Close all files without a further write, because another broker may be master. Also after ``close``.

        Blocking: waits until calls that hang in the volume have returned. All files are closed on return.
        """
        self.halt()
        self._storage.drop()
        if self._unwatch is not None:
            self._call_soon(self._end_watching)


def owners_of(state: State) -> list[Owner]:
    """Return every queue and durable subscription with its count and bytes. The count is without messages that a
    prepared transaction removes; the bytes include them."""
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
