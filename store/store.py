"""Messages that survive: the one storage thread, and the door by which the event loop reaches it.

The loop hands over operations (``append``); the thread takes everything that is waiting, writes it as one batch,
syncs ONCE, looks ONCE whether a successor has put up a fence, applies it to the state, and wakes the loop ONCE with
all of it. There is no timer on this way: a batch is what came while the one before was on its way to the disk.

After a failed write or sync, a lost lock or a foreign fence nothing is acknowledged any more: the thread ends, the
loop is told why, and the store is dropped as it is (safety.md 3). No sync is ever retried.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from index.index import Index
from journal.files import JournalFiles
from journal.reader import JournalReader
from journal.writer import JournalWriter
from store.follow import Follower
from store.headers import Header, encode_header
from store.keys import Entry
from store.marks import encode_gone
from store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
    Operation,
    Owner,
    Page,
    PagedMessage,
    RemoveMessage,
    RemoveOwner,
)
from store.promotion import Promoted
from store.records.commands import AddMessage as AddCommand
from store.records.commands import Subscription, UpdateMessage, decode
from store.records.message import Destination, Message
from store.records.openwire import decode_message
from store.state import Frozen, Position, State, changes

log = logging.getLogger(__name__)

MIB = 1 << 20
# A standing checkpoint works in slices of this length and then lets the others run: the loop and the storage thread
# share one interpreter with it.
CHECKPOINT_SLICE_SECONDS = 0.001
CHECKPOINT_PAUSE_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Bounds and habits of a store. Times in seconds, sizes in bytes; the names are those of ``[store]``."""

    journal_disk_sync_strategy: str = "always"  # always | periodic | never
    journal_disk_sync_interval: float = 1.0
    journal_max_file_length: int = 32 * MIB
    journal_max_write_batch_size: int = 4 * MIB
    checkpoint_interval: float = 5.0
    cleanup_interval: float = 1.0
    checkpoint_records: int = 50_000
    checkpoint_bytes: int = 64 * MIB
    look_interval: float = 0.5
    pending_bytes_max: int = 32 * MIB
    pending_operations_max: int = 20_000


class Engine(Protocol):
    """Whom the store tells; always on the event loop."""

    def durable(self, operations: list[Operation]) -> None: ...

    def drained(self) -> None: ...


class NoProof(Exception):
    """The locker cannot prove any more that this broker is the master: no proof, no receipt."""


class _Stop:
    """Asks the storage thread to write what is waiting, make a last checkpoint and end."""

    __slots__ = ()


class _CheckpointDone:
    __slots__ = ("error", "frozen")

    def __init__(self, frozen: Frozen, error: BaseException | None) -> None:
        self.frozen = frozen
        self.error = error


class _NewQueue:
    """The loop gave a queue its owner id; the state must know it before the first message."""

    __slots__ = ("destination", "owner")

    def __init__(self, owner: int, destination: Destination) -> None:
        self.owner = owner
        self.destination = destination


