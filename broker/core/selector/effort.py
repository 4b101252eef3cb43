"""Bound of one evaluation of a selector with one message.

Work that grows with a message's texts (LIKE, REGEX, REPLACE, SPLIT, ``+``, comparisons of long texts) is counted before
or while it is done. Beyond ``EFFORT_MAX`` the selector does not match, as if a property were missing. The conditions
themselves are bounded when the selector is compiled (building.CONDITIONS_MAX).
"""

from __future__ import annotations

# Units of one evaluation, some 1 ms in all. A unit is a step of a regular expression, about a quarter of a microsecond.
EFFORT_MAX = 4_000


class TooMuchWork(Exception):
    """The evaluation reached EFFORT_MAX: the texts are too long for the selector."""


class Effort:
    """Effort left for the present evaluation. For one thread at a time."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = EFFORT_MAX

    def begin(self) -> None:
        """Begin an evaluation."""
        self._left = EFFORT_MAX

    def spend(self, units: int) -> None:
        """Count ``units`` more. Raises TooMuchWork."""
        self._left -= units
        if self._left < 0:
            raise TooMuchWork
