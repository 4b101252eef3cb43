"""Scrubber: reads sealed journal files in the background, so that damage is found while another copy is good.

    pass    file | file | file ...    each is read from the disk, at ``rate``; its batches are compared with checksums
    check   one file, at once         for a caller that found damage in it

Damaged ranges are passed to the journal's ``mend``: in a set they are copied from another node; a shared volume has no
other copy. Then the file is read again: only ranges that match their checksums on the disk count as repaired.
"""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Final, Protocol

from tandemmq import log_events
from tandemmq.disk import Identity, identity_of
from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import FileSource
from tandemmq.journal.verify import Ranges, damage_of
from tandemmq.store.damage.report import DeclaredLosses
from tandemmq.store.recovery.header_reader import HeaderReader
from tandemmq.store.threads import OS_THREADS, Threads

log = logging.getLogger(__name__)

#: Bytes of one read. The number is small because a sync of the writer may wait for the read.
CHUNK_BYTES: Final = 64 << 10
#: Shorter pauses are added up.
PAUSE_SECONDS_MIN: Final = 0.001
#: Seconds until the next attempt if there is nothing to read: a standby of a pair reads nothing, and a node of a set
#: reads nothing before it knows the final position.
IDLE_SECONDS: Final = 5.0
#: After a failed repair, requests for the same file fail at once for this time.
RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Damaged:
    """Damage of a sealed file: ``ranges`` that do not match their checksums. ``source`` is the open file."""

    file: int
    source: FileSource
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Repaired:
    """Range that was written again from the copy of ``node``. ``batches``: the number of batches in it."""

    start: int
    stop: int
    batches: int
    node: str


class Sealed(Protocol):
    """Journal with sealed files. Its methods are called by the scrubber's thread."""

    @property
    def headers(self) -> HeaderReader: ...

    @property
    def files(self) -> JournalFiles: ...

    @property
    def below(self) -> int:
        """Files with a lower number are sealed: no process writes or truncates them. Valid after
        ``headers.refresh``."""
        ...

    def mend(self, damaged: Damaged) -> Sequence[Repaired]:
        """Repair the damaged ranges of which there is a good copy; durable on return. Return these ranges. Raises
        OSError."""
        ...

    def restore(self, file: int, end: int) -> Sequence[Repaired]:
        """Write a missing file that is needed and ends at ``end``; durable on return. Return its ranges, or nothing if
        there is no complete copy."""
        ...


class OwnVolume:
    """Journal of a broker without a set: there is one writer and one copy."""

    def __init__(self, files: JournalFiles) -> None:
        self.files = files
        self.headers = HeaderReader(files)

    @property
    def below(self) -> int:
        return max(self.headers.epoch_history.headers, default=0)

    def mend(self, damaged: Damaged) -> Sequence[Repaired]:
        return ()

    def restore(self, file: int, end: int) -> Sequence[Repaired]:
        return ()


class _Ended(Exception):
    """Raised to end the thread."""


