"""Order of patterns: of several that match a destination, the first one's policy applies. Pure.

The most specific one is the first: word by word from the left, a word is more specific than ``*``, and ``*`` more than
``>``. ActiveMQ defines the same order. But if one of two patterns has a ``*``, ActiveMQ's choice is often arbitrary
(ActiveMQDestination.compare does not define an order of ``*.>`` and ``B.>``).
"""

from __future__ import annotations

from typing import Final

_RANKS: Final = {"*": 1, ">": 3}
# Rank after the last word: a longer pattern is more specific than its own beginning, except for ">".
_END: Final = 2


def specificity(pattern: str) -> tuple[tuple[int, ...], str]:
    """Return a sort key of patterns, the most specific one first; no two keys are equal."""
    return (*(_RANKS.get(word, 0) for word in pattern.split(".")), _END), pattern
