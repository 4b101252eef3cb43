"""Settings of the C library's memory allocator: freed memory is returned to the system."""

from __future__ import annotations

import ctypes

# malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Minimum length of a block that has its own mapping, which is unmapped when the block is freed. By default glibc raises
# this bound, up to 32 MiB, when such blocks are freed. Long frames that grow would then leave holes in the heap that
# are larger than its content.
MAPPED_BYTES_MIN = 512 * 1024
# Free bytes at the end of the heap that are kept for the next messages. With messages of 1 to 200 KB, there are no more
# page faults than with 32 MiB.
TRIMMED_BYTES_MIN = 4 << 20


def give_back_long_blocks() -> None:
    """Return long blocks to the system when they are freed, in the whole process from now on. Does nothing if the C
    library has no such settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, TRIMMED_BYTES_MIN)