class _Paced:
    """Source that reads from the disk, not from the page cache, and pauses after each read. Unreadable parts are
    returned as zeros, which match no checksum."""

    def __init__(self, source: FileSource, pause: Callable[[int], object]) -> None:
        source.read_nothing_ahead()
        self._source = source
        self._pause = pause
        self.data_from, self.size, self.close = source.data_from, source.size, source.close

    def read(self, offset: int, length: int) -> bytes:
        source = self._source
        source.drop_cache(offset, length)
        try:
            data = source.read(offset, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = bytes(max(0, min(length, source.size() - offset)))
        source.drop_cache(offset, length)
        self._pause(len(data))
        return data


class Scrubber:
    """Scrubber with its own thread, which runs from ``start`` to ``end``.

    ``journals`` returns the journals to be read now. ``rate``: bytes per second; 0: no passes. ``interval``: seconds
    from the beginning of a pass to the beginning of the next.
    """

    def __init__(
        self, journals: Callable[[], Sequence[Sealed]], *, rate: int, interval: float, threads: Threads = OS_THREADS
    ) -> None:
        self.journals = journals
        self._rate = rate
        self._interval = interval
        self._clock = threads.monotonic
        self._inbox = threads.inbox()  # files to be checked; None ends the thread
        self._guard = threads.lock()
        self._requests: dict[int, Future[bool]] = {}
        self._is_ended = False
        self._thread = threads.thread(self._run, "tandemmq-scrubber")
        self._due = 0.0  # time before which the rate allows no further read
        self._losses: dict[str, DeclaredLosses] = {}  # by directory; kept, because reading them is slow
        self._failed_at: dict[int, float] = {}
        self._damaged: dict[str, tuple[Identity, Ranges]] = {}  # by path
        self._counts = dict.fromkeys(
            (
                "scrub_bytes_total",
                "scrub_passes_total",
                "scrub_files_left",
                "damaged_journal_files",
                "repaired_batches_total",
            ),
            0,
        )

    # ---- any thread

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End the thread and wait for its end. Requests without a result are cancelled."""
        with self._guard:
            self._is_ended = True
        self._inbox.put(None)
        if self._thread.native_id is not None:
            self._thread.join()
        for request in list(self._requests.values()):
            request.cancel()

    @property
    def figures(self) -> Mapping[str, int]:
        """Counts of what was read, found and repaired, by the names of the metrics."""
        return dict(self._counts)

    def check(self, file: int) -> Future[bool]:
        """Request a read and, if needed, a repair of this file of the first journal. Does not block. The result is
        True if the whole file then matches its checksums; the Future is cancelled by ``end``."""
        with self._guard:
            request = self._requests.get(file)
            if request is None:
                request = self._requests[file] = Future()
                if self._is_ended:
                    request.cancel()
                self._inbox.put(file)
        return request

    # ---- the scrubber's thread

    def _run(self) -> None:
        try:
            while True:
                began = self._clock()
                before = self._counts["scrub_bytes_total"]
                for journal in self.journals() if self._rate else ():
                    self._guarded(journal, partial(self._pass, journal))
                if self._counts["scrub_bytes_total"] > before:
                    self._counts["scrub_passes_total"] += 1
                    self._wait_until(began + self._interval)
                else:
                    self._wait_until(began + (IDLE_SECONDS if self._rate else math.inf))
        except _Ended:
            pass

    def _guarded(self, journal: Sealed, work: Callable[[], object]) -> None:
        """Do ``work``. An error of the disk, or a programming error, is logged and does not end the thread."""
        try:
            work()
        except OSError as error:
            log.error("%s cannot be read completely: %s", journal.files.directory, error)
        except _Ended:
            raise
        except Exception:
            log.exception("the scrubber failed")

    def _pass(self, journal: Sealed) -> None:
        files = list(journal.headers.refresh())
        for left in range(len(files), 0, -1):
            self._counts["scrub_files_left"] = left
            if journal not in self.journals():
                return
            self._is_sound(journal, files[-left], self._pause)
        self._counts["scrub_files_left"] = 0
        there = {journal.files.path(file) for file in files}
        for path in self._damaged.keys() - there:
            if path.startswith(f"{journal.files.directory}/"):
                self._damaged.pop(path)
        self._counts["damaged_journal_files"] = len(self._damaged)

    def _pause(self, size: int) -> None:
        self._counts["scrub_bytes_total"] += size
        self._due = max(self._due, self._clock()) + size / self._rate
        self._wait_until(self._due)

    def _wait_until(self, due: float) -> None:
        """Wait until ``due``. Requests are handled at once."""
        while (left := due - self._clock()) >= PAUSE_SECONDS_MIN:
            try:
                item = self._inbox.get(timeout=None if math.isinf(left) else left)
            except Empty:
                return
            if item is None:
                raise _Ended
            self._answer(item)

    def _answer(self, file: int) -> None:
        outcome = False
        journals = self.journals()
        if journals and self._clock() - self._failed_at.get(file, -math.inf) >= RETRY_SECONDS:

            def check() -> None:
                nonlocal outcome
                if not journals[0].files.exists(file):
                    # A caller needs the file. A pass does not restore missing files: they are not needed any more.
                    self._restore(journals[0], file)
                outcome = self._is_sound(journals[0], file, lambda size: None)

            self._guarded(journals[0], check)
            if outcome:
                self._failed_at.pop(file, None)
            else:
                self._failed_at[file] = self._clock()
        with self._guard:
            request = self._requests.pop(file)
        if request.set_running_or_notify_cancel():
            request.set_result(outcome)

    def _restore(self, journal: Sealed, file: int) -> None:
        journal.headers.refresh()
        end = journal.headers.epoch_history.ends.get(file)
        if end and file < journal.below:
            self._count(journal, file, journal.restore(file, end), ())

    def _is_sound(self, journal: Sealed, file: int, pause: Callable[[int], object]) -> bool:
        """Read the file, repair it if needed, and return whether the whole file then matches its checksums. False also
        if it is not sealed, or missing."""
        repaired: Sequence[Repaired] = ()
        for is_last in (False, True):
            headers = journal.headers
            headers.refresh()
            end = headers.epoch_history.ends.get(file)
            if file >= journal.below:  # prove: open-file-is-not-scrubbed
                return False
            if end == 0 or file in headers.misplaced:
                return True  # nothing counts in it
            try:
                source = FileSource(journal.files, file)
            except JournalMissing:
                self._damaged.pop(journal.files.path(file), None)
                self._counts["damaged_journal_files"] = len(self._damaged)
                return False
            with closing(source):
                ranges = self._undeclared(journal, file, damage_of(_Paced(source, pause), file, end, CHUNK_BYTES))
                if not self._note(journal, file, source, ranges):
                    return False
                self._count(journal, file, repaired, ranges)
                if not ranges or is_last:
                    break
                repaired = journal.mend(Damaged(file, source, ranges))
            if not repaired:
                break
        return not ranges

    def _undeclared(self, journal: Sealed, file: int, ranges: Ranges) -> Ranges:
        """Return ``ranges`` without those that are marked as lost."""
        if not ranges:
            return ranges
        ends = journal.headers.epoch_history.ends
        later = {other: ends.get(other) for other in journal.headers.ids if other > file}
        losses = self._losses.setdefault(journal.files.directory, DeclaredLosses(journal.files))
        return tuple(each for each in ranges if not losses.covers(file, *each, later))

    def _note(self, journal: Sealed, file: int, source: FileSource, ranges: Ranges) -> bool:
        """Store the damage of the file, and log it once. Return False if the journal's name now leads to another
        file."""
        path = journal.files.path(file)
        before = self._damaged.pop(path, None)
        if ranges:
            if not source.has_name(path):  # prove: damage-of-the-file-that-has-the-name
                return False
            damaged = self._damaged[path] = identity_of(source.status), ranges
            if damaged != before:
                places = ", ".join(f"{start} to {stop}" for start, stop in ranges)
                log.error("db-%d.log is damaged: offsets %s", file, places, extra=log_events.JOURNAL_DAMAGED)
        self._counts["damaged_journal_files"] = len(self._damaged)
        return True

    def _count(self, journal: Sealed, file: int, repaired: Sequence[Repaired], left: Ranges) -> None:
        """Count and log the repaired ranges, except those in ``left``, which are still damaged."""
        for each in repaired:
            # prove: repair-is-read-again-before-it-counts
            if any(start < each.stop and each.start < stop for start, stop in left):
                continue
            self._counts["repaired_batches_total"] += each.batches
            log.warning(
                "db-%d.log is repaired from offset %d to %d by the copy of %s: batches %d",
                file,
                each.start,
                each.stop,
                each.node,
                each.batches,
                extra=log_events.BATCH_REPAIRED,
            )
