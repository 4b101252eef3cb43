"""Very many items in order, without a step that sorts all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import TypeVar

from broker.core.slices import Pace, Work, pieces

T = TypeVar("T")


def in_order(items: Iterable[T], key: Callable[[T], int], pace: Pace) -> Work[Iterator[T]]:
    """``items`` by ``key``, those of one key as they came. What they are taken from is not to change meanwhile.
    Each item that is then taken from the outcome is a few comparisons."""
    runs: list[list[T]] = []
    for piece in pieces(items):
        piece.sort(key=key)
        if runs and key(runs[-1][-1]) <= key(piece[0]):
            runs[-1].extend(piece)  # most of it is in order already
        else:
            runs.append(piece)
        if pace.is_full(len(piece)):
            yield
    return merge(*runs, key=key)
