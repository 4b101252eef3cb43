"""Memory allocation of this process, set so that freed memory can be returned to the system."""

from __future__ import annotations

import ctypes

# malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Minimum length of a block that is mapped by itself, and unmapped when it is freed. By default glibc raises this bound
# to 32 MiB as soon as such blocks are freed: growing long frames then leave holes in the heap, larger than its content.
MAPPED_BYTES_MIN = 512 * 1024
# What is free at the end of the heap stays for the next messages. Loads of messages of 1 to 200 KB have as many page
# faults with this as with 32 MiB.
TRIMMED_BYTES_MIN = 4 << 20


def give_back_long_blocks() -> None:
    """Return long blocks to the system when they are freed, in the whole process from now on. Does nothing if the C
    library has no such settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, TRIMMED_BYTES_MIN)
