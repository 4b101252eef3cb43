"""Memory of this process: freed memory returns to the system, and the garbage collector skips long-lived objects.

glibc returns memory at the end of its heap only. Below a block that stays, freed blocks stay too: after 8,000 TLS
handshakes, of which 400 were under way at once, 92 MiB were free and 5 MiB in use.

The collector stops the whole process while it scans long-lived objects: 0.9 s with 90,000 destinations. The broker
breaks reference cycles when it drops the objects of a client, so reference counts free them, and the collector would
find nothing. So whenever the memory of clients has grown, all objects become permanent (``gc.freeze``). Newer objects
are collected as usual. An unreachable cycle of permanent objects is freed only after ``LongLived.end``, so objects
become permanent only as often as the growth requires.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Minimum length of a block that has its own mapping, which is unmapped when the block is freed. By default glibc raises
# this bound, up to 32 MiB, when such blocks are freed. Long frames that grow would then leave holes in the heap that
# are larger than its content.
# uvloop's buffer for a TLS connection has exactly this length, and little of it is used.
MAPPED_BYTES_MIN = 256 * 1024
# Free bytes at the end of the heap that are kept for the next messages. With messages of 1 to 200 KB, there are no more
# page faults than with 32 MiB.
TRIMMED_BYTES_MIN = 4 << 20
PERIOD_SECONDS: Final = 2.0
# From this size of free memory on, it is returned to the system. That of a steady load does not count.
FREE_BYTES_MIN: Final = 4 << 20

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

# Memory of about 2,700 destinations or 10,000 small messages, which the collector scans in 10 to 20 ms.
GROWTH_BYTES = 8 << 20
# Minimum time between two freezes if the memory shrank in between and has not reached its former maximum.
REFREEZE_SECONDS = 10.0


# ---- freed memory


def give_back_long_blocks() -> None:
    """Return long blocks to the system when they are freed, in the whole process from now on. Does nothing if the C
    library has no such settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, TRIMMED_BYTES_MIN)


def _open_statm() -> int | None:
    """Return a descriptor of the sizes of this process. It stays open: later, all descriptors may be in use. None:
    the system has no /proc."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def resident_bytes(statm: int) -> int:
    """Return the memory of this process in RAM (RSS). ``statm``: descriptor of /proc/self/statm."""
    return int(os.pread(statm, 256, 0).split()[1]) * _PAGE_BYTES


def trim() -> None:
    """Return the free pages of the heap to the system (``malloc_trim``). Takes 0.2 to 0.5 ms for each MiB. Meanwhile
    other threads wait when they allocate or free blocks of more than 512 bytes."""
    ctypes.CDLL(None).malloc_trim(0)


class FreeMemory:
    """Return free memory to the system in small amounts, so that the event loop hardly waits.

    After each period the growth of the process is compared with the memory that clients used at most in this period and
    the one before: memory that a steady load frees and allocates again is kept. For the loop's thread.
    """

    __slots__ = ("_beside", "_can_trim", "_clock", "_ends", "_statm", "_trimming", "_used", "_used_before")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._statm = _open_statm() if hasattr(ctypes.CDLL(None), "malloc_trim") else None
        self._trimming: threading.Thread | None = None
        self._ends = 0.0  # of the period
        self._used = 0  # at most in the period
        self._used_before = 0  # at most in the period before
        self._beside = 1 << 62  # process memory minus used memory: after the last trim, or the minimum since

    def update(self, used: int) -> None:
        """Note ``used``, the bytes that clients use (``Memory.used``); at the end of a period begin to trim, on a
        thread, if much is free. Call it about ten times a second."""
        self._used = max(self._used, used)
        now = self._clock()
        if now < self._ends or self._statm is None:
            return
        self._ends = now + PERIOD_SECONDS
        beside = resident_bytes(self._statm) - max(self._used, self._used_before)
        self._used_before, self._used = self._used, used
        if beside < self._beside:
            self._beside = beside
        elif beside - self._beside >= FREE_BYTES_MIN and (self._trimming is None or not self._trimming.is_alive()):
            self._trimming = threading.Thread(target=self._trim, args=(self._statm, used), name="trim", daemon=True)
            with suppress(RuntimeError):  # the system allows no more threads
                self._trimming.start()

    def _trim(self, statm: int, used: int) -> None:
        trim()
        self._beside = resident_bytes(statm) - used


# ---- long-lived objects


class LongLived:
    """Freezes long-lived objects, so that the collector skips them. Used on the loop; one object per term as master."""

    __slots__ = ("_again", "_clock", "_most", "_permanent")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._permanent = 0  # bytes held at the last freeze, or the minimum since
        self._most = 0
        self._again = 0.0

    def update(self, used: int) -> None:
        """Freeze all objects if ``used`` (``Memory.used``, in bytes) has grown enough. Call it about ten times a
        second."""
        if used < self._permanent:
            self._permanent = used
        if used - self._permanent < GROWTH_BYTES:
            return
        now = self._clock()
        if used < self._most + GROWTH_BYTES and now < self._again:
            return
        gc.freeze()
        self._permanent = used
        self._most = max(self._most, used)
        self._again = now + REFREEZE_SECONDS

    def end(self) -> None:
        """End the term: make all objects collectable again."""
        gc.unfreeze()
