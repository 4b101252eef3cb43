"""The one storage thread: everything that waits becomes one write, one sync, one look, one wake-up of the loop.

There is no timer on this way: a batch is what came while the one before was on its way to the disk. The thread owns
the journal's writer and the state, and begins checkpoints, which a thread of their own writes in slices.

After a failed write or sync, a lost lock or a foreign fence nothing is reported any more: the thread ends, and says
why. No sync is ever retried.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from index.index import Index
from journal.files import JournalFiles
from journal.reader import JournalReader
from journal.verify import VerifiedFiles
from journal.writer import JournalWriter
from store.archive import DEFAULT_NAME, Archive
from store.batch import Batch, NewQueue
from store.compaction import FACTOR, FACTOR_ASKED, Compaction, CompactionReport, plan
from store.damage import encode_next
from store.headers import Chronicle, Header, encode_header
from store.kahadb.java_objects import encode_audit
from store.keys import Entry
from store.marks import encode_gone
from store.open_transactions import PendingOperation
from store.operations import EndTransaction, Operation, Page, PagedMessage
from store.records.commands import ADD, UpdateMessage, decode, encode_producer_audit
from store.records.commands import AddMessage as AddCommand
from store.records.message import Message
from store.records.message_ids import is_made_by_broker
from store.records.openwire import decode_message
from store.settings import StoreSettings
from store.space import Space
from store.state import State
from store.tail import Frozen, Position, changes

log = logging.getLogger(__name__)

T = TypeVar("T")

# A standing checkpoint works in slices of this length and then lets the others run: the loop and the storage thread
# share one interpreter with it.
CHECKPOINT_SLICE_SECONDS = 0.001
CHECKPOINT_PAUSE_SECONDS = 0.001
# What a replay takes for a record, where it was not measured: half as much again as on the machine of bench/reports.
REPLAY_SECONDS_PER_RECORD = 12e-6
# A bound too low for any work: a checkpoint has costs of its own.
CHECKPOINT_RECORDS_MIN = 1_000
DAMAGED_IDS_SHOWN = 20


class NoProof(Exception):
    """The locker cannot prove any more that this broker is the master: no proof, no receipt."""


class _Stop:
    """Asks the thread to write what is waiting, make a last checkpoint and end."""

    __slots__ = ()


class _CheckpointDone:
    __slots__ = ("error", "frozen")

    def __init__(self, frozen: Frozen, error: BaseException | None) -> None:
        self.frozen = frozen
        self.error = error


class _Failed:
    """What was done in the background failed, and that is final."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Question:
    """A function of the state that somebody wants answered, between two batches."""

    __slots__ = ("answer", "function")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.answer: Future[Any] = Future()


