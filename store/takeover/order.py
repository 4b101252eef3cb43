"""Order keys for messages that need another order than the journal's. Pure.

As many messages as possible keep their key: those of a longest increasing subsequence. Each other message gets the next
free key after the message before it. Usually keys are free: the last 32 bits of a key differ only between operations of
one commit. If too few keys are free, the next message gets a new key, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Set

# Number of keys before the first message that keeps its key, for messages that come before it.
HEADROOM = 1 << 48


def ordered_keys(present: Sequence[int | None], taken: Set[int]) -> list[int]:
    """Return the key of each message, ascending.

    ``present``: present keys of the messages, in the wanted order; None: the message has no key yet. As many keys as
    possible stay. A new key is not in ``taken``, the keys that all messages of the destination have now; so the
    messages can be moved one by one, in this order.
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
    tops: list[int] = []  # at index n: the lowest last key of all increasing subsequences of length n + 1
    holders: list[int] = []  # at index n: the number of the message with that key
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
