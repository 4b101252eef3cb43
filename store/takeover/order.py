"""Order keys for messages that need another order than the journal's. Pure.

A message in the right place keeps its key: those are a longest increasing subsequence. The others get the free keys
after the message before them. There are such keys: a record's key ends in 32 bits that only the operations of one
commit use. If too few keys are free, the next message gives up its place, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Set

# Unused keys before the first message, for messages that come before it.
HEADROOM = 1 << 48


def ordered_keys(present: Sequence[int | None], taken: Set[int]) -> list[int]:
    """Return a key for each message, ascending.

    ``present`` are their present keys, in the wanted order; None: the message has no key yet. As many keys as possible
    stay. A new key is none of those ``taken``, by these messages or others that are there now: each message may be
    moved by itself, in this order.
    """
    keeps = _longest_increasing(present)
    first = next((key for key, stays in zip(present, keeps, strict=True) if stays), None)
    last = 0 if first is None else max(first - HEADROOM, 0)
    found: list[int] = []
    for key, stays in zip(present, keeps, strict=True):
        if stays and key is not None and key > last:
            last = key
        else:
            last += 1
            while last in taken:
                last += 1
        found.append(last)
    return found


def _longest_increasing(present: Sequence[int | None]) -> list[bool]:
    """Return, for each key, whether it belongs to a longest increasing subsequence."""
    tops: list[int] = []  # the lowest last key of all sequences of length n + 1
    holders: list[int] = []  # the number of the message with that key
    before = [-1] * len(present)
    for number, key in enumerate(present):
        if key is None:
            continue
        length = bisect_left(tops, key)
        if length:
            before[number] = holders[length - 1]
        if length == len(tops):
            tops.append(key)
            holders.append(number)
        else:
            tops[length] = key
            holders[length] = number
    keeps = [False] * len(present)
    at = holders[-1] if holders else -1
    while at >= 0:
        keeps[at] = True
        at = before[at]
    return keeps
