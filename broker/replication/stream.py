"""Stream of the journal to one follower: read from files while it is behind, otherwise handed over as it is written.

Only what the socket has not taken yet is buffered, and that is bounded (docs/formats/replication.md).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from tandemmq.broker.replication.messages import Bytes, Sealed, Skipped
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.pace import Pace
from tandemmq.broker.replication.quorum import NOWHERE, Place
from tandemmq.disk import open_regular, read_fully
from tandemmq.journal.files import JournalFiles
from tandemmq.store.threads import Threads

log = logging.getLogger(__name__)

#: Bytes of a file read at once: they stay in the processor's cache until they are sent, and at the receiver until they
#: are checked and written. A longer piece would move through memory four times.
CHUNK_BYTES: Final = 256 << 10
#: A follower with more waiting bytes is behind.
WAITING_BYTES_MAX: Final = 8 << 20
#: Limit of the bytes, and at least two files, that are sent beyond what the follower has reported: they wait in the
#: memory of either node.
WINDOW_BYTES: Final = 64 << 20
#: Interval of the check whether the replica, which may wait for a disk, has ended the stream of an ended link.
ENDED_SECONDS: Final = 0.05
#: Interval of the check whether the stream must end.
PATIENCE_SECONDS: Final = 1.0


class Journal(Protocol):
    """The master's journal, as a stream reads it. Any thread."""

    @property
    def files(self) -> JournalFiles: ...

    @property
    def epoch(self) -> int: ...

    @property
    def pace(self) -> Pace:
        """Pace of what is read from files, shared by all followers."""
        ...

    @property
    def written(self) -> Place:
        """Place up to which the master has written."""
        ...

    def end_of(self, file: int) -> int | None:
        """Return the end of a file that is no longer written; None for the present one. Raises JournalMissing if it is
        gone."""
        ...

    def after(self, file: int) -> int | None:
        """Return the next existing file; None: there is none."""
        ...


class Stream:
    """Stream to one follower. ``sent``: place up to which bytes were handed to its link. Its thread ends with
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
        # Beyond what the follower has reported: (end of a batch or file, bytes sent in all by then).
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

    @property
    def is_over(self) -> bool:
        return self._is_over

    def wrote(self, messages: Sequence[Bytes], place: Place) -> None:
        """Send what the master wrote up to ``place``. The storage thread; never blocks."""
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
                self._go_on()
        except OSError as error:
            log.error("the journal cannot be read for %s: %s", self.link.member.node, error)
            self.link.close(f"the journal cannot be read: {error}")

    def _go_on(self) -> None:
        file, offset = self.sent
        if file and not self._send_file(file, offset):
            return
        following = self._journal.after(file)
        if following is not None:
            for given_up in range(file + 1, following) if file else ():
                # A former stream may have sent a part of it, which would never be sealed.
                self._tell(Skipped(self._journal.epoch, given_up))
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
            self._tell(Skipped(journal.epoch, file))
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
        self._tell(Sealed(journal.epoch, file, end))
        return True

    def _tell(self, message: Bytes | Sealed | Skipped) -> None:
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
        self._tell(message)
        self._note(message)
        if shall_take:
            self._threads.sleep(max(0.0, started + shall_take - self._threads.monotonic()))
