"""Space on the disk: decides when producers are refused, so that all other writes still succeed.

Below a reserve of free bytes no message is accepted from a producer. Acknowledgements, outcomes of transactions, dead
letters, checkpoints of the index, the next journal file and a demotion still fit into the reserve, so consumers can
always drain, and draining frees the space. Producers may continue when half a reserve more than the reserve is
free: without that distance they would be refused and accepted again with every file that comes and goes.

A quota does not show in the free bytes of a volume. So a next journal file that could not be made because of missing
space (ENOSPC, EDQUOT) refuses producers as well, until one was made.

No threads and no loop: one thread writes (the storage thread), any thread may read ``is_short`` and ``reason``.
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

# The volume is read after this much time, or this many bytes, whichever comes first. A small reserve could be gone by
# then: at most an eighth of the reserve is written between two reads.
ASK_SECONDS: Final = 0.1
ASK_BYTES: Final = 4 << 20
ASK_SHARE: Final = 8
# With this much space, or half of a smaller reserve, a checkpoint begins without a check of its need; with too little
# it would fail for good.
CHECKPOINT_SPACE_BYTES: Final = 8 << 20
CHECKPOINT_SHARE: Final = 2
# Figures older than this are too old to begin a checkpoint.
CHECKPOINT_ASK_SECONDS: Final = 0.01
# Messages on their way to the disk when space runs short are still written, so they are bounded by a share of the free
# space, and this minimum.
IN_FLIGHT_SHARE: Final = 4
IN_FLIGHT_BYTES_MIN: Final = 1 << 20
# Seconds between attempts to make a next journal file after a failure.
PREPARE_AGAIN_SECONDS: Final = 1.0
# A failure that was not repeated for this time is over: a rotation made the file, and the next one is not due yet.
FAILURE_SECONDS_MAX: Final = 10.0

OTHERS: Final = "the stores of other nodes"
NOT_KNOWN: Final = 1 << 62  # bytes free, where the file system cannot say
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class StoreFull(Exception):
    """Raised if a message was not accepted. The text names the bound, and the remedy."""


class Space:
    """Decides when producers are refused. ``directories`` are those written to (journal first, then index); each volume
    is read once.

    ``reserve_bytes`` 0 means no reserve: producers are refused only when a journal file could not be made. ``clock`` is
    monotonic, in seconds; ``now`` gives seconds since 1970 for people. ``others``: free bytes on the volumes of other
    nodes that write the same (store.authority), None without such nodes. Reads the volumes at once; an OSError of that
    first read is raised, later ones count as "unknown" and change nothing.

    ``is_short``: producers must be refused. ``reason``: the sentence for them; empty while there is room.
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
        assert directories, "something is written somewhere"
        assert reserve_bytes >= 0, "a reserve is no debt"
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
        self._ask_bytes = min(ASK_BYTES, reserve_bytes // ASK_SHARE) if reserve_bytes else ASK_BYTES
        self._checkpoint_bytes = min(CHECKPOINT_SPACE_BYTES, reserve_bytes // CHECKPOINT_SHARE)
        self._free = 0  # on the volume that has the least
        self._written = 0
        self._asked_at = clock()
        self._since = 0.0
        self._failed: OSError | None = None
        self._failed_at = 0.0
        self._measure()
        self._decide()

    @property
    def free_bytes(self) -> int:
        """Free bytes at the last read, on the volume that has the least."""
        return self._free

    def note_written(self, bytes_written: int) -> None:
        """Note that bytes were written, or (0) that time has passed. Reads the volume when it is due; else costs
        nothing."""
        self._written += bytes_written
        if self._written >= self._ask_bytes or self._clock() - self._asked_at >= ASK_SECONDS:
            self.ask()

    def ask(self) -> None:
        """Read the volumes now."""
        try:
            self._measure()
        except OSError as error:  # each fence check finds out whether the volume is there at all
            log.debug("free space is not known: %s", error)
        self._decide()

    def note_prepared(self, error: OSError | None) -> None:
        """Note that the next journal file was made (None), or could not be. Only missing space matters here."""
        if error is None:
            self._failed = None
        elif error.errno in NO_SPACE:
            self._failed = error
            self._failed_at = self._clock()
        self.ask()

    @property
    def may_prepare(self) -> bool:
        """True if the next journal file may be tried: at once, or again some time after a failure."""
        return self._failed is None or self._clock() - self._failed_at >= PREPARE_AGAIN_SECONDS

    def has_checkpoint_space(self, needed: Callable[[], int]) -> bool:
        """Return whether a checkpoint that needs at most ``needed`` bytes may begin. Reads the volumes. Without a
        reserve it always may."""
        if self._clock() - self._asked_at >= CHECKPOINT_ASK_SECONDS:
            self.ask()
        return self._free >= self._checkpoint_bytes or self._free >= needed()

    def has_room_beside_reserve(self, size: int) -> bool:
        """Return whether the reserve stays whole after ``size`` bytes that are not needed to drain a queue. Reads the
        volumes."""
        self.ask()
        return not self.is_short and self._free - size >= self.reserve_bytes

    def in_flight_max(self, wanted: int) -> int:
        """Return the bytes of messages that may be on their way to the disk: ``wanted``, less when little is free."""
        return min(wanted, max(self._free // IN_FLIGHT_SHARE, IN_FLIGHT_BYTES_MIN))

    def _measure(self) -> None:
        self._asked_at = self._clock()
        self._written = 0
        least, where = NOT_KNOWN, self._volumes[0]
        for directory in self._volumes:
            found = self._disk.statvfs(directory)
            free = found.f_bavail * found.f_frsize
            # A file system that counts no blocks (some of FUSE) does not know its free space.
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
        # The sentence first: a thread that finds ``is_short`` true must find it.
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
    """Return a number of bytes for people: 12.3 MiB."""
    if size >= 10 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB"
