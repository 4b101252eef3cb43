"""The one storage thread: everything that waits becomes one write, one sync, one look, one wake-up of the loop.

There is no timer on this way: a batch is what came while the one before was on its way to the disk. The thread owns
the journal's writer and the state, and begins checkpoints, which a thread of their own writes in slices.

After a failed write or sync, a lost lock or a foreign fence nothing is reported any more: the thread ends, and says
why. No sync is ever retried.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain
from queue import Empty, SimpleQueue

from index.index import Index
from journal.files import JournalFiles
from journal.reader import JournalReader
from journal.writer import JournalWriter
from store.headers import Chronicle, Header, encode_header
from store.keys import Entry
from store.marks import encode_gone
from store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
    Operation,
    Page,
    PagedMessage,
    RemoveMessage,
    RemoveOwner,
)
from store.records.commands import AddMessage as AddCommand
from store.records.commands import Subscription, UpdateMessage, decode
from store.records.message import Destination, Message
from store.records.openwire import decode_message
from store.settings import StoreSettings
from store.state import State
from store.tail import Frozen, Position, changes

log = logging.getLogger(__name__)

# A standing checkpoint works in slices of this length and then lets the others run: the loop and the storage thread
# share one interpreter with it.
CHECKPOINT_SLICE_SECONDS = 0.001
CHECKPOINT_PAUSE_SECONDS = 0.001


class NoProof(Exception):
    """The locker cannot prove any more that this broker is the master: no proof, no receipt."""


class NewQueue:
    """The loop gave a queue its owner id; the state must know it before the first message."""

    __slots__ = ("destination", "owner")

    def __init__(self, owner: int, destination: Destination) -> None:
        self.owner = owner
        self.destination = destination


class _Stop:
    """Asks the thread to write what is waiting, make a last checkpoint and end."""

    __slots__ = ()


class _CheckpointDone:
    __slots__ = ("error", "frozen")

    def __init__(self, frozen: Frozen, error: BaseException | None) -> None:
        self.frozen = frozen
        self.error = error


class Figures:
    """What the thread has done so far; written by it alone, read by anybody."""

    __slots__ = ("batches", "bytes_written", "checkpoints", "last_seen_alive", "records", "syncs")

    def __init__(self, now: float) -> None:
        self.batches = 0
        self.bytes_written = 0
        self.checkpoints = 0
        self.records = 0
        self.syncs = 0
        self.last_seen_alive = now


class StorageThread:
    """See the module. ``report_durable`` and ``failed`` are called on this thread, and must not block.

    ``has_proof`` is asked before anything is reported: is the locker's last proof of ownership young enough?
    ``error`` is what ended the thread, if something did.
    """

    def __init__(
        self,
        files: JournalFiles,
        index: Index,
        state: State,
        chronicle: Chronicle,
        writer: JournalWriter,
        settings: StoreSettings,
        *,
        broker: str,
        epoch: int,
        has_proof: Callable[[], bool],
        report_durable: Callable[[list[Operation]], object],
        failed: Callable[[BaseException], object],
        clock: Callable[[], float],
    ) -> None:
        self.figures = Figures(clock())
        self.error: BaseException | None = None
        self._files = files
        self._index = index
        self._state = state
        self._chronicle = chronicle
        self._writer = writer
        self._reader = JournalReader(files)
        self._settings = settings
        self._broker = broker
        self._epoch = epoch
        self._has_proof = has_proof
        self._report_durable = report_durable
        self._failed = failed
        self._clock = clock
        self._inbox: SimpleQueue[list[Operation | NewQueue] | _Stop | _CheckpointDone] = SimpleQueue()
        self._background = ThreadPoolExecutor(2, "tandemmq-background")
        self._checkpoint: Future[None] | None = None
        self._preparing: Future[None] | None = None
        self._is_dropped = False
        self._is_unsynced = False
        self._last_sync = clock()
        self._last_checkpoint = clock()
        self._last_cleanup = float("-inf")
        self._bytes_at_checkpoint = 0
        self._thread = threading.Thread(target=self._run, name="tandemmq-storage", daemon=True)

    # ---- from other threads

    def start(self) -> None:
        self._thread.start()

    def put(self, operations: list[Operation | NewQueue]) -> None:
        """Hand over operations, in order. Never blocks; the caller bounds what waits."""
        self._inbox.put(operations)

    def close(self) -> None:
        """Write what is waiting, make a last checkpoint, let go of the files. Blocking; durable unless ``error``."""
        self._inbox.put(_Stop())
        self._thread.join()
        self._background.shutdown()
        self._let_go()

    def halt(self) -> None:
        """From now on nothing is reported, and nothing new is begun. At once."""
        self._is_dropped = True

    def drop(self, wait_seconds: float) -> None:
        """Let go without writing anything. Blocking, about ``wait_seconds`` at most.

        A thread that hangs in the volume is left behind; when it wakes it finds itself dropped or deposed, and ends.
        """
        self.halt()
        if self._thread.ident is not None:  # else it never served anybody
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

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._once():
                pass
        except BaseException as error:
            self.error = error
            if not self._is_dropped:
                self._failed(error)

    def _once(self) -> bool:
        """Everything that is waiting now; False when the thread is to end."""
        must_stop = False
        operations: list[Operation | NewQueue] = []
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
        self.figures.last_seen_alive = self._clock()
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

    def _process(self, operations: list[Operation | NewQueue]) -> None:
        limit = self._settings.journal_max_write_batch_size
        batch: list[Operation | NewQueue] = []
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
            elif kind is NewQueue:
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

    def _commit(self, batch: list[Operation | NewQueue], payloads: list[bytes], size: int) -> None:
        """One write, one sync, one look, one wake-up."""
        if payloads:
            locations = self._write(payloads, size)
            self._apply(batch, locations)
        elif batch:
            self._apply(batch, [])
        self._report([operation for operation in batch if type(operation) is not NewQueue])  # type: ignore[misc]

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
        self.figures.batches += 1
        self.figures.records += len(payloads)
        self.figures.bytes_written += size
        return locations

    def _sync(self) -> None:
        self._writer.sync()
        self._is_unsynced = False
        self._last_sync = self._clock()
        self.figures.syncs += 1

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
            self._report_durable(operations)

    def _apply(self, batch: list[Operation | NewQueue], locations: list[int]) -> None:
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

    def _apply_rare(self, operation: Operation | NewQueue, locations: list[int], number: int, file: int) -> int:
        """Apply one operation of the less frequent kinds; returns how many records it had."""
        state = self._state
        if isinstance(operation, NewQueue):
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
            wait([self._preparing])  # if it failed, the rotation tries itself, and fails for good
            self._preparing = None
        file, end = writer.position
        files = (*self._files.list(), file + 1)
        strategy = self._settings.journal_disk_sync_strategy
        header = Header(self._epoch, self._broker, "rotation", {file: end}, files, sync=strategy)
        writer.rotate(encode_header(header))
        # By itself: were it torn and the next batch whole, that would look like damage in the middle.
        self._sync()
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
            or self.figures.bytes_written - self._bytes_at_checkpoint >= settings.checkpoint_bytes
            or now - self._last_checkpoint >= settings.checkpoint_interval
        )
        if is_due and tail.operations:
            self._checkpoint = self._background.submit(self._write_checkpoint, self._freeze())

    def _freeze(self) -> Frozen:
        if self._is_unsynced:
            self._sync()  # a checkpoint covers only what is on the disk, whatever the strategy
            self._look()
        self._last_checkpoint = self._clock()
        self._bytes_at_checkpoint = self.figures.bytes_written
        return self._state.freeze(self._chronicle.first_of_epoch, self._writer.position[0])

    def _write_checkpoint(self, frozen: Frozen) -> None:
        try:
            # Only when db.free was lost: what it would have said is found here, while others work.
            steps = chain(self._index.recover_free_pages(), self._index.checkpoint(changes(frozen), frozen.meta))
            slice_end = time.monotonic() + CHECKPOINT_SLICE_SECONDS
            for _ in steps:
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
        self.figures.checkpoints += 1
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


def _message_in(payload: bytes) -> Message:
    command = decode(payload)
    if isinstance(command, UpdateMessage):
        command = command.add
    assert isinstance(command, AddCommand), "an index entry points to a record that stores a message"
    return decode_message(command.message)
