"""Read sealed journal files in the background, so that damage is found while another copy is good.

    pass    file | file | file ...    each from the disk, at ``rate``, its batches compared with their checksums
    check   one file, at once         for a caller that found damage there

Damaged ranges are handed to the journal's ``mend``: a node of a set gets them from another node, a shared volume has
no other copy. Then the file is read again: only ranges that verify on the disk count as repaired.
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

#: Bytes of one read: a sync of the writer may wait for it.
CHUNK_BYTES: Final = 64 << 10
#: Shorter pauses are accumulated.
PAUSE_SECONDS_MIN: Final = 0.001
#: Seconds between checks for something to read: a standby of a pair reads nothing, and a node of a set nothing before
#: it knows the final position.
IDLE_SECONDS: Final = 5.0
#: A file that could not be repaired is not read again for a caller within this time.
RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Damaged:
    """``ranges`` of a sealed file that do not verify. ``source`` is the open file in which they were read."""

    file: int
    source: FileSource
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Repaired:
    """Range that was written again from the copy of ``node``, and its number of batches."""

    start: int
    stop: int
    batches: int
    node: str


class Sealed(Protocol):
    """A journal some of whose files are sealed. For the scrubber's thread."""

    @property
    def headers(self) -> HeaderReader: ...

    @property
    def files(self) -> JournalFiles: ...

    @property
    def below(self) -> int:
        """Files below this number are sealed: no process writes or cuts them. After ``headers.refresh``."""
        ...

    def mend(self, damaged: Damaged) -> Sequence[Repaired]:
        """Write the damaged ranges again, as far as there is a good copy. Durable on return. OSError as the volume
        gives it."""
        ...

    def restore(self, file: int, end: int) -> Sequence[Repaired]:
        """Write a needed, missing file that ends at ``end``; all of it or nothing. Durable on return."""
        ...


class OwnVolume:
    """The journal of a broker without a set: one writer, one copy."""

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
    """Ends the thread."""


class _Paced:
    """A source that reads from the disk, and waits after each read. Unreadable parts are zeros, which verify as
    nothing."""

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
    """Begins with ``start``, ends with ``end``. ``journals`` returns those to be read now; ``rate`` in bytes a second
    (0: no passes), ``interval`` in seconds from the beginning of one pass to that of the next."""

    def __init__(
        self, journals: Callable[[], Sequence[Sealed]], *, rate: int, interval: float, threads: Threads = OS_THREADS
    ) -> None:
        self.journals = journals
        self._rate = rate
        self._interval = interval
        self._clock = threads.monotonic
        self._inbox = threads.inbox()  # files to be checked; None: the end
        self._guard = threads.lock()
        self._asked: dict[int, Future[bool]] = {}
        self._is_ended = False
        self._thread = threads.thread(self._run, "tandemmq-scrubber")
        self._due = 0.0  # time until which the rate allows no further read
        self._losses: dict[str, DeclaredLosses] = {}  # by directory; kept, because they need a read of later files
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
        """End the thread. Nothing is read or written any more on return."""
        with self._guard:
            self._is_ended = True
        self._inbox.put(None)
        if self._thread.native_id is not None:
            self._thread.join()
        for asked in list(self._asked.values()):
            asked.cancel()

    @property
    def figures(self) -> Mapping[str, int]:
        """Counts of what was read, found and repaired, by the names of the metrics."""
        return dict(self._counts)

    def check(self, file: int) -> Future[bool]:
        """Read this file of the first journal now, and repair it. True: all of it verifies; cancelled by ``end``."""
        with self._guard:
            asked = self._asked.get(file)
            if asked is None:
                asked = self._asked[file] = Future()
                if self._is_ended:
                    asked.cancel()
                self._inbox.put(file)
        return asked

    # ---- its thread

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
        """Do ``work``: a failing disk, or a fault of ours, ends this pass and not the thread."""
        try:
            work()
        except OSError as error:
            log.error("%s cannot be read through: %s", journal.files.directory, error)
        except _Ended:
            raise
        except Exception:
            log.exception("the scrubber fails")

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
        """Wait until ``due``; handle requests at once meanwhile."""
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
                    # A caller needs the file. A pass restores none: files that it does not find were given up.
                    self._restore(journals[0], file)
                outcome = self._is_sound(journals[0], file, lambda size: None)

            self._guarded(journals[0], check)
            if outcome:
                self._failed_at.pop(file, None)
            else:
                self._failed_at[file] = self._clock()
        with self._guard:
            asked = self._asked.pop(file)
        if asked.set_running_or_notify_cancel():
            asked.set_result(outcome)

    def _restore(self, journal: Sealed, file: int) -> None:
        journal.headers.refresh()
        end = journal.headers.epoch_history.ends.get(file)
        if end and file < journal.below:
            self._count(journal, file, journal.restore(file, end), ())

    def _is_sound(self, journal: Sealed, file: int, pause: Callable[[int], object]) -> bool:
        """Return whether all of the file verifies, after a repair. False also if it is not sealed, or missing."""
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
        """Return ``ranges`` without those that an operator declared lost."""
        if not ranges:
            return ranges
        ends = journal.headers.epoch_history.ends
        later = {other: ends.get(other) for other in journal.headers.ids if other > file}
        losses = self._losses.setdefault(journal.files.directory, DeclaredLosses(journal.files))
        return tuple(each for each in ranges if not losses.covers(file, *each, later))

    def _note(self, journal: Sealed, file: int, source: FileSource, ranges: Ranges) -> bool:
        """Remember the damage, and log it once. False: the journal's name leads to another file by now."""
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
        """Count the ranges that were written again and verify now."""
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
