"""Regular expressions that cannot be made slow, for REGEX, REPLACE and SPLIT.

Python's and Java's own engines try one way after the other, and there are patterns that make them try for years. This
one follows all ways at once (Pike's machine): what a search costs is at most the length of the text times that of the
pattern, and ``STEPS_MAX`` bounds even that. The price is that there are no groups to refer to, no looking ahead and no
back references. Of several matches it finds the one that Java finds: the leftmost, and there the preferred.

    pattern -> _Reader: instructions -> Pattern.spans: (start, end) ...

    CHARACTER test    go on if the next character passes
    SPLIT first, then try both ways, the first one preferred
    JUMP target
    PLACE test        go on if this place in the text passes (^, $, \\b)
    MATCH
"""

from __future__ import annotations

from collections.abc import Iterator

from tandemmq.broker.core.selector.syntax import JUMP, MATCH, PLACE, SPLIT, Program, read_pattern

# What all searches in one text may cost: about 50 ms.
STEPS_MAX = 100_000

Span = tuple[int, int]


class TooMuchWork(Exception):
    """STEPS_MAX is reached: the text is too long for the pattern."""


class Pattern:
    """A compiled pattern. Raises PatternInvalid with what is wrong with it, in words."""

    __slots__ = ("_program",)

    def __init__(self, text: str) -> None:
        self._program: Program = read_pattern(text)

    def is_in(self, text: str) -> bool:
        """Whether it matches anywhere. Raises TooMuchWork."""
        return _Search(self._program, text).first(0) is not None

    def spans(self, text: str) -> Iterator[Span]:
        """Where it matches, from left to right, without overlap. Raises TooMuchWork."""
        search = _Search(self._program, text)
        position = 0
        while position <= len(text):
            span = search.first(position)
            if span is None:
                return
            yield span
            position = span[1] if span[1] > span[0] else span[1] + 1


class _Search:
    """One text, and what looking into it has cost."""

    __slots__ = ("_program", "_steps", "_text")

    def __init__(self, program: Program, text: str) -> None:
        self._program = program
        self._text = text
        self._steps = 0

    def first(self, position: int) -> Span | None:
        """The leftmost match that begins at ``position`` or later."""
        text, program = self._text, self._program
        threads: list[Span] = []  # (instruction, where the match began), the preferred one first
        found: Span | None = None
        while True:
            seen: set[int] = {at for at, _ in threads}
            if found is None:
                self._follow(0, position, position, threads, seen)
            going, threads = threads, []
            seen = set()
            for at, start in going:
                operation, argument, _ = program[at]
                if operation == MATCH:
                    found = start, position
                    break  # what is less preferred does not count any more
                if position < len(text) and argument(text[position]):
                    self._follow(at + 1, start, position + 1, threads, seen)
            self._steps += len(going) + 1
            if self._steps > STEPS_MAX:
                raise TooMuchWork
            position += 1
            if position > len(text) or (found is not None and not threads):
                return found

    def _follow(self, at: int, start: int, position: int, threads: list[Span], seen: set[int]) -> None:
        """Add all the instructions that wait for a character and are reached from ``at`` without one."""
        ways = [at]
        while ways:
            at = ways.pop()
            if at in seen:
                continue
            seen.add(at)
            self._steps += 1
            operation, argument, other = self._program[at]
            if operation == SPLIT:
                ways.append(other)
                ways.append(argument)
            elif operation == JUMP:
                ways.append(argument)
            elif operation == PLACE:
                if argument(self._text, position):
                    ways.append(at + 1)
            else:
                threads.append((at, start))
