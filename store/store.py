"""Messages that survive: the door by which the event loop reaches the storage thread.

The loop hands over operations (``append``), in one piece at the end of its turn; they come back, in order and in one
call a batch, when they are durable. What is on its way is counted, and bounded by asking the transports to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from journal.files import JournalFiles
from store.batch import NewQueue
from store.compaction import CompactionReport
from store.follow import Follower
from store.operations import AddMessage, Engine, Operation, Owner, PreparedTransaction, RemoveOwner
from store.promotion import Promoted
from store.records.commands import ADD, subscription_key
from store.records.message import Destination
from store.records.transactions import transaction_of_key
from store.settings import StoreSettings
from store.space import Space, StoreFull
from store.state import State
from store.storage_thread import StorageThread
from store.threads import OS_THREADS, Threads
from store.upkeep import REPLAY_SECONDS_PER_RECORD

T = TypeVar("T")

# So many records tell how fast a replay is here.
REPLAY_RECORDS_TOLD = 20_000


class Store:
    """A promoted store. Everything but ``close``, ``halt`` and ``drop`` is called on the event loop, and never blocks.

    ``call_soon`` runs a function on the loop, from any thread; ``on_lost(error)`` is called so, once, when the store
    must not go on: a failed write or sync, a foreign fence, no proof of ownership.
    """

    def __init__(
        self,
        files: JournalFiles,
        follower: Follower,
        promoted: Promoted,
        settings: StoreSettings,
        *,
        broker: str,
        has_proof: Callable[[], bool],
        call_soon: Callable[[Callable[[], None]], object],
        call_later_this_turn: Callable[[Callable[[], None]], object],
        on_lost: Callable[[BaseException], None],
        space: Space | None = None,
        threads: Threads = OS_THREADS,
    ) -> None:
        self._state = state = follower.state
        follower.replay.tell_ids()
        self.epoch = promoted.epoch
        self.records_replayed = promoted.records_replayed
        self.recovery_seconds = promoted.recovery_seconds
        self.is_congested = False
        self._settings = settings
        self._call_later_this_turn = call_later_this_turn
        self._engine: Engine | None = None
        self._is_halted = False
        self._turn: list[Operation | NewQueue] = []
        self._pending_bytes = 0
        self._pending_operations = 0
        self._owners = _owners(state)
        self._prepared = _prepared(state)
        self._space = space or Space((files.directory,), settings.disk_reserve)
        self._next_owner = state.next_owner
        self._queues = dict(state.queues)
        self._subscriptions = dict(state.subscriptions)
        self._thread = StorageThread(
            files,
            follower.index,
            state,
            follower.chronicle,
            promoted.writer,
            settings,
            space=self._space,
            broker=broker,
            epoch=promoted.epoch,
            replay_seconds_per_record=_replay_speed(promoted),
            has_proof=has_proof,
            report_durable=lambda operations: call_soon(partial(self._delivered, operations)),
            failed=lambda error: call_soon(partial(on_lost, error)),
            clock=threads.monotonic,
            threads=threads,
        )
        self.figures = self._thread.figures

    def start(self, engine: Engine) -> None:
        """Begin to serve ``engine``."""
        self._engine = engine
        self._thread.start()

    def owners(self) -> list[Owner]:
        """Every queue and durable subscription with what it held at promotion."""
        return self._owners

    def prepared(self) -> list[PreparedTransaction]:
        """The transactions that were prepared at promotion: in doubt until EndTransaction."""
        return self._prepared

    @property
    def is_full(self) -> bool:
        """Whether producers are refused for want of disk space; ``full_reason`` says it in a sentence."""
        return self._space.is_short

    @property
    def full_reason(self) -> str:
        return self._space.reason

    @property
    def archive_problem(self) -> str | None:
        """Why files that were given up are not in the archive yet; None: nothing is wrong."""
        return self._thread.archive_problem

    def ask(self, function: Callable[[State], T]) -> Future[T]:
        """Have a short function of the state called on the storage thread, between two batches. Any thread.

        The Future is cancelled when the store ends before.
        """
        state = self._state
        return self._thread.ask(lambda: function(state))

    def compact(self) -> Future[CompactionReport]:
        """Empty, now, all files in which more than a little is dead. The report comes when they are gone. Any
        thread; the Future is cancelled when the store ends before."""
        return self._thread.compact()

    def queue(self, destination: Destination) -> int:
        """The owner id of a queue, a new one if it was never seen."""
        found = self._queues.get(destination)
        if found is None:
            found = self._queues[destination] = self._next_owner
            self._next_owner += 1
            self._know_queue(NewQueue(found, destination))
        return found

    def subscription(self, client_id: str, name: str, destination: Destination) -> int:
        """The owner id of a durable subscription, a new one if there is none of that name (or it was removed)."""
        key = subscription_key(client_id, name)
        found = self._subscriptions.get(key)
        if found is None:
            found = self._subscriptions[key] = self._next_owner
            self._next_owner += 1
        return found

    def append(self, operation: Operation) -> None:
        """Hand over one operation. It comes back through ``Engine.durable`` when it holds, in order.

        Handed over in one piece at the end of the loop's turn. Bounded by ``is_congested``, which asks the
        transports to read no more; what was read already is still taken. Raises StoreFull for an AddMessage while the
        disk has no more than its reserve; everything else is taken.
        """
        if self._space.is_short and type(operation) is AddMessage:
            raise StoreFull(self._space.reason)
        turn = self._turn
        if not turn:
            self._call_later_this_turn(self._hand_over)
        turn.append(operation)
        if type(operation) is RemoveOwner:
            self.forget(operation.owner)

    def _know_queue(self, queue: NewQueue) -> None:
        if not self._turn:
            self._call_later_this_turn(self._hand_over)
        self._turn.append(queue)

    def forget(self, owner: int) -> None:
        """The owner is being removed: its name is free at once, and gets a new id when it is asked for again."""
        self._subscriptions = {key: known for key, known in self._subscriptions.items() if known != owner}
        self._queues = {key: known for key, known in self._queues.items() if known != owner}

    def _hand_over(self) -> None:
        turn, self._turn = self._turn, []
        self._pending_bytes += _bytes_of(turn)
        self._pending_operations += sum(type(operation) is not NewQueue for operation in turn)
        if (
            self._pending_bytes > self._space.in_flight_max(self._settings.pending_bytes_max)
            or self._pending_operations > self._settings.pending_operations_max
        ):
            self.is_congested = True
        self._thread.put(turn)

    def _delivered(self, operations: list[Operation]) -> None:
        if self._is_halted or self._engine is None:
            return
        self._pending_bytes -= _bytes_of(operations)
        self._pending_operations -= len(operations)
        self._engine.durable(operations)
        if (
            self.is_congested
            and self._pending_bytes <= self._space.in_flight_max(self._settings.pending_bytes_max) // 2
            and self._pending_operations <= self._settings.pending_operations_max // 2
        ):
            self.is_congested = False
            self._engine.drained()

    @property
    def has_pending(self) -> bool:
        """Whether anything was handed over that has not come back yet."""
        return bool(self._turn) or self._pending_operations > 0

    def close(self) -> None:
        """Write what is waiting, make a last checkpoint, let go of the files. Blocking; durable on return.

        Raises what stopped the store, if something did.
        """
        self._thread.close()
        if self._thread.error is not None:
            raise self._thread.error

    def halt(self) -> None:
        """From now on nothing is reported durable, and nothing new is begun. Any thread; at once."""
        self._is_halted = True
        self._thread.halt()

    def drop(self, wait_seconds: float = 1.0) -> None:
        """Let go without writing anything: another broker may be master. Blocking, about ``wait_seconds`` at most."""
        self.halt()
        self._thread.drop(wait_seconds)


def _bytes_of(operations: Sequence[Operation | NewQueue]) -> int:
    """What waits, roughly: message bodies outweigh all else."""
    return sum(len(operation.payload) for operation in operations if type(operation) is AddMessage)


def _replay_speed(promoted: Promoted) -> float:
    """Seconds that a replay takes for a record: as measured at this promotion, if it was long enough to tell."""
    if promoted.records_replayed < REPLAY_RECORDS_TOLD:
        return REPLAY_SECONDS_PER_RECORD
    return max(promoted.recovery_seconds / promoted.records_replayed, 1e-6)


def _owners(state: State) -> list[Owner]:
    """Who holds messages, but those that a prepared transaction removes."""
    return [
        Owner(
            o.id,
            o.destination,
            o.count - len(state.withheld.get(o.id, ())),
            o.bytes,
            o.client_id,
            o.subscription_name,
        )
        for o in state.owners.values()
    ]


def _prepared(state: State) -> list[PreparedTransaction]:
    return [
        PreparedTransaction(
            transaction_of_key(key),
            sum(operation.kind == ADD for operation in transaction.operations),
            sum(operation.order_key > 0 for operation in transaction.operations),
        )
        for key, transaction in state.transactions.items()
        if transaction.is_prepared
    ]
