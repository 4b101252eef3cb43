"""Check of the free space for a standby's index, which must not use the reserve.

The reserve is for the writes that empty queues: the master's acknowledgements, its next journal file and its
checkpoints (store.writer.space). Indexes of standbys are on the same volume, as a rule. If an index took the last byte,
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

# Seconds between two reads of the free space while a checkpoint is written; each continuation reads it too.
ASK_SECONDS: Final = 0.005


class IndexRoom:
    """Checks whether the volume of ``path`` has room: more than ``reserve_bytes`` are free. ``clock`` is monotonic, in
    seconds. For the standby's thread."""

    def __init__(self, path: str, reserve_bytes: int, disk: Disk = os, *, clock: Callable[[], float]) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._disk = disk
        self._clock = clock
        self._asked_at = -math.inf
        self._has_room = True

    def has_room(self) -> bool:
        """Return whether there is room, as of at most ASK_SECONDS ago. If the volume does not report its free space,
        the answer is True, and a write may fail."""
        now = self._clock()
        if now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            had_room, self._has_room = self._has_room, self._ask()
            if had_room and not self._has_room:
                log.warning(
                    "the index in %s waits: at most the reserve of %d bytes is free, which is for the master",
                    self._path,
                    self._reserve_bytes,
                    extra=log_events.STANDBY_WAITS,
                )
        return self._has_room

    def _ask(self) -> bool:
        try:
            found = self._disk.statvfs(self._path)
        except OSError:
            return True
        return not found.f_blocks or found.f_bavail * found.f_frsize > self._reserve_bytes
