"""Groups of consecutive items with limits of size and count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def groups(
    items: Iterable[T], size_of: Callable[[T], int], size_max: int, count_max: int | None = None
) -> Iterator[list[T]]:
    """Yield groups of at most ``count_max`` items whose sizes sum to at most ``size_max``, unless one item alone is
    larger. Groups are not empty."""
    together: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if together and (total + size > size_max or len(together) == count_max):
            yield together
            together, total = [], 0
        together.append(item)
        total += size
    if together:
        yield together
