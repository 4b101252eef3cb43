"""Sort very many items without a step that sorts all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import compress
from operator import not_
from typing import TypeVar

from tandemmq.broker.core.slices import Pace, Work, pieces

T = TypeVar("T")
# Maximum number of items that one step of ``take_out`` examines.
PIECE_MAX = 10_000


def in_order(items: Iterable[T], key: Callable[[T], int], pace: Pace) -> Work[Iterator[T]]:
    """Return an iterator over ``items`` sorted by ``key``, stable. The source of the items must not change until the
    work is done. Each item that is then taken from the iterator costs a few comparisons."""
    runs: list[list[T]] = []
    for piece in pieces(items):
        piece.sort(key=key)
        if runs and key(runs[-1][-1]) <= key(piece[0]):
            runs[-1].extend(piece)  # common: most items are in order already
        else:
            runs.append(piece)
        if pace.is_full(len(piece)):
            yield
    return merge(*runs, key=key)


def parted(items: Iterable[T], is_chosen: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Return the items that are not chosen, and the chosen items. Both lists have the order of ``items``.
    100,000 items take about 10 ms."""
    every = list(items)
    are_chosen = list(map(is_chosen, every))
    return list(compress(every, map(not_, are_chosen))), list(compress(every, are_chosen))


def take_out(row: deque[T], is_chosen: Callable[[T], bool]) -> Iterator[tuple[int, list[T]]]:
    """Take the chosen items out of ``row``, piece by piece. Yield the number of examined items and the chosen ones.
    Between two pieces other code may take from the front of the row and append to it."""
    kept_behind = 0
    while kept_behind < len(row):
        row.rotate(kept_behind)
        piece = [row.pop() for _ in range(min(PIECE_MAX, len(row) - kept_behind))]
        piece.reverse()
        kept, found = parted(piece, is_chosen)
        row.extend(kept)
        row.rotate(-kept_behind)
        kept_behind += len(kept)
        yield len(piece), found


def run_of(items: Iterable[T], key: Callable[[T], int], pace: Pace) -> Work[deque[T]]:
    """Return all items sorted as in ``in_order``."""
    run: deque[T] = deque()
    for item in (yield from in_order(items, key, pace)):
        run.append(item)
        if pace.is_full():
            yield
    return run
