"""Stream of the journal to one follower: read from files while it is behind, otherwise passed on as it is written.

Only bytes that the socket has not taken yet are buffered, and their number is bounded (docs/formats/replication.md).

The pace at which files are read slows down while a catch-up makes receipts wait longer. While no follower is behind,
the time of a batch from writing to confirmation is noted. While one is behind, each check measures for how large a part
of the time batches took more than a multiple of that: about that part of the messages wait longer. If the part exceeds
a hundredth of the last seconds, the disk or the network is at its limit, and less is sent. A single disturbance, which
happens at rest, too, is not enough. After that the pace grows in small steps up to the rate that was too much, since
reaching it delays receipts each time, and in large steps beyond it: then the rate was not the cause. Without load
nothing waits, and the pace is unlimited.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tandemmq.broker.replication.messages import Bytes, Sealed, Skipped
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.quorum import NOWHERE, Marks, Place
from tandemmq.disk import open_regular, read_fully
from tandemmq.journal.errors import JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scanned_end
from tandemmq.store.recovery.header_reader import HeaderReader
from tandemmq.store.threads import Threads

log = logging.getLogger(__name__)

#: Bytes of a file read at once: they stay in the processor's cache until they are sent, and at the receiver until they
#: are checked and written. A longer piece would move through memory four times.
CHUNK_BYTES: Final = 256 << 10
#: A follower with more waiting bytes is behind.
WAITING_BYTES_MAX: Final = 8 << 20
#: Limit of the bytes that are sent beyond the place that the follower has reported. The limit is at least the size of
#: two files. These bytes wait in the memory of either node.
WINDOW_BYTES: Final = 64 << 20
#: Interval of the check whether the replica, which may wait for a disk, has ended the stream of an ended link.
ENDED_SECONDS: Final = 0.05
#: Interval of the check whether the stream must end.
PATIENCE_SECONDS: Final = 1.0


class Journal:
    """The master's journal, as streams read it. ``marks``: those of the term. ``pace``: of reading from files, shared
    by all followers. Any thread."""

    def __init__(self, epoch: int, files: JournalFiles, marks: Marks, threads: Threads) -> None:
        self.epoch = epoch
        self.files = files
        self.pace = Pace(threads.monotonic)
        self._marks = marks
        self._ends: dict[int, int] = {}
        self._headers = HeaderReader(files)
        self._reading = threads.lock()

    @property
    def written(self) -> Place:
        """Place up to which the master has written."""
        return self._marks.written

    def sealed(self, file: int, end: int) -> None:
        """Note that the file is no longer written."""
        self._ends[file] = end

    def end_of(self, file: int) -> int | None:
        """Return the end of a file that is no longer written; None for the present one. Raises FileNotFoundError if the
        file is gone."""
        if file == self.written[0]:
            return None
        end = self._ends.get(file)
        if end is None:
            with self._reading:
                self._headers.refresh()
                end = self._headers.epoch_history.ends.get(file)
                if end is None:
                    end = self._scanned_end(file)
                self._ends[file] = end
        return end

    def _scanned_end(self, file: int) -> int:
        try:
            return scanned_end(self.files, file)
        except JournalMissing as error:
            raise FileNotFoundError(str(error)) from error

    def after(self, file: int) -> int | None:
        """Return the next existing file; None: there is none."""
        last = self.written[0]
        return next((each for each in self.files.list() if file < each <= last), None)

    def lag(self, place: Place) -> int:
        """Return the bytes of the journal after ``place``, at most: of a file whose end is unknown, all bytes
        count."""
        file, end = place
        last, written = self.written
        lag = -end if file else 0
        for each in self.files.list():
            if file <= each < last:
                known = self._ends.get(each)
                lag += self._size(each) if known is None else known
        return max(0, lag + written)

    def _size(self, file: int) -> int:
        try:
            return self.files.size(file)
        except FileNotFoundError:
            return 0


class Stream:
    """Stream to one follower. ``sent``: place up to which bytes were passed to its link. Its thread ends with
    ``end``."""

    def __init__(
        self, link: Link, journal: Journal, start: Place, lacking: Sequence[int], threads: Threads, *, rate: int
    ) -> None:
        self.link = link
        self.sent = start
        self.is_live = False
        self._journal = journal
        self._lacking = tuple(lacking)
        self._threads = threads
        self._rate = rate
        self._guard = threads.lock()
        self._wake = threads.event()
        self._is_over = False
        # Sent beyond the place that the follower has reported: (end of a batch or file, bytes sent in all by then).
        self._under_way: deque[tuple[Place, int]] = deque()
        self._window = WINDOW_BYTES
        self._sent_bytes = 0
        self._had_bytes = 0
        self._has_more = threads.event()
        self._thread = threads.thread(self._run, f"tandemmq-stream-{link.member.node}")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End the stream; any thread; at once. After return this stream sends nothing: the link belongs to the next
        stream."""
        with self._guard:
            self._is_over = True
            self.is_live = False
        self._wake.set()
        self._has_more.set()

    def wrote(self, messages: Sequence[Bytes], place: Place) -> None:
        """Send the bytes that the master wrote up to ``place``. Runs on the storage thread; never blocks."""
        with self._guard:
            if not self.is_live:  # prove: ended-stream-sends-nothing
                return
            if self.link.unsent_bytes <= WAITING_BYTES_MAX and self._has_room:
                for message in messages:
                    self.link.send(message)
                    self._note(message)
                self.sent = place
                return
            self.is_live = False
        self._wake.set()

    def had(self, place: Place) -> None:
        """Note that the follower has everything up to there, in the order of the stream; (0, 0): one of the files that
        it lacked. The network's thread."""
        under_way = self._under_way
        if place == NOWHERE:
            if under_way:
                self._had_bytes = under_way.popleft()[1]
        else:
            while under_way and under_way[0][0] <= place:
                self._had_bytes = under_way.popleft()[1]
        self._has_more.set()

    @property
    def _has_room(self) -> bool:
        return self._sent_bytes - self._had_bytes <= self._window

    def _note(self, message: Bytes) -> None:
        self._sent_bytes += len(message.data)
        self._window = max(self._window, 2 * message.length)
        if message.end:
            self._under_way.append(((message.file, message.end), self._sent_bytes))

    def sealed(self, file: int, end: int) -> None:
        """Note that the master continues in another file."""
        with self._guard:
            if self.is_live:
                self.link.send(Sealed(self._journal.epoch, file, end))

    # ---- the thread

    def _run(self) -> None:
        try:
            for file in self._lacking:
                self._send_file(file, 0)
            while not self._is_over:
                with self._guard:
                    is_at_end = self.sent == self._journal.written  # prove: live-only-at-the-end
                    self.is_live = is_at_end and not self._is_over
                if self.is_live:
                    self._wake.wait(PATIENCE_SECONDS)
                    self._wake.clear()
                    continue
                self._send_next()
        except OSError as error:
            log.error("the journal cannot be read for %s: %s", self.link.member.node, error)
            self.link.close(f"the journal cannot be read: {error}")

    def _send_next(self) -> None:
        file, offset = self.sent
        if file and not self._send_file(file, offset):
            return
        following = self._journal.after(file)
        if following is not None:
            for given_up in range(file + 1, following) if file else ():
                # A former stream may have sent a part of it, which would never be sealed.
                self._send_message(Skipped(self._journal.epoch, given_up))
            with self._guard:
                self.sent = (following, 0)

    def _send_file(self, file: int, offset: int) -> bool:
        """Send the present bytes of the file. Return whether it is complete: all was sent, and it is no longer
        written."""
        journal = self._journal
        try:
            end = journal.end_of(file)
            fd = open_regular(journal.files.disk, journal.files.path(file), os.O_RDONLY)
        except FileNotFoundError:
            self._send_message(Skipped(journal.epoch, file))
            return True
        try:
            # No read-ahead: megabytes of it would delay a sync in the disk's queue.
            journal.files.disk.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            length = journal.files.disk.fstat(fd).st_size
            until = journal.written[1] if end is None else end
            if end is None and journal.written[0] != file:
                return False  # it was sealed this moment
            while offset < until and not self._is_over:
                data = read_fully(journal.files.disk, fd, min(CHUNK_BYTES, until - offset), offset)
                if not data:
                    raise OSError(f"db-{file}.log is shorter than its end, {until}")
                self._send(
                    Bytes(journal.epoch, file, offset, until if offset + len(data) == until else 0, length, data)
                )
                offset += len(data)
                if file not in self._lacking:
                    with self._guard:
                        self.sent = (file, offset)
        finally:
            journal.files.disk.close(fd)
        if end is None or self._is_over:
            return False
        self._send_message(Sealed(journal.epoch, file, end))
        return True

    def _send_message(self, message: Bytes | Sealed | Skipped) -> None:
        with self._guard:
            if not self._is_over:  # prove: replaced-stream-sends-nothing
                self.link.send(message)

    def _send(self, message: Bytes) -> None:
        size = len(message.data)
        shall_take = self._journal.pace.seconds_for(size)
        if self._rate:
            shall_take = max(shall_take, size / self._rate)
        started = self._threads.monotonic()
        while not self._is_over and not self._has_room:
            self._has_more.clear()
            if not self._has_room:
                self._has_more.wait(PATIENCE_SECONDS)
        while not self._is_over and not self.link.wait_sent(CHUNK_BYTES, PATIENCE_SECONDS):
            self._threads.sleep(ENDED_SECONDS)  # an ended link comes back at once, and its stream ends later
        self._send_message(message)
        self._note(message)
        if shall_take:
            self._threads.sleep(max(0.0, started + shall_take - self._threads.monotonic()))


