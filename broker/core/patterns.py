"""Which of several patterns is meant that all match: what policies are given by. Pure.

The most specific one: word by word from the left a word is more than ``*``, and ``*`` more than ``>``. ActiveMQ means
the same by it, but where there is a ``*`` in one of two patterns it often takes either (what
ActiveMQDestination.compare says of ``*.>`` and ``B.>`` is no order).
"""

from __future__ import annotations

from typing import Final

_RANKS: Final = {"*": 1, ">": 3}
# Behind the last word: a longer pattern is more specific than what it begins with, but for ">".
_END: Final = 2


def specificity(pattern: str) -> tuple[tuple[int, ...], str]:
    """Sorts patterns, the most specific one first; no two are alike."""
    return (*(_RANKS.get(word, 0) for word in pattern.split(".")), _END), pattern
