"""Free space on the disk: decides when producers are refused, so that all other writes succeed.

If fewer bytes than the reserve are free, no message of a producer is accepted. The reserve is for acknowledgements,
outcomes of transactions, dead letters, checkpoints of the index, the next journal file and a demotion. So consumers can
always empty queues, which frees space. Producers may continue when one and a half reserves are free. Without that
distance, they would be refused and accepted again with each journal file that is made or removed.

The free bytes of a volume do not show a quota. So producers are also refused if the next journal file could not be made
because of a lack of space (ENOSPC, EDQUOT), until a file was made.

Only one thread changes a Space (the storage thread). Any thread may read ``is_short`` and ``reason``.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from tandemmq import log_events
from tandemmq.disk import Disk

log = logging.getLogger(__name__)

# The free space is read again after this time, or after this number of written bytes. With a small reserve, it is read
# after an eighth of the reserve was written.
READ_SECONDS: Final = 0.1
READ_BYTES: Final = 4 << 20
READ_SHARE: Final = 8
# If this number of bytes is free, or half of a smaller reserve, a checkpoint may begin without a computation of the
# bytes that it needs. A checkpoint that finds no space fails, and ends the store.
CHECKPOINT_SPACE_BYTES: Final = 8 << 20
CHECKPOINT_SHARE: Final = 2
# Before a checkpoint, the free space is read again if the last read is older.
CHECKPOINT_READ_SECONDS: Final = 0.01
# Messages that wait to be written are also written when space has become short. So their bytes are bounded by this
# share of the free space, with this minimum.
IN_FLIGHT_SHARE: Final = 4
IN_FLIGHT_BYTES_MIN: Final = 1 << 20
# Seconds between attempts to make a next journal file after a failure.
PREPARE_AGAIN_SECONDS: Final = 1.0
# A failure that was not repeated for this time is over: a rotation has made the file.
FAILURE_SECONDS_MAX: Final = 10.0

OTHERS: Final = "the stores of other nodes"
NOT_KNOWN: Final = 1 << 62  # number of free bytes if the file system does not give it
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class StoreFull(Exception):
    """A message was not accepted because of a lack of disk space. The text gives the free bytes and the bound."""


class Space:
    """Free space of the volumes of a store. ``directories``: directory of the journal, then that of the index. If they
    are on one volume, only the first one is read.

    ``reserve_bytes`` 0 means no reserve: producers are refused only if a journal file could not be made. ``clock`` is
    monotonic, in seconds; ``now`` returns seconds since 1970 for texts. ``others`` returns the smallest number of free
    bytes on the volumes of other nodes that store the same journal (store.authority); None: no such nodes. The
    constructor reads the volumes and raises their OSError; after an OSError of a later read, the former values stay.

    ``is_short``: producers must be refused. ``reason``: text for the producers; empty if ``is_short`` is False.
    """

    def __init__(
        self,
        directories: Sequence[str],
        reserve_bytes: int,
        disk: Disk = os,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        others: Callable[[], int | None] = lambda: None,
    ) -> None:
        assert directories, "a store writes to a directory"
        assert reserve_bytes >= 0, "a reserve cannot be negative"
        self.reserve_bytes = reserve_bytes
        self.resume_bytes = reserve_bytes + reserve_bytes // 2
        self.is_short = False
        self.reason = ""
        self._disk = disk
        self._clock = clock
        self._now = now
        self._others = others
        volumes = {disk.stat(directory).st_dev: directory for directory in reversed(directories)}
        self._volumes = [directory for directory in directories if directory in volumes.values()]
        self._directory = directories[0]
        self._read_bytes = min(READ_BYTES, reserve_bytes // READ_SHARE) if reserve_bytes else READ_BYTES
        self._checkpoint_bytes = min(CHECKPOINT_SPACE_BYTES, reserve_bytes // CHECKPOINT_SHARE)
        self._free = 0  # free bytes of the volume that has the fewest
        self._written = 0  # bytes written since the last read
        self._read_at = clock()
        self._since = 0.0
        self._failed: OSError | None = None
        self._failed_at = 0.0
        self._measure()
        self._decide()

    @property
    def free_bytes(self) -> int:
        """Free bytes at the last read, of the volume that has the fewest."""
        return self._free

    def note_written(self, bytes_written: int) -> None:
        """Note that bytes were written; 0: that time has passed. Read the free space if READ_SECONDS have passed, or
        enough bytes were written."""
        self._written += bytes_written
        if self._written >= self._read_bytes or self._clock() - self._read_at >= READ_SECONDS:
            self.read()

    def read(self) -> None:
        """Read the free space of the volumes now, and decide again."""
        try:
            self._measure()
        except OSError as error:  # a volume that is not available fails the next fence check
            log.debug("free space is not known: %s", error)
        self._decide()

    def note_prepared(self, error: OSError | None) -> None:
        """Note that the next journal file was made (None), or the error of the attempt. Only a lack of space has an
        effect."""
        if error is None:
            self._failed = None
        elif error.errno in NO_SPACE:
            self._failed = error
            self._failed_at = self._clock()
        self.read()

    @property
    def may_prepare(self) -> bool:
        """True if the next journal file may be made. False for PREPARE_AGAIN_SECONDS after a failure."""
        return self._failed is None or self._clock() - self._failed_at >= PREPARE_AGAIN_SECONDS

    def has_checkpoint_space(self, needed: Callable[[], int]) -> bool:
        """Return whether a checkpoint may begin. ``needed`` returns the maximum number of bytes that it needs. Reads
        the free space. Without a reserve, returns True."""
        if self._clock() - self._read_at >= CHECKPOINT_READ_SECONDS:
            self.read()
        return self._free >= self._checkpoint_bytes or self._free >= needed()

    def has_room_beside_reserve(self, size: int) -> bool:
        """Return whether the reserve is still free after a write of ``size`` bytes. For writes that are not needed to
        empty a queue. Reads the free space."""
        self.read()
        return not self.is_short and self._free - size >= self.reserve_bytes

    def in_flight_max(self, wanted: int) -> int:
        """Return the maximum number of bytes of messages that may wait to be written: ``wanted``, or less if little
        space is free."""
        return min(wanted, max(self._free // IN_FLIGHT_SHARE, IN_FLIGHT_BYTES_MIN))

    def _measure(self) -> None:
        self._read_at = self._clock()
        self._written = 0
        least, where = NOT_KNOWN, self._volumes[0]
        for directory in self._volumes:
            found = self._disk.statvfs(directory)
            free = found.f_bavail * found.f_frsize
            # A file system that reports 0 blocks (some with FUSE) does not give its free space.
            if found.f_blocks and free < least:
                least, where = free, directory
        elsewhere = self._others()
        if elsewhere is not None and elsewhere < least:
            least, where = elsewhere, OTHERS
        self._free, self._directory = least, where

    def _decide(self) -> None:
        was_short = self.is_short
        if self._failed is not None and self._clock() - self._failed_at >= FAILURE_SECONDS_MAX:
            self._failed = None
        is_short = self._failed is not None or self._free < (self.resume_bytes if was_short else self.reserve_bytes)
        if is_short and not was_short:
            self._since = self._now()
        # ``reason`` is set first, because another thread that finds ``is_short`` True reads it.
        self.reason = self._sentence() if is_short else ""
        self.is_short = is_short
        if is_short and not was_short:
            log.warning("%s", self.reason, extra=log_events.DISK_FULL)
        elif was_short and not is_short:
            seconds = self._now() - self._since
            log.warning(
                "the disk has room again after %.0f s: %s free in %s",
                seconds,
                show(self._free),
                self._directory,
                extra=log_events.DISK_HAS_ROOM,
            )

    def _sentence(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._since))
        if self._failed is not None and self._free >= self.reserve_bytes:
            free = "" if self._free == NOT_KNOWN else f" with {show(self._free)} free"
            return (
                f"disk full: no room for the next journal file ({self._failed.strerror}) in {self._directory}{free}, "
                f"producers are refused until there is, since {since}"
            )
        return (
            f"disk full: {show(self._free)} free in {self._directory}, producers are refused until "
            f"{show(self.resume_bytes)} is free (the reserve is {show(self.reserve_bytes)}), since {since}"
        )


def show(size: int) -> str:
    """Return a number of bytes as text: "12.3 MiB"."""
    if size >= 10 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB"
