"""Storage thread: it needs one write, one sync, one fence check and one wake-up of the event loop for all waiting
operations.

It uses no timer: a batch has all operations that arrived while the previous batch was written. In the compiled version,
most operations do not use the inbox: the loop submits them to a queue (store.writer.submissions). The thread owns the
state, the end of the journal (store.writer.journal_end) and the upkeep (store.maintenance.upkeep).

After a failed write, a failed sync, the loss of the lock or the fence of another broker, the thread reports no further
operation as durable: it reports the error, and ends. It never retries a sync.
"""

# proofs: journal-end

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty
from typing import Any, Final, TypeVar

from tandemmq.journal.errors import JournalError, JournalMissing
from tandemmq.store.authority import is_mended
from tandemmq.store.maintenance.compaction import CompactionReport
from tandemmq.store.maintenance.upkeep import CheckpointDone, Failed, Upkeep
from tandemmq.store.operations import AddMessage, Atomic, CountDeliveries, Operation, Page
from tandemmq.store.records.message_ids import broker_ids
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.promotion import Promoted
from tandemmq.store.settings import StoreSettings
from tandemmq.store.threads import OS_THREADS, Inbox, Threads
from tandemmq.store.writer.background import Background, Pulse
from tandemmq.store.writer.batch import Batch, NewQueue, Part, apply
from tandemmq.store.writer.copying import count
from tandemmq.store.writer.figures import BATCH_RECORDS, SYNC_SECONDS, Figures
from tandemmq.store.writer.journal_end import JournalEnd
from tandemmq.store.writer.pages import Pages
from tandemmq.store.writer.space import Space
from tandemmq.store.writer.submissions import NewMessages, Submissions

log = logging.getLogger(__name__)

#: Maximum time in seconds to wait for the repair of a damaged file from copies on other nodes.
MEND_SECONDS: Final = 3.0

T = TypeVar("T")


class _Stop:
    """Request to write the waiting operations, make a last checkpoint and end."""

    __slots__ = ()


class _Dropped(Exception):
    """The store was dropped while the thread waited. Ends the thread."""


class _Call:
    """Function that the thread calls for another thread, between two batches, and the future of its result."""

    __slots__ = ("function", "result")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.result: Future[Any] = Future()


_Item = list[Operation | NewQueue] | _Stop | _Call | CheckpointDone | Failed


