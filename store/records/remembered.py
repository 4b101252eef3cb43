"""Caches of values that many records repeat, for example ids of producers and names of destinations. Any thread."""

from __future__ import annotations

from typing import Final, TypeVar

CACHE_ENTRIES_MAX: Final = 4096
CACHED_BYTES_MAX: Final = 512  # longer values are not cached: a client could fill the memory with names of 64 KiB

K = TypeVar("K")
V = TypeVar("V")


def remember(cache: dict[K, V], key: K, value: V, size: int) -> V:
    """Return ``value``, and cache it if its ``size`` in bytes is at most CACHED_BYTES_MAX. A full cache is cleared
    first."""
    if size <= CACHED_BYTES_MAX:
        if len(cache) >= CACHE_ENTRIES_MAX:
            cache.clear()
        cache[key] = value
    return value