#: Lowest rate, in bytes a second: a node that is behind is one copy less, and must gain on the present writes.
RATE_MIN: Final = 32 << 20
ADJUST_SECONDS: Final = 0.25
LATE_PART_MAX: Final = 0.01
#: The part counts over at most this many seconds.
LATE_OF_SECONDS: Final = 10.0
SLOWER: Final = 0.7
FASTER: Final = 1.15
#: Factor near the rate that was too much.
SLIGHTLY_FASTER: Final = 1.01
#: Batches that were sent before the pace slowed down may be late for this long.
SETTLE_SECONDS: Final = 1.0
#: A batch is late when it takes more than this many times what 99 of 100 took while no follower was behind.
LATE_TIMES: Final = 3.0
LATE_SECONDS_MIN: Final = 0.01
#: The time that 99 of 100 take is measured per block of batches, and the median of the blocks counts: an occasional
#: disturbance, such as the start of a node on the same machine, is not usual.
BLOCK_BATCHES: Final = 250
BLOCKS_MAX: Final = 32
#: Minimum number of batches for a measurement.
BATCHES_MIN: Final = 100
#: Time without a read for a follower that is behind, after which no follower counts as behind.
REST_SECONDS: Final = 5.0


class Pace:
    """Pace of all streams. ``settled`` is for the storage thread, ``seconds_for`` for the threads of streams. Neither
    waits."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.rate = math.inf
        self._now = now
        self._block: list[float] = []
        self._usual: deque[float] = deque(maxlen=BLOCKS_MAX)  # of each former block
        self._sent_at = -math.inf
        self._late_after = math.inf
        self._late_seconds = 0.0
        self._may_be_late = 0.0  # late seconds still allowed
        self._adjusted_at = 0.0
        self._slowed_at = -math.inf
        self._too_much = math.inf
        self._sent_bytes = 0

    def settled(self, seconds: float) -> None:
        """Note that a batch took this long from its writing to its confirmation."""
        if self._now() - self._sent_at >= REST_SECONDS:
            self._block.append(seconds)
            if len(self._block) == BLOCK_BATCHES:
                self._usual.append(_most(self._block))
                self._block = []
        elif seconds > self._late_after:
            self._late_seconds += seconds - self._late_after

    def seconds_for(self, count: int) -> float:
        """Return for how many seconds to send no more from files after ``count`` bytes, which are sent now."""
        now = self._now()
        if now - self._sent_at >= REST_SECONDS:
            self._begin(now)
        elif now - self._adjusted_at >= ADJUST_SECONDS:
            self._adjust(now)
        self._sent_at = now
        self._sent_bytes += count
        return count / self.rate

    def _begin(self, now: float) -> None:
        blocks = list(self._usual)
        if not blocks and len(self._block) >= BATCHES_MIN:
            blocks.append(_most(self._block))
        usual = statistics.median_low(blocks) if blocks else math.inf
        self._late_after = max(LATE_TIMES * usual, LATE_SECONDS_MIN)
        self.rate = self._too_much = math.inf
        self._slowed_at = -math.inf
        self._late_seconds, self._sent_bytes, self._adjusted_at = 0.0, 0, now
        self._may_be_late = 0.0

    def _adjust(self, now: float) -> None:
        seconds = now - self._adjusted_at
        may_be_late = self._may_be_late + LATE_PART_MAX * seconds - self._late_seconds
        self._may_be_late = min(max(0.0, may_be_late), LATE_PART_MAX * LATE_OF_SECONDS)
        if may_be_late < 0:
            if now - self._slowed_at >= SETTLE_SECONDS:
                self._too_much = min(self.rate, self._sent_bytes / seconds)
                self.rate = max(RATE_MIN, SLOWER * self._too_much)
                self._slowed_at = now
        elif SLOWER * self._too_much <= self.rate < self._too_much:
            self.rate *= SLIGHTLY_FASTER
        else:
            self.rate *= FASTER
        self._late_seconds, self._sent_bytes, self._adjusted_at = 0.0, 0, now


def _most(block: list[float]) -> float:
    """Return the most that 99 of 100 of them took."""
    found = sorted(block)
    return found[len(found) * 99 // 100]