class Figures:
    """What the thread has done so far; written by it alone, read by anybody.

    ``damaged`` counts messages that were not given out, because their batch does not verify any more.
    """

    __slots__ = (
        "batches",
        "bytes_copied",
        "bytes_written",
        "checkpoint_seconds",
        "checkpoints",
        "compactions",
        "damaged",
        "duplicates",
        "files_reclaimed",
        "last_seen_alive",
        "records",
        "syncs",
    )

    def __init__(self, now: float) -> None:
        self.batches = 0
        self.bytes_copied = 0
        self.bytes_written = 0
        self.checkpoint_seconds = 0.0
        self.checkpoints = 0
        self.compactions = 0
        self.damaged = 0
        self.duplicates = 0
        self.files_reclaimed = 0
        self.last_seen_alive = now
        self.records = 0
        self.syncs = 0


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
        space: Space,
        broker: str,
        epoch: int,
        replay_seconds_per_record: float,
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
        self._space = space
        self._verified = VerifiedFiles(files)
        self._remover = _remover(files, settings)
        self._first_file = writer.position[0]
        # Two tails are replayed after a crash: the frozen one, and the live one that grew meanwhile.
        affordable = int(settings.recovery_budget / replay_seconds_per_record / 2)
        self._checkpoint_records = min(settings.checkpoint_records, max(affordable, CHECKPOINT_RECORDS_MIN))
        self._broker = broker
        self._epoch = epoch
        self._has_proof = has_proof
        self._report_durable = report_durable
        self._failed = failed
        self._clock = clock
        self._inbox: SimpleQueue[list[Operation | NewQueue] | _Stop | _CheckpointDone | _Question | _Failed] = (
            SimpleQueue()
        )
        self._background = ThreadPoolExecutor(2, "tandemmq-background")
        self._checkpoint: Future[None] | None = None
        self._preparing: Future[None] | None = None
        self._is_next_ready = False
        self._unlinking: Future[None] | None = None
        self._compaction: Compaction | None = None
        self._compacted: list[tuple[Compaction, Position]] = []  # their files go when a checkpoint covers that
        self._next_step = 0.0
        self._sizes: dict[int, int] = {}  # of files that do not grow any more
        self._is_checkpoint_wanted = False
        self._is_in_a_hurry = False
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

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Have ``function`` called on this thread, between two batches; it must be short. The Future is cancelled when
        the thread ends before."""
        question = _Question(function)
        self._inbox.put(question)
        if not self._thread.is_alive() and self._thread.ident is not None:
            question.answer.cancel()
        return question.answer

    def compact(self) -> Future[CompactionReport]:
        """Empty, now, all files in which more than a little is dead. The report comes when they are gone."""
        report: Future[CompactionReport] = Future()

        def begin() -> None:
            if self._compaction is None:
                self._begin_compaction(FACTOR_ASKED)
            if self._compaction is None:
                disk = self._disk_bytes()
                report.set_result(CompactionReport((), 0, 0, disk, disk))
            else:
                self._compaction.reports.append(report)

        self.ask(begin).add_done_callback(lambda asked: asked.cancelled() and report.cancel())
        return report

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
        background = (self._checkpoint, self._preparing, self._unlinking)
        working = [future for future in background if future is not None and not future.cancelled()]
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
        finally:
            self._cancel_questions()

    def _cancel_questions(self) -> None:
        unfinished = [compaction for compaction, _ in self._compacted]
        if self._compaction is not None:
            unfinished.append(self._compaction)
        for compaction in unfinished:
            for report in compaction.reports:
                report.cancel()
        try:
            while True:
                item = self._inbox.get_nowait()
                if type(item) is _Question:
                    item.answer.cancel()
        except Empty:
            pass

    def _once(self) -> bool:
        """Everything that is waiting now; False when the thread is to end."""
        must_stop = False
        operations: list[Operation | NewQueue] = []
        try:
            item = self._inbox.get(timeout=self._patience())
            while True:
                if type(item) is list:
                    operations += item
                elif type(item) is _CheckpointDone:
                    self._checkpoint_done(item)
                elif type(item) is _Question:
                    self._answer(item)
                elif type(item) is _Failed:
                    raise item.error
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
            self._space.note_written(0)  # time passes: space may be back
        if must_stop:
            self._finish()
            return False
        self._maintain()
        return True

    def _patience(self) -> float:
        """How long to wait for something to do."""
        if self._compaction is None:
            return self._settings.look_interval
        return min(max(0.0, self._next_step - self._clock()), self._settings.look_interval)

    def _answer(self, question: _Question) -> None:
        if not question.answer.set_running_or_notify_cancel():
            return
        try:
            question.answer.set_result(question.function())
        except Exception as error:
            question.answer.set_exception(error)

    def _process(self, operations: list[Operation | NewQueue]) -> None:
        limit = self._settings.journal_max_write_batch_size
        batch = Batch(self._state)
        for operation in operations:
            if isinstance(operation, Page | EndTransaction):  # rest on all that came before
                self._commit(batch)
                batch = Batch(self._state)
                if isinstance(operation, Page):
                    self._read_page(operation)
                else:
                    self._end_transaction(operation)
                self._report([operation])
                continue
            payloads = batch.payloads_of(operation)
            length = sum(map(len, payloads))
            if batch.payloads and batch.bytes + length > limit:
                self._commit(batch)
                batch = Batch(self._state)
            batch.append(operation, payloads, length)
        self._commit(batch)

    def _commit(self, batch: Batch) -> None:
        """One write, one sync, one look, one wake-up."""
        locations = self._write(batch.payloads, batch.bytes) if batch.payloads else []
        batch.apply(locations, self._writer.position[0])
        self.figures.duplicates += batch.duplicates
        self._report(batch.reported())

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
        self._space.note_written(size)
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

    # ---- prepared transactions

    def _end_transaction(self, end: EndTransaction) -> None:
        state = self._state
        key = end.transaction.key
        known = state.transactions.get(key)
        if known is None or not known.is_prepared:
            end.is_unknown = True
            return
        location = self._write([end.payload], len(end.payload))[0]
        transaction = state.end_transaction(key, location)
        assert transaction is not None, "it was there a moment ago"
        added: dict[tuple[int, str], int] = {}
        for number, operation in enumerate(transaction.operations):
            if operation.kind == ADD:
                destination = operation.destination
                owners = state.topics.get(destination, ()) if destination.is_topic else (state.queues[destination],)
                if not is_made_by_broker(operation.message_id):
                    (state.note_id if end.is_commit else state.forget_id)(owners, operation.message_id)
                if end.is_commit:
                    self._add_prepared(end, operation, owners, location << 32 | number, added)
            else:
                self._remove_prepared(end, operation, location >> 32, added)

    def _add_prepared(
        self,
        end: EndTransaction,
        operation: PendingOperation,
        owners: Sequence[int],
        order_key: int,
        added: dict[tuple[int, str], int],
    ) -> None:
        state = self._state
        message = self._read_message(operation.location, operation.size)
        for number, owner in enumerate(owners):
            state.add(owner, order_key, operation.location, operation.size, operation.message_id, is_shared=number > 0)
            added[owner, operation.message_id] = order_key
            end.added.append((owner, PagedMessage(order_key, operation.location, operation.size, message)))

    def _remove_prepared(
        self, end: EndTransaction, operation: PendingOperation, file: int, added: dict[tuple[int, str], int]
    ) -> None:
        state = self._state
        owner, order_key = operation.owner, operation.order_key
        if not order_key:
            # A durable subscription that was passed over; for the rest of those there was nothing to remove.
            found = state.subscriptions.get(operation.subscription_key or "")
            place = None if found is None else added.pop((found, operation.message_id), None)
            if not end.is_commit or found is None or place is None:
                return
            owner, order_key = found, place
            end.added = [(held, each) for held, each in end.added if (held, each.order_key) != (owner, order_key)]
        entry = state.entry(owner, order_key) if owner in state.owners else None
        if entry is None:
            return
        if end.is_commit:
            state.remove(owner, order_key, entry.location, entry.size, entry.message_id, file)
            if operation.order_key:
                end.removed.append((owner, order_key))
        else:
            message = self._read_message(entry.location, entry.size)
            end.returned.append((owner, PagedMessage(order_key, entry.location, entry.size, message)))

    # ---- reading

    def _read_page(self, page: Page) -> None:
        found: list[tuple[int, Entry]] = []
        total = 0
        page.is_end = True
        withheld = self._state.withheld.get(page.owner, ())
        for order_key, entry in self._state.entries(page.owner, page.after):
            if found and (len(found) >= page.count or total + entry.size > page.bytes_max):
                page.is_end = False
                break
            if order_key in withheld or not self._is_sound(entry):
                continue
            found.append((order_key, entry))
            total += entry.size
        payloads = self.read([(entry.location, entry.size) for _, entry in found])
        for (order_key, entry), payload in zip(found, payloads, strict=True):
            message = _message_in(payload, self.version_at(entry.location >> 32))
            page.messages.append(PagedMessage(order_key, entry.location, entry.size, message))

    def _read_message(self, location: int, size: int) -> Message:
        return _message_in(self._reader.read(location, size), self.version_at(location >> 32))

    def _is_sound(self, entry: Entry) -> bool:
        """Whether the batch in which the entry stands still has its checksum. What has not is given to nobody."""
        file = entry.location >> 32
        if file >= self._first_file:  # written by this process, and not older than its memory of it
            return True
        damage = self._verified.damage_in(file, self._chronicle.ends.get(file))
        offset = entry.location & 0xFFFFFFFF
        if not any(start <= offset < stop for start, stop in damage):
            return True
        self.figures.damaged += 1
        if self.figures.damaged <= DAMAGED_IDS_SHOWN:
            log.error(
                "message %s is damaged and is given to nobody: db-%d.log, offset %d", entry.message_id, file, offset
            )
        return False

    def version_at(self, file: int) -> int:
        """The OpenWire version of the messages in a file."""
        return self._chronicle.version_at(file)

    def read(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        """Payloads of records, given as (location, size) in any order; neighbours are read together. On this thread."""
        ascending = sorted(set(wanted))  # what was copied stands elsewhere than its neighbours in the order
        found = dict(zip(ascending, self._reader.read_many(ascending), strict=True))
        return [found[place] for place in wanted]

    def read_record(self, location: int) -> bytes:
        """The payload of a record whose size is not known. On this thread."""
        return self._reader.read(location)

    def write_copies(self, payloads: list[bytes]) -> list[int]:
        """Write a batch of a compaction's; durable and looked at on return. On this thread."""
        size = sum(map(len, payloads))
        locations = self._write(payloads, size)
        self.figures.bytes_copied += size
        return locations

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
        self._is_next_ready = False
        file, end = writer.position
        header = Header(
            self._epoch,
            self._broker,
            "rotation",
            {file: end},
            # Not what the directory lists: a file that was given up may not be unlinked yet.
            (*sorted(self._state.files.keys() | {file}), file + 1),
            sync=self._settings.journal_disk_sync_strategy,
            length=self._settings.journal_max_file_length,
        )
        writer.rotate(encode_header(header), encode_next(file + 1))
        # By itself: were it torn and the next batch whole, that would look like damage in the middle.
        self._sync()
        self._state.know_file(writer.position[0])

    # ---- checkpoints

    def _maintain(self) -> None:
        self._prepare_next()
        self._compact_a_little()
        settings = self._settings
        tail = self._state.tail
        if self._checkpoint is not None:
            if tail.operations > self._checkpoint_records:
                self._is_in_a_hurry = True
                self._checkpoint.result()  # the bound of the live tail: producers wait for the checkpoint
            return
        now = self._clock()
        is_due = (
            tail.operations >= self._checkpoint_records
            or self.figures.bytes_written - self._bytes_at_checkpoint >= settings.checkpoint_bytes
            or now - self._last_checkpoint >= settings.checkpoint_interval
            or self._is_checkpoint_wanted
            # Until its index stands in it, nothing but the file itself tells that this epoch began.
            or (
                self.figures.checkpoints == 0
                and self.figures.batches > 0
                and settings.journal_disk_sync_strategy == "always"
            )
        )
        has_room = self._space.has_checkpoint_room or tail.operations >= 2 * self._checkpoint_records
        if is_due and has_room and (tail.operations or self._is_checkpoint_wanted):
            self._is_checkpoint_wanted = False
            self._checkpoint = self._background.submit(self._write_checkpoint, self._freeze())

    def _prepare_next(self) -> None:
        """Have the next file made ahead of need. A full disk is no failure yet: producers are refused then."""
        preparing = self._preparing
        if preparing is not None and preparing.done() and not self._is_next_ready:
            error = preparing.exception()
            if error is not None and not isinstance(error, OSError):
                raise error
            self._space.note_prepared(error)
            self._is_next_ready = error is None
            if error is not None:
                self._preparing = preparing = None
        if (
            preparing is None
            and self._writer.position[1] * 2 > self._settings.journal_max_file_length
            and self._space.may_prepare
        ):
            self._preparing = self._background.submit(self._writer.prepare_next)

    def _freeze(self) -> Frozen:
        if self._is_unsynced:
            self._sync()  # a checkpoint covers only what is on the disk, whatever the strategy
            self._look()
        self._last_checkpoint = self._clock()
        self._bytes_at_checkpoint = self.figures.bytes_written
        return self._state.freeze(self._chronicle.first_of_epoch, self._writer.position[0])

    def _write_checkpoint(self, frozen: Frozen) -> None:
        started = time.monotonic()
        try:
            # Only when db.free was lost: what it would have said is found here, while others work.
            steps = chain(self._index.recover_free_pages(), self._index.checkpoint(changes(frozen), frozen.meta))
            slice_end = time.monotonic() + CHECKPOINT_SLICE_SECONDS
            for _ in steps:
                if self._is_dropped:
                    return
                if time.monotonic() > slice_end and not self._is_in_a_hurry:
                    time.sleep(CHECKPOINT_PAUSE_SECONDS)
                    slice_end = time.monotonic() + CHECKPOINT_SLICE_SECONDS
            self.figures.checkpoint_seconds += time.monotonic() - started
            self._inbox.put(_CheckpointDone(frozen, None))
        except BaseException as error:
            self._inbox.put(_CheckpointDone(frozen, error))
            raise

    def _checkpoint_done(self, done: _CheckpointDone) -> None:
        self._checkpoint = None
        if done.error is not None:
            raise done.error
        self._is_in_a_hurry = False
        self._state.thaw()
        self.figures.checkpoints += 1
        now = self._clock()
        if now - self._last_cleanup >= self._settings.cleanup_interval or self._compacted:
            self._last_cleanup = now
            if done.frozen.reclaimable:
                self._reclaim(done.frozen.reclaimable)
            self._end_compactions(done.frozen.position)
            if self._settings.enable_compaction and self._compaction is None:
                self._begin_compaction(FACTOR)

    def _reclaim(self, files: tuple[int, ...]) -> None:
        """Remove files that nothing needs: first said in the journal, then done, oldest first."""
        records = [encode_gone(files)]
        state = self._state
        audit = state.audit
        must_tell = audit is not None and len(audit) > 0
        if must_tell and (state.audit_record[1] != audit.revision or state.audit_record[0] >> 32 in files):  # type: ignore[union-attr]
            # The messages from which a replay would learn it are to go (AMQ-3833: only if it changed).
            assert audit is not None, "asked just before"
            records.insert(0, encode_producer_audit(encode_audit(audit.image())))
        locations = self._write(records, sum(map(len, records)))
        if audit is not None and len(records) > 1:
            state.audit_record = (locations[0], audit.revision)
        if self._is_unsynced:
            self._sync()
            self._look()
        self._reader.forget(files)
        self._verified.forget(files)
        # A removal that failed is final as a failed write is: what pins a file that is still there must stay.
        if self._unlinking is not None:
            self._unlinking.result()
        state.forget_files(files)
        for file in files:
            self._sizes.pop(file, None)
        self.figures.files_reclaimed += len(files)
        self._unlinking = self._background.submit(self._unlink, files)
        self._unlinking.add_done_callback(self._unlinked)
        log.info("reclaimed %d journal files (%d to %d)", len(files), files[0], files[-1])

    def _unlink(self, files: tuple[int, ...]) -> None:
        for file in files:
            # One at a time, each with a sync of the directory: a removed acknowledgement must not be gone while the
            # message that it killed comes back after a power loss.
            self._remover.remove([file])

    def _unlinked(self, unlinking: Future[None]) -> None:
        """In the background: a failure is the storage thread's to raise."""
        error = None if unlinking.cancelled() else unlinking.exception()
        if error is not None:
            self._inbox.put(_Failed(error))

    # ---- compaction

    def _disk_bytes(self) -> int:
        return sum(self._file_sizes().values())

    def _file_sizes(self) -> dict[int, int]:
        current = self._writer.position[0]
        sizes = {}
        for file in self._state.files:
            size = self._sizes.get(file)
            if size is None:
                try:
                    size = self._files.size(file)
                except FileNotFoundError:
                    continue
                if file < current:
                    self._sizes[file] = size
            sizes[file] = size
        return sizes

    def _begin_compaction(self, factor: float) -> None:
        if self._space.free_bytes < self._settings.journal_max_file_length:
            return  # copies need room
        state = self._state
        sizes = self._file_sizes()
        current = self._writer.position[0]
        first_of_epoch = self._chronicle.first_of_epoch
        files = plan(
            state.files,
            sizes,
            current,
            lambda emptied: state.reclaimable(first_of_epoch, current, emptied),
            file_length=self._settings.journal_max_file_length,
            held_by_records=state.held_by_records(),
            factor=factor,
        )
        files = tuple(file for file in files if not self._is_damaged(file))
        if files:
            self._compaction = Compaction(state, self, files, sum(sizes.values()))
            log.info("compaction begins: %d of %d journal files are to be emptied", len(files), len(sizes))

    def _is_damaged(self, file: int) -> bool:
        """What does not verify is not copied: a copy would get a checksum of its own."""
        return file < self._first_file and bool(self._verified.damage_in(file, self._chronicle.ends.get(file)))

    def _compact_a_little(self) -> None:
        compaction = self._compaction
        if compaction is None or self._clock() < self._next_step:
            return
        copied = compaction.step()
        # The rate bounds what producers and consumers lose to this; checkpoints take what it does to the state.
        self._next_step = self._clock() + copied / self._settings.compaction_rate
        if compaction.is_done:
            self.figures.compactions += 1
            assert self._state.position is not None, "what was copied stands somewhere"
            self._compacted.append((compaction, self._state.position))
            self._compaction = None
            self._is_checkpoint_wanted = True

    def _end_compactions(self, covered: Position) -> None:
        """A checkpoint covers what was copied, and the files that it emptied are given up."""
        while self._compacted and self._compacted[0][1][:2] <= covered[:2]:
            compaction, _ = self._compacted.pop(0)
            report = compaction.report(self._disk_bytes())
            log.info(
                "compaction: %d messages, %d bytes copied out of %d files; the journal went from %d to %d bytes",
                report.messages,
                report.bytes_copied,
                len(report.files),
                report.disk_before,
                report.disk_expected,
            )
            if compaction.reports:
                self._background.submit(_tell, self._unlinking, compaction.reports, report)

    def _finish(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.result()
            self._state.thaw()
            self._checkpoint = None
        if self._state.tail.operations and self._space.has_checkpoint_room:
            frozen = self._freeze()
            for _ in self._index.checkpoint(changes(frozen), frozen.meta):
                pass
            self._state.thaw()
            if self._settings.cleanup_on_stop and frozen.reclaimable:
                self._reclaim(frozen.reclaimable)
        elif self._is_unsynced:
            self._sync()
            self._look()


def _remover(files: JournalFiles, settings: StoreSettings) -> JournalFiles | Archive:
    if not settings.archive_data_logs:
        return files
    return Archive(files, settings.directory_archive or os.path.join(files.directory, DEFAULT_NAME), files.disk)


def _tell(
    unlinking: Future[None] | None, reports: Sequence[Future[CompactionReport]], report: CompactionReport
) -> None:
    """Report when the files are really gone."""
    if unlinking is not None:
        wait([unlinking])
    for waiting in reports:
        waiting.set_result(report)


def _message_in(payload: bytes, version: int) -> Message:
    command = decode(payload)
    if isinstance(command, UpdateMessage):
        command = command.add
    assert isinstance(command, AddCommand), "an index entry points to a record that stores a message"
    return decode_message(command.message, version)
