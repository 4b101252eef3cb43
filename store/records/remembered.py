"""Caches for values that most records repeat: ids of producers, names of destinations. Safe to share between
threads."""

from __future__ import annotations

from typing import Final, TypeVar

CACHE_ENTRIES_MAX: Final = 4096
CACHED_BYTES_MAX: Final = 512  # so that no peer fills a cache with names of 64 KiB

K = TypeVar("K")
V = TypeVar("V")


def remember(cache: dict[K, V], key: K, value: V, size: int) -> V:
    """Return ``value``; cache it, unless its ``size`` in bytes is unusual. A full cache is emptied."""
    if size <= CACHED_BYTES_MAX:
        if len(cache) >= CACHE_ENTRIES_MAX:
            cache.clear()
        cache[key] = value
    return value
