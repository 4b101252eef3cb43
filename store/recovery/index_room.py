"""Room for a standby's index: it grows beside the reserve, never into it.

The reserve is for the writes that empty queues: the master's acknowledgements, its next journal file and its
checkpoints (store.writer.space). Indexes of standbys are on the same volume, as a rule. One that took the last byte
would cost the master its role, and every broker its promotion, which needs a journal file; then no consumer could make
room any more.
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
        """Return whether there is room, as of at most ASK_SECONDS ago. A volume that reports nothing has room: a write
        will tell."""
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