class Store:
    """A promoted store. Everything but ``close`` and ``drop`` is called on the event loop, and never blocks.

    ``has_proof`` is asked before anything is reported durable: is the locker's last proof of ownership young enough?
    ``call_soon`` runs a function on the loop, from any thread; ``on_lost(error)`` is called so, once, when the store
    must not go on.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epoch = promoted.epoch
        self.records_replayed = promoted.records_replayed
        self.recovery_seconds = promoted.recovery_seconds
        self.batches = 0
        self.syncs = 0
        self.records = 0
        self.bytes_written = 0
        self.checkpoints = 0
        self.last_seen_alive = clock()
        self._settings = settings
        self._files = files
        self._index: Index = follower.index
        self._state: State = follower.state
        self._chronicle = follower.chronicle
        self._reader = JournalReader(files)
        self._writer: JournalWriter = promoted.writer
        self._broker = broker
        self._has_proof = has_proof
        self._call_soon = call_soon
        self._call_later_this_turn = call_later_this_turn
        self._on_lost = on_lost
        self._clock = clock
        self._engine: Engine | None = None

        # The loop's side: what this turn brought, and how much is on its way.
        self._turn: list[Operation | _NewQueue] = []
        self._pending_bytes = 0
        self._pending_operations = 0
        self.is_congested = False
        self._new_owners = self._state.next_owner
        self._queues = dict(self._state.queues)
        self._subscriptions = dict(self._state.subscriptions)

        # The meeting point of loop and thread.
        self._inbox: SimpleQueue[list[Operation | _NewQueue] | _Stop | _CheckpointDone] = SimpleQueue()

        # The thread's side.
        self._background = ThreadPoolExecutor(2, "tandemmq-background")
        self._checkpoint: Future[None] | None = None
        self._preparing: Future[None] | None = None
        self._is_dropped = False
        self._error: BaseException | None = None
        self._last_sync = clock()
        self._is_unsynced = False
        self._last_checkpoint = clock()
        self._last_cleanup = float("-inf")
        self._bytes_at_checkpoint = 0
        self._thread = threading.Thread(target=self._run, name="tandemmq-storage", daemon=True)

    # ---- the loop's side

    def start(self, engine: Engine) -> None:
        """Begin to serve ``engine``."""
        self._engine = engine
        self._thread.start()

    @property
    def has_pending(self) -> bool:
        """Whether anything was handed over that has not come back yet."""
        return bool(self._turn) or self._pending_operations > 0

    def owners(self) -> list[Owner]:
        """Every queue and durable subscription with what it holds, as found at promotion. Before ``start`` only."""
        return [
            Owner(o.id, o.destination, o.count, o.bytes, o.client_id, o.subscription_name)
            for o in self._state.owners.values()
        ]

    def queue(self, destination: Destination) -> int:
        """The owner id of a queue, a new one if it was never seen."""
        found = self._queues.get(destination)
        if found is None:
            found = self._queues[destination] = self._new_owners
            self._new_owners += 1
            self._know_queue(_NewQueue(found, destination))
        return found

    def subscription(self, client_id: str, name: str, destination: Destination) -> int:
        """The owner id of a durable subscription, a new one if there is none of that name (or it was removed)."""
        key = f"{client_id}:{name}"
        found = self._subscriptions.get(key)
        if found is None:
            found = self._subscriptions[key] = self._new_owners
            self._new_owners += 1
        return found

    def append(self, operation: Operation) -> None:
        """Hand over one operation. It comes back through ``Engine.durable`` when it holds, in order.

        Handed over in one piece at the end of the loop's turn. Bounded by ``is_congested``, which asks the
        transports to read no more; what was read already is still taken.
        """
        turn = self._turn
        if not turn:
            self._call_later_this_turn(self._hand_over)
        turn.append(operation)
        if type(operation) is RemoveOwner:
            self._forget_owner(operation.owner)

    def _know_queue(self, queue: _NewQueue) -> None:
        if not self._turn:
            self._call_later_this_turn(self._hand_over)
        self._turn.append(queue)

    def _forget_owner(self, owner: int) -> None:
        self._subscriptions = {key: known for key, known in self._subscriptions.items() if known != owner}
        self._queues = {key: known for key, known in self._queues.items() if known != owner}

    def _hand_over(self) -> None:
        turn, self._turn = self._turn, []
        self._pending_bytes += _bytes_of(turn)
        self._pending_operations += sum(type(operation) is not _NewQueue for operation in turn)
        if (
            self._pending_bytes > self._settings.pending_bytes_max
            or self._pending_operations > self._settings.pending_operations_max
        ):
            self.is_congested = True
        self._inbox.put(turn)

    def _delivered(self, operations: list[Operation]) -> None:
        if self._is_dropped or self._engine is None:
            return
        self._pending_bytes -= _bytes_of(operations)
        self._pending_operations -= len(operations)
        self._engine.durable(operations)
        if (
            self.is_congested
            and self._pending_bytes <= self._settings.pending_bytes_max // 2
            and self._pending_operations <= self._settings.pending_operations_max // 2
        ):
            self.is_congested = False
            self._engine.drained()

    def close(self) -> None:
        """Write what is waiting, make a last checkpoint, let go of the files. Blocking; durable on return.

        Raises what stopped the store, if something did.
        """
        self._inbox.put(_Stop())
        self._thread.join()
        self._background.shutdown()
        self._let_go()
        if self._error is not None:
            raise self._error

    def halt(self) -> None:
        """From now on nothing is reported durable, and nothing new is begun. Any thread; at once."""
        self._is_dropped = True

    def drop(self, wait_seconds: float = 1.0) -> None:
        """Let go without writing anything: another broker may be master. Blocking, about ``wait_seconds`` at most.

        A thread that hangs in the volume is left behind; when it wakes it finds itself dropped or deposed, and ends.
        """
        self.halt()
        if self._thread.ident is not None:  # else it was promoted, and never served anybody
            self._inbox.put(_Stop())
            self._thread.join(wait_seconds)
        self._background.shutdown(wait=False, cancel_futures=True)
        working = [future for future in (self._checkpoint, self._preparing) if future is not None]
        is_idle = not wait(working, wait_seconds).not_done
        if is_idle and not self._thread.is_alive():
            self._let_go()

    def _let_go(self) -> None:
        self._writer.close()
        self._reader.close()
        self._index.close()

    # ---- the thread's side

    def _run(self) -> None:
        try:
            while self._once():
                pass
        except BaseException as error:
            self._error = error
            if not self._is_dropped:
                self._call_soon(partial(self._on_lost, error))

    def _once(self) -> bool:
        """Everything that is waiting now; False when the thread is to end."""
        must_stop = False
        operations: list[Operation | _NewQueue] = []
        try:
            item = self._inbox.get(timeout=self._settings.look_interval)
            while True:
                if type(item) is list:
                    operations += item
                elif type(item) is _CheckpointDone:
                    self._checkpoint_done(item)
                else:
                    must_stop = True
                if len(operations) > self._settings.pending_operations_max:
                    break
                item = self._inbox.get_nowait()
        except Empty:
            pass
        self.last_seen_alive = self._clock()
        if self._is_dropped:
            return False
        if operations:
            self._process(operations)
        else:
            self._look()
        if must_stop:
            self._finish()
            return False
        self._maintain()
        return True

    def _process(self, operations: list[Operation | _NewQueue]) -> None:
        limit = self._settings.journal_max_write_batch_size
        batch: list[Operation | _NewQueue] = []
        payloads: list[bytes] = []
        size = 0
        for operation in operations:
            kind = type(operation)
            if kind is Page:
                self._commit(batch, payloads, size)
                batch, payloads, size = [], [], 0
                assert isinstance(operation, Page)
                self._read_page(operation)
                self._report([operation])
                continue
            if kind is Atomic:
                assert isinstance(operation, Atomic)
                more = [part.payload for part in operation.operations]
                if operation.commit is not None:
                    more.append(operation.commit)
                length = sum(map(len, more))
            elif kind is _NewQueue:
                batch.append(operation)
                continue
            else:
                more = [operation.payload]  # type: ignore[union-attr]
                length = len(more[0])
            if payloads and size + length > limit:
                self._commit(batch, payloads, size)
                batch, payloads, size = [], [], 0
            batch.append(operation)
            payloads += more
            size += length
        self._commit(batch, payloads, size)

    def _commit(self, batch: list[Operation | _NewQueue], payloads: list[bytes], size: int) -> None:
        """One write, one sync, one look, one wake-up."""
        if payloads:
            locations = self._write(payloads, size)
            self._apply(batch, locations)
        elif batch:
            self._apply(batch, [])
        self._report([operation for operation in batch if type(operation) is not _NewQueue])  # type: ignore[misc]

    def _write(self, payloads: list[bytes], size: int) -> list[int]:
        writer = self._writer
        if writer.is_full(size + 5 * len(payloads)):
            self._rotate()
        start = writer.position[1]
        locations = writer.append(payloads)
        self._is_unsynced = True
        strategy = self._settings.journal_disk_sync_strategy
        if strategy == "always" or (
            strategy == "periodic" and self._clock() - self._last_sync >= self._settings.journal_disk_sync_interval
        ):
            self._sync()
        self._look()
        file, end = writer.position
        self._state.position = Position(file, end, start, writer.checksum)
        self.batches += 1
        self.records += len(payloads)
        self.bytes_written += size
        return locations

    def _sync(self) -> None:
        self._writer.sync()
        self._is_unsynced = False
        self._last_sync = self._clock()
        self.syncs += 1

    def _look(self) -> None:
        self._writer.look()
        if not self._has_proof():
            raise NoProof("the locker's last proof of ownership is too old")
        if (
            self._is_unsynced
            and self._settings.journal_disk_sync_strategy == "periodic"
            and self._clock() - self._last_sync >= self._settings.journal_disk_sync_interval
        ):
            self._sync()

    def _report(self, operations: list[Operation]) -> None:
        if operations and not self._is_dropped:
            self._call_soon(partial(self._delivered, operations))

    def _apply(self, batch: list[Operation | _NewQueue], locations: list[int]) -> None:
        state = self._state
        add = state.add
        remove = state.remove
        file = self._writer.position[0]
        number = 0
        for operation in batch:
            if type(operation) is AddMessage:
                location = locations[number]
                number += 1
                operation.location = location
                operation.order_key = order_key = location << 32
                operation.size = size = len(operation.payload) + 5
                message_id = operation.message.message_id
                for owner in operation.owners:
                    add(owner, order_key, location, size, message_id)
            elif type(operation) is RemoveMessage:
                number += 1
                remove(
                    operation.owner,
                    operation.order_key,
                    operation.location,
                    operation.size,
                    operation.message_id,
                    file,
                )
            else:
                number += self._apply_rare(operation, locations, number, file)

    def _apply_rare(self, operation: Operation | _NewQueue, locations: list[int], number: int, file: int) -> int:
        """Apply one operation of the less frequent kinds; returns how many records it had."""
        state = self._state
        if isinstance(operation, _NewQueue):
            state.know_queue(operation.owner, operation.destination)
            return 0
        if isinstance(operation, Atomic):
            parts = operation.operations
            commit = None if operation.commit is None else locations[number + len(parts)]
            for n, part in enumerate(parts):
                if isinstance(part, AddMessage):
                    part.location = locations[number + n]
                    part.order_key = part.location << 32 if commit is None else commit << 32 | n
                    part.size = len(part.payload) + 5
                    for owner in part.owners:
                        state.add(owner, part.order_key, part.location, part.size, part.message.message_id)
                else:
                    state.remove(part.owner, part.order_key, part.location, part.size, part.message_id, file)
            return len(parts) + (commit is not None)
        if isinstance(operation, AddSubscription):
            command = decode(operation.payload)
            assert isinstance(command, Subscription)
            assert command.info is not None, "a new subscription says what it is"
            state.subscribe(
                operation.owner,
                command.destination,
                command.info.client_id,
                command.info.name,
                locations[number],
            )
            return 1
        assert isinstance(operation, RemoveOwner)
        state.drop_owner(operation.owner, file)
        return 1

    # ---- reading

    def _read_page(self, page: Page) -> None:
        found: list[tuple[int, Entry]] = []
        total = 0
        page.is_end = True
        for order_key, entry in self._state.entries(page.owner, page.after):
            if found and (len(found) >= page.count or total + entry.size > page.bytes_max):
                page.is_end = False
                break
            found.append((order_key, entry))
            total += entry.size
        payloads = self._reader.read_many([(entry.location, entry.size) for _, entry in found])
        for (order_key, entry), payload in zip(found, payloads, strict=True):
            page.messages.append(PagedMessage(order_key, entry.location, entry.size, _message_in(payload)))

    # ---- rotation

    def _rotate(self) -> None:
        """Begin the next file as a promotion does, after the old file's last sync and look."""
        writer = self._writer
        if self._is_unsynced:
            self._sync()
        self._look()
        if self._preparing is not None:
            self._preparing.result()
            self._preparing = None
        file, end = writer.position
        header = Header(self.epoch, self._broker, "rotation", {file: end}, (*self._files.list(), file + 1))
        writer.rotate(encode_header(header))
        self._state.know_file(writer.position[0])

    # ---- checkpoints

    def _maintain(self) -> None:
        settings = self._settings
        writer = self._writer
        if self._preparing is None and writer.position[1] * 2 > settings.journal_max_file_length:
            self._preparing = self._background.submit(writer.prepare_next)
        tail = self._state.tail
        if self._checkpoint is not None:
            if tail.operations > 2 * settings.checkpoint_records:
                self._checkpoint.result()  # the bound of the live tail: producers wait for the checkpoint
            return
        now = self._clock()
        is_due = (
            tail.operations >= settings.checkpoint_records
            or self.bytes_written - self._bytes_at_checkpoint >= settings.checkpoint_bytes
            or now - self._last_checkpoint >= settings.checkpoint_interval
        )
        if is_due and tail.operations:
            self._checkpoint = self._background.submit(self._write_checkpoint, self._freeze())

    def _freeze(self) -> Frozen:
        if self._is_unsynced:
            self._sync()  # a checkpoint covers only what is on the disk, whatever the strategy
            self._look()
        self._last_checkpoint = self._clock()
        self._bytes_at_checkpoint = self.bytes_written
        return self._state.freeze(self._chronicle.first_of_epoch, self._writer.position[0])

    def _write_checkpoint(self, frozen: Frozen) -> None:
        try:
            slice_end = time.monotonic() + CHECKPOINT_SLICE_SECONDS
            for _ in self._index.checkpoint(changes(frozen), frozen.meta):
                if self._is_dropped:
                    return
                if time.monotonic() > slice_end:
                    time.sleep(CHECKPOINT_PAUSE_SECONDS)
                    slice_end = time.monotonic() + CHECKPOINT_SLICE_SECONDS
            self._inbox.put(_CheckpointDone(frozen, None))
        except BaseException as error:
            self._inbox.put(_CheckpointDone(frozen, error))
            raise

    def _checkpoint_done(self, done: _CheckpointDone) -> None:
        self._checkpoint = None
        if done.error is not None:
            raise done.error
        self._state.thaw()
        self.checkpoints += 1
        now = self._clock()
        if done.frozen.reclaimable and now - self._last_cleanup >= self._settings.cleanup_interval:
            self._last_cleanup = now
            self._reclaim(done.frozen.reclaimable)

    def _reclaim(self, files: tuple[int, ...]) -> None:
        """Remove files that nothing needs: first said in the journal, then done, oldest first."""
        self._write([encode_gone(files)], 64)
        if self._is_unsynced:
            self._sync()
            self._look()
        self._reader.forget(files)
        self._state.forget_files(files)
        self._background.submit(self._unlink, files)
        log.info("reclaimed %d journal files (%d to %d)", len(files), files[0], files[-1])

    def _unlink(self, files: tuple[int, ...]) -> None:
        for file in files:
            # One at a time, each with a sync of the directory: a removed acknowledgement must not be gone while the
            # message that it killed comes back after a power loss.
            self._files.remove([file])

    def _finish(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.result()
            self._state.thaw()
            self._checkpoint = None
        if self._state.tail.operations:
            frozen = self._freeze()
            for _ in self._index.checkpoint(changes(frozen), frozen.meta):
                pass
            self._state.thaw()
        elif self._is_unsynced:
            self._sync()
            self._look()


def _bytes_of(operations: Sequence[Operation | _NewQueue]) -> int:
    """What waits, roughly: message bodies outweigh all else."""
    return sum(len(operation.payload) for operation in operations if type(operation) is AddMessage)


def _message_in(payload: bytes) -> Message:
    command = decode(payload)
    if isinstance(command, UpdateMessage):
        command = command.add
    assert isinstance(command, AddCommand), "an index entry points to a record that stores a message"
    return decode_message(command.message)