class StorageThread:
    """Storage thread, which writes and syncs operations in batches.

    It calls ``report_durable`` with operations that are durable, and ``failed`` with the error that ends it; both are
    called on this thread and must not block. Before each report it calls ``has_proof``, which returns whether the
    locker's last proof of ownership is still valid. ``error`` is the error that ended the thread, or None.
    """

    def __init__(
        self,
        follower: Follower,
        promoted: Promoted,
        settings: StoreSettings,
        *,
        space: Space,
        broker: str,
        has_proof: Callable[[], bool],
        report_durable: Callable[[list[Operation]], object],
        failed: Callable[[BaseException], object],
        threads: Threads = OS_THREADS,
    ) -> None:
        self.figures = figures = Figures(threads.monotonic())
        self.error: BaseException | None = None
        self._state = state = follower.state
        self._index = follower.index
        self._settings = settings
        self._space = space
        self._report_durable = report_durable
        self._failed = failed
        self._clock = threads.monotonic
        self._is_dropped = False
        self._is_closed = False
        self._has_ended = False  # the thread takes no further items from the inbox
        self._threads = threads
        self._authority = promoted.authority
        # Its items are of the type ``_Item``.
        self._inbox: Inbox = threads.inbox()
        # Puts an item into the inbox. Operations are written in order, after those that were submitted to the queue.
        # Never blocks; the caller bounds the number of waiting operations. Any thread may call it, but only one thread
        # may put operations.
        self.put: Callable[[_Item], None] = self._inbox.put
        queue = promoted.writer.commit_queue(SYNC_SECONDS, BATCH_RECORDS)
        if queue is not None:
            state.number_ids()
        self._submissions = None if queue is None else Submissions(queue, NewMessages())
        self._background = background = Background(threads)
        self._end = JournalEnd(
            promoted.writer,
            state,
            settings,
            figures,
            space,
            broker=broker,
            epoch=promoted.epoch,
            authority=promoted.authority,
            has_proof=has_proof,
            alive=self._note_life,
            background=background,
            threads=threads,
        )
        # Each of several stores of one broker gives its own ids.
        self._own_ids = broker_ids(f"ID:store-{promoted.epoch}-{state.first_owner}")
        self._pages = Pages(follower.files, state, follower.epoch_history, figures, self._repair, threads.monotonic)
        self._upkeep = Upkeep(
            follower,
            self._end,
            self._pages,
            settings,
            figures,
            space,
            background=background,
            put=lambda item: self.put(item),
            threads=threads,
        )
        self._pulse: Pulse | None = None
        self._worker = threads.thread(self._run, "tandemmq-storage")

    # ---- from other threads

    def start(self, *, takes_submissions: bool = False) -> Submissions | None:
        """Start the thread. With ``takes_submissions``, return the queue to which the loop may submit turns.

        Returns None if there is no such queue: without ``takes_submissions``, or if the journal writer provides none
        (``commit_queue``).
        """
        if not takes_submissions:
            self._submissions = None
        elif self._submissions is not None:
            self.put = self._put_and_interrupt
            self.figures.queue = self._submissions.queue
        self._worker.start()
        return self._submissions

    def _put_and_interrupt(self, item: _Item) -> None:
        """Put an item into the inbox, and interrupt the serving of the queue, so that the thread reads the inbox."""
        self._inbox.put(item)
        if self._submissions is not None:
            self._submissions.queue.interrupt()  # prove: submitted-before-put

    def soon(self, chore: Callable[[], object]) -> None:
        """Run ``chore``, which may take long, on the background thread. Returns immediately."""
        self._background.submit(chore)

    def seen_alive(self) -> float:
        """Return the monotonic time at which this thread, or a thread that it waits for, was last found at work.

        Returns the current time after ``close`` or ``drop``. Any thread.
        """
        if self._is_closed:
            return self._clock()
        if self._pulse is None and self._worker.native_id is not None:
            self._pulse = Pulse(self._threads, self._worker.native_id)
        seen_busy = float("-inf") if self._pulse is None else self._pulse.seen_busy()
        return max(self.figures.last_seen_alive, seen_busy, self._background.seen_alive())

    @property
    def archive_problem(self) -> str | None:
        """Reason why removed files are not in the archive yet (``Upkeep.archive_problem``); None: no problem. Any
        thread."""
        return self._upkeep.archive_problem

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Call ``function``, which must be short, on the storage thread between two batches. Any thread.

        The Future gets its result. It is cancelled if the thread ends before the call.
        """
        call = _Call(function)
        self.put(call)
        if self._has_ended:  # the thread may have ended before it took this item
            call.result.cancel()
        return call.result

    def compact(self) -> Future[CompactionReport]:
        """Compact now all files in which more than a small part is dead. Any thread.

        The Future gets its report when these files are removed. It is cancelled if the thread ends before.
        """
        report: Future[CompactionReport] = Future()
        asked = self.ask(lambda: self._upkeep.compact(report))
        asked.add_done_callback(lambda asked: asked.cancelled() and report.cancel())
        return report

    def rotate(self) -> Future[None]:
        """Continue in a new journal file. Any thread.

        The Future is done when the header of the file is final, and cancelled if the thread ends before.
        """
        return self.ask(self._rotate)

    def _rotate(self) -> None:
        self._end.rotate()
        self._end.settle()
        self._upkeep.clean_up_soon()

    def checkpoint(self) -> Future[None]:
        """Make a checkpoint of the present state, while the thread continues to write. Any thread.

        The Future is done when the checkpoint is durable, and cancelled if the thread ends before.
        """
        done: Future[None] = Future()
        asked = self.ask(lambda: self._upkeep.checkpoint_soon(done))
        asked.add_done_callback(lambda asked: asked.cancelled() and done.cancel())
        return done

    def close(self) -> None:
        """Write the waiting operations, make a last checkpoint, close the files. Blocking.

        If ``error`` is None on return, all operations are durable.
        """
        self.put(_Stop())
        self._worker.join()
        self._background.finish()
        self._close_files()

    def halt(self) -> None:
        """Report no operation from now on, and begin no further work. Any thread; returns at once."""
        self._is_dropped = True
        self._upkeep.is_halted = True
        if self._submissions is not None:
            self._submissions.queue.halt()  # prove: halted-writes-nothing-submitted

    def drop(self) -> None:
        """Close all files without a further write. Also after ``close``, and after a ``close`` that failed.

        Blocking: if the storage thread hangs in a call to the volume, waits until the call returns. Then the thread
        finds that the store was dropped or deposed, and ends.
        """
        self.halt()
        if self._worker.native_id is not None:  # else it was never started
            self.put(_Stop())
            self._worker.join()
        self._background.finish(cancel=True)
        self._close_files()

    def _close_files(self) -> None:
        self._end.close()
        self._pages.close()
        self._index.close()
        self._is_closed = True

    # ---- the thread

    def _note_life(self) -> None:
        """Note that the thread works, while a batch waits for its confirmation. Raises _Dropped after ``halt``."""
        if self._is_dropped:
            raise _Dropped("the store was dropped during a confirmation")
        self.figures.last_seen_alive = self._clock()

    def _repair(self, file: int) -> bool:
        """Wait for the repair of a damaged file from other nodes; return whether it was repaired."""
        return is_mended(self._authority, file, seconds=MEND_SECONDS, alive=self._note_life, threads=self._threads)

    def _run(self) -> None:
        try:
            self._end.check_fence()  # prove: first-fence-check-before-work
            while self._once():
                pass
        except BaseException as reason:
            self.error = error = self._cause(reason)
            if not self._is_dropped:
                self._failed(error)
        finally:
            self._cancel_calls()

    def _cause(self, reason: BaseException) -> BaseException:
        """Return the cause of ``reason``: a missing file may have been removed by a successor that deposed this broker,
        and is no damage then."""
        if isinstance(reason, JournalMissing):
            try:
                self._end.writer.check_fence()  # prove: missing-file-may-be-deposition
            except JournalError as deposed:
                return deposed
        return reason

    def _cancel_calls(self) -> None:
        self._has_ended = True  # before the inbox is emptied, so that later callers of ``ask`` see it
        self._upkeep.cancel_reports()
        try:
            while True:
                item = self._inbox.get_nowait()
                if type(item) is _Call:
                    item.result.cancel()
        except Empty:
            pass

    def _once(self) -> bool:
        """Handle all items that wait now; return False if the thread must end."""
        must_stop = False
        operations: list[Operation | NewQueue] = []
        served = 0
        item: _Item | None
        try:
            if self._submissions is not None and self._end.may_serve:
                self._submissions.queue.clear()  # prove: cleared-before-the-inbox order inbox-before-serving
                item = self._next_item()  # prove: inbox-before-serving
                if item is None:  # prove: inbox-before-queue
                    served = self._serve(self._submissions)
                    item = self._inbox.get_nowait()
            else:
                item = self._inbox.get(timeout=self._timeout())
            while True:
                if type(item) is list:
                    operations += item
                elif type(item) is CheckpointDone:
                    self._upkeep.checkpoint_done(item)
                elif type(item) is _Call:
                    self._execute(item)
                elif type(item) is Failed:
                    raise item.error
                else:
                    must_stop = True
                if len(operations) > self._settings.max_async_jobs or self._inbox.empty():
                    break
                item = self._inbox.get_nowait()
        except Empty:
            pass
        self.figures.last_seen_alive = self._clock()
        if self._is_dropped:
            return False
        if operations:
            self._process(operations)
        elif not served:
            self._end.check_fence()  # prove: idle-master-checks-fence
            self._space.note_written(0)  # another process may have freed disk space
        if must_stop:
            self._upkeep.finish()
            return False
        self._upkeep.work()
        return True

    def _next_item(self) -> _Item | None:
        """Return the next item of the inbox; None if it is empty."""
        try:
            return self._inbox.get_nowait()  # type: ignore[no-any-return]
        except Empty:
            return None

    def _serve(self, submissions: Submissions) -> int:
        """Write batches while the loop submits them, then apply them to the state; return the number of batches."""
        batches = self._end.serve(submissions.queue, self._timeout())
        if batches:
            operations = submissions.written(batches)
            file = self._end.writer.file
            for operation in operations:
                if type(operation) is Atomic:
                    for part in operation.operations:
                        self._apply(part, file)
                else:
                    self._apply(operation, file)  # type: ignore[arg-type]
            self.figures.confirmed += len(operations)
        return batches

    def _apply(self, part: Part, file: int) -> None:
        """Apply an operation that was submitted to the queue and is durable."""
        if (
            type(part) is AddMessage and part.is_audited
        ):  # the loop knew that the message is new, so its id was not searched
            self._state.note_id(part.owners, part.message.message_id)  # prove: submitted-is-known
        apply(self._state, part, file)

    def _timeout(self) -> float:
        """Return the maximum number of seconds to wait for an item."""
        interval = self._settings.fence_check_interval
        due = self._upkeep.next_work
        return interval if due is None else min(max(0.0, due - self._clock()), interval)

    def _execute(self, call: _Call) -> None:
        if not call.result.set_running_or_notify_cancel():
            return
        try:
            call.result.set_result(call.function())
        except Exception as error:
            call.result.set_exception(error)

    def _process(self, operations: list[Operation | NewQueue]) -> None:
        limit = self._settings.journal_max_write_batch_size
        batch = Batch(self._state, self._pages, self._own_ids)
        number = 0
        while (number := batch.take_plain(operations, number, limit)) < len(operations):
            operation = operations[number]
            number += 1
            if batch.must_come_first(operation):
                self._commit(batch)
                batch = Batch(self._state, self._pages, self._own_ids)
            if isinstance(operation, Page):
                self._pages.fill(operation)
                self._report([operation])
                continue
            if isinstance(operation, CountDeliveries):
                has_room = self._space.has_room_beside_reserve
                count(self._state, self._pages, operation.owner, operation.counts, has_room, self._write_counted)
                self._report([operation])
                continue
            payloads = batch.payloads_of(operation)
            length = sum(map(len, payloads))
            if batch.payloads and batch.bytes + length > limit:
                self._commit(batch)
                batch = Batch(self._state, self._pages, self._own_ids)
            batch.append(operation, payloads, length)
        self._commit(batch)

    def _write_counted(self, payloads: list[bytes]) -> list[int]:
        return self._end.write(payloads, sum(map(len, payloads)))

    def _commit(self, batch: Batch) -> None:
        """Write and sync the batch, apply it to the state, and report its operations."""
        locations = self._end.write(batch.payloads, batch.bytes, must_sync=batch.must_sync) if batch.payloads else []
        batch.apply(locations, self._end.writer.position[0])
        self.figures.duplicates += batch.duplicates
        self._report(batch.reported())

    def _report(self, operations: list[Operation]) -> None:
        if operations and not self._is_dropped:  # prove: halted-reports-nothing " and not self._is_dropped"
            self.figures.confirmed += len(operations)
            self._report_durable(operations)
