"""The storage thread: all waiting operations become one write, one sync, one fence check, one wake-up of the loop.

There is no timer: a batch has all operations that arrived while the previous batch was written. In the compiled
version, most batches do not use the inbox: the loop submits them to a queue (store.writer.submissions). The thread owns
the state, the end of the journal (store.writer.journal_end) and the upkeep (store.maintenance.upkeep).

After a failed write or sync, the loss of the lock or the fence of another broker, the thread reports no operation any
more: it reports the error, and ends. No sync is ever retried.
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
from tandemmq.store.writer.background import Background
from tandemmq.store.writer.batch import Batch, NewQueue, Part, apply
from tandemmq.store.writer.copying import count
from tandemmq.store.writer.figures import BATCH_RECORDS, SYNC_SECONDS, Figures
from tandemmq.store.writer.journal_end import JournalEnd
from tandemmq.store.writer.new_messages import NewMessages
from tandemmq.store.writer.pages import Pages
from tandemmq.store.writer.pulse import Pulse
from tandemmq.store.writer.space import Space
from tandemmq.store.writer.submissions import Submissions

log = logging.getLogger(__name__)

#: Longest wait for the repair of a damaged file with copies of other nodes, which may not answer.
MEND_SECONDS: Final = 3.0

T = TypeVar("T")


class _Stop:
    """Request to write what is waiting, make a last checkpoint and end."""

    __slots__ = ()


class _Dropped(Exception):
    """Raised in a wait of the thread, to end it."""


class _Question:
    """Function that the thread calls for another thread, between two batches."""

    __slots__ = ("answer", "function")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.answer: Future[Any] = Future()


_Item = list[Operation | NewQueue] | _Stop | _Question | CheckpointDone | Failed


class StorageThread:
    """Writes and syncs in batches. ``report_durable`` and ``failed`` are called on this thread, and must not block.

    ``has_proof`` is called before each report: it returns whether the locker's last proof of ownership is still valid.
    ``error`` is the error that ended the thread, if there was one.
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
        self._has_let_go = False
        self._has_ended = False  # the thread takes nothing more from the inbox
        self._threads = threads
        self._authority = promoted.authority
        # Of list[Operation | NewQueue], _Stop, CheckpointDone, _Question and Failed
        self._inbox: Inbox = threads.inbox()
        # Hands over operations, in order, after those that were submitted to the queue. Never blocks; the caller bounds
        # the number that waits. Any thread may call it, but only one may hand over operations.
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
            alive=self._show_life,
            background=background,
            threads=threads,
        )
        # Each of several stores of one broker has its own owners.
        self._own_ids = broker_ids(f"ID:store-{promoted.epoch}-{state.first_owner}")
        self._pages = Pages(follower.files, state, follower.epoch_history, figures, self._mends, threads.monotonic)
        self._upkeep = Upkeep(
            follower,
            self._end,
            self._pages,
            settings,
            figures,
            space,
            background=background,
            tell=lambda item: self.put(item),
            threads=threads,
        )
        self._pulse: Pulse | None = None
        self._worker = threads.thread(self._run, "tandemmq-storage")

    # ---- from other threads

    def start(self, *, takes_submissions: bool = False) -> Submissions | None:
        """Start the thread. With ``takes_submissions`` return the queue to which the caller may submit turns, if
        possible."""
        if not takes_submissions:
            self._submissions = None
        elif self._submissions is not None:
            self.put = self._put_behind
            self.figures.queue = self._submissions.queue
        self._worker.start()
        return self._submissions

    def _put_behind(self, item: _Item) -> None:
        """Put an item into the inbox, and stop the serving of the queue, so that the thread reads the inbox."""
        self._inbox.put(item)
        if self._submissions is not None:
            self._submissions.queue.interrupt()  # prove: submitted-before-put

    def soon(self, chore: Callable[[], object]) -> None:
        """Run ``chore`` in the background; it may take long, and no caller waits for it."""
        self._background.submit(chore)

    def seen_alive(self) -> float:
        """Return the time of the last sign of life of the thread, or of those that it waits for.

        Returns the current time after its end. Any thread."""
        if self._has_let_go:
            return self._clock()
        if self._pulse is None and self._worker.native_id is not None:
            self._pulse = Pulse(self._threads, self._worker.native_id)
        seen_busy = float("-inf") if self._pulse is None else self._pulse.seen_busy()
        return max(self.figures.last_seen_alive, seen_busy, self._background.seen_alive())

    @property
    def archive_problem(self) -> str | None:
        """Problem of the archive (``Upkeep.archive_problem``). Any thread."""
        return self._upkeep.archive_problem

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Call ``function`` on this thread, between two batches; it must be short. The Future is cancelled when
        the thread ends before."""
        question = _Question(function)
        self.put(question)
        if self._has_ended:  # the thread may have ended before it took this item
            question.answer.cancel()
        return question.answer

    def compact(self) -> Future[CompactionReport]:
        """Compact now all files of which a noticeable part is dead. The report comes when these files are removed."""
        report: Future[CompactionReport] = Future()
        asked = self.ask(lambda: self._upkeep.compact(report))
        asked.add_done_callback(lambda asked: asked.cancelled() and report.cancel())
        return report

    def rotate(self) -> Future[None]:
        """Continue in a new file. Done when its header is final; cancelled when the thread ends before."""
        return self.ask(self._rotate)

    def _rotate(self) -> None:
        self._end.rotate()
        self._end.settle()
        self._upkeep.clean_up_soon()

    def checkpoint(self) -> Future[None]:
        """Make a checkpoint of the present state, while the work continues. Cancelled when the thread ends before."""
        done: Future[None] = Future()
        asked = self.ask(lambda: self._upkeep.checkpoint_soon(done))
        asked.add_done_callback(lambda asked: asked.cancelled() and done.cancel())
        return done

    def close(self) -> None:
        """Write what is waiting, make a last checkpoint, close the files. Blocking; durable unless ``error``."""
        self.put(_Stop())
        self._worker.join()
        self._background.finish()
        self._let_go()

    def halt(self) -> None:
        """Report nothing from now on, and begin nothing new. Returns at once."""
        self._is_dropped = True
        self._upkeep.is_halted = True
        if self._submissions is not None:
            self._submissions.queue.halt()  # prove: halted-writes-nothing-submitted

    def drop(self) -> None:
        """Close all without writing anything. Also after ``close``, and after a ``close`` that failed.

        Blocking: waits for a thread that hangs in the volume; when it wakes it finds itself dropped or deposed, and
        ends.
        """
        self.halt()
        if self._worker.native_id is not None:  # else it never served a client
            self.put(_Stop())
            self._worker.join()
        self._background.finish(cancel=True)
        self._let_go()

    def _let_go(self) -> None:
        self._end.close()
        self._pages.close()
        self._index.close()
        self._has_let_go = True

    # ---- the thread

    def _show_life(self) -> None:
        """Show life while a batch waits for its confirmation."""
        if self._is_dropped:
            raise _Dropped("the store was dropped during a confirmation")
        self.figures.last_seen_alive = self._clock()

    def _mends(self, file: int) -> bool:
        return is_mended(self._authority, file, seconds=MEND_SECONDS, alive=self._show_life, threads=self._threads)

    def _run(self) -> None:
        try:
            self._end.check_fence()  # prove: first-fence-check-before-work
            while self._once():
                pass
        except BaseException as reason:
            self.error = error = self._deposed_by(reason)
            if not self._is_dropped:
                self._failed(error)
        finally:
            self._cancel_questions()

    def _deposed_by(self, reason: BaseException) -> BaseException:
        """Return the true cause of the end: if a successor removed a file, that is a deposition and not damage."""
        if isinstance(reason, JournalMissing):
            try:
                self._end.writer.check_fence()  # prove: missing-file-may-be-deposition
            except JournalError as deposed:
                return deposed
        return reason

    def _cancel_questions(self) -> None:
        self._has_ended = True  # before the inbox is emptied: later callers see it
        self._upkeep.cancel_reports()
        try:
            while True:
                item = self._inbox.get_nowait()
                if type(item) is _Question:
                    item.answer.cancel()
        except Empty:
            pass

    def _once(self) -> bool:
        """Handle all that is waiting now; return False if the thread must end."""
        must_stop = False
        operations: list[Operation | NewQueue] = []
        served = 0
        item: _Item | None
        try:
            if self._submissions is not None and self._end.may_serve:
                self._submissions.queue.clear()  # prove: cleared-before-the-inbox order inbox-before-serving
                item = self._waiting()  # prove: inbox-before-serving
                if item is None:  # prove: inbox-before-queue
                    served = self._serve(self._submissions)
                    item = self._inbox.get_nowait()
            else:
                item = self._inbox.get(timeout=self._patience())
            while True:
                if type(item) is list:
                    operations += item
                elif type(item) is CheckpointDone:
                    self._upkeep.checkpoint_done(item)
                elif type(item) is _Question:
                    self._answer(item)
                elif type(item) is Failed:
                    raise item.error
                else:
                    must_stop = True
                if len(operations) > self._settings.max_async_jobs:
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
            self._space.note_written(0)  # space may have become free meanwhile
        if must_stop:
            self._upkeep.finish()
            return False
        self._upkeep.work()
        return True

    def _waiting(self) -> _Item | None:
        """Return the next item of the inbox; None if it is empty."""
        try:
            return self._inbox.get_nowait()  # type: ignore[no-any-return]
        except Empty:
            return None

    def _serve(self, submissions: Submissions) -> int:
        """Write batches as the loop submits them, then apply them to the state; return their number."""
        batches = self._end.serve(submissions.queue, self._patience())
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
        if type(part) is AddMessage and part.is_audited:  # the loop knew that it is new, so its id was not looked up
            self._state.note_id(part.owners, part.message.message_id)  # prove: submitted-is-known
        apply(self._state, part, file)

    def _patience(self) -> float:
        """Return the seconds to wait for work."""
        interval = self._settings.fence_check_interval
        due = self._upkeep.next_work
        return interval if due is None else min(max(0.0, due - self._clock()), interval)

    def _answer(self, question: _Question) -> None:
        if not question.answer.set_running_or_notify_cancel():
            return
        try:
            question.answer.set_result(question.function())
        except Exception as error:
            question.answer.set_exception(error)

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
        """Do one write, one sync, one fence check, one wake-up."""
        locations = self._end.write(batch.payloads, batch.bytes, must_sync=batch.must_sync) if batch.payloads else []
        batch.apply(locations, self._end.writer.position[0])
        self.figures.duplicates += batch.duplicates
        self._report(batch.reported())

    def _report(self, operations: list[Operation]) -> None:
        if operations and not self._is_dropped:  # prove: halted-reports-nothing " and not self._is_dropped"
            self.figures.confirmed += len(operations)
            self._report_durable(operations)
