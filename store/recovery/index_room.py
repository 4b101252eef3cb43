"""Check of the free space for a standby's index, which must not use the disk reserve.

The reserve is for the writes that empty queues: the master's acknowledgements, its next journal file and its
checkpoints (store.writer.space). Indexes of standbys are usually on the same volume. If an index took all free space,
the master would demote itself, and no broker could become master, because a promotion needs a journal file. Then no
consumer could free space any more.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import Final

from tandemmq import log_events
from tandemmq.disk import Disk

log = logging.getLogger(__name__)

# Least seconds between two reads of the free space.
READ_SECONDS: Final = 0.005


class IndexRoom:
    """Check whether the volume of ``path`` has more than ``reserve_bytes`` free. For the standby's thread. ``clock``
    returns monotonic seconds."""

    def __init__(self, path: str, reserve_bytes: int, disk: Disk = os, *, clock: Callable[[], float]) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._disk = disk
        self._clock = clock
        self._read_at = -math.inf
        self._has_room = True

    def has_room(self) -> bool:
        """Return whether there is room; the value is at most READ_SECONDS old. True if the volume does not report its
        free space; a write may fail then."""
        now = self._clock()
        if now - self._read_at >= READ_SECONDS:
            self._read_at = now
            had_room, self._has_room = self._has_room, self._read()
            if had_room and not self._has_room:
                log.warning(
                    "the index in %s waits: the free space is not above the reserve of %d bytes for the master",
                    self._path,
                    self._reserve_bytes,
                    extra=log_events.STANDBY_WAITS,
                )
        return self._has_room

    def _read(self) -> bool:
        try:
            found = self._disk.statvfs(self._path)
        except OSError:
            return True
        return not found.f_blocks or found.f_bavail * found.f_frsize > self._reserve_bytes
