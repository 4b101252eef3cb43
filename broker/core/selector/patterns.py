"""Regular expressions that cannot be made slow, for REGEX, REPLACE and SPLIT.

The engines of Python and Java try one alternative after the other, and with some patterns that takes years. This engine
follows all alternatives at once (Pike's machine). In exchange it has no groups, no lookahead and no back references. It
finds the match that Java finds: the leftmost one, and of several at that place the one that the pattern prefers.

    pattern -> _Reader: instructions -> Pattern.spans: (start, end) ...

    CHARACTER test    continue if the next character passes the test
    SPLIT first, then follow both, the first one preferred
    JUMP target
    PLACE test        continue if this place in the text passes (^, $, \\b)
    MATCH

REGEX only checks whether there is a match. Its time depends only on the length of the text: a set of instructions that
wait for a character is a state, and the transition of a state by a character is cached. All work is counted
(effort.py), so the time is also bounded for a text without cached transitions, and for a search for places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tandemmq.broker.core.selector.effort import Effort
from tandemmq.broker.core.selector.syntax import CHARACTER, JUMP, MATCH, PLACE, SPLIT, Program, read_pattern

# Limits of the cache of one pattern, about 200 KB: number of transitions, and of waiting instructions in all states. At
# a limit the cache is cleared. If more patterns than the third limit have a cache, the least recently used one is
# cleared.
TRANSITIONS_MAX = 1_000
WAITING_MAX = 2_000
CACHED_PATTERNS_MAX = 40
# Characters with cached transitions that count as one unit of effort. They are counted in pieces.
_CHARACTERS_PER_UNIT = 4
# Instructions that count as one unit when a state is made.
_INSTRUCTIONS_PER_UNIT = 4
_FIXED_UNITS = 4  # units for each of the two halves of that work, in addition
_PIECE = 512
# Characters at the end of the text for which no transition is cached: before a line end ($), of at most "\r\n", the
# result depends on the place.
_TAIL = 2

Span = tuple[int, int]


@dataclass(slots=True, eq=False, repr=False)
class _State:
    """``waiting``: the instructions that wait for a character. ``next``: the next state, by that character (and the one
    after it, if the pattern has word boundaries)."""

    waiting: frozenset[int]
    is_match: bool
    next: dict[str, _State] = field(default_factory=dict)


class Pattern:
    """A compiled pattern. Raises PatternInvalid with a description of the mistake."""

    __slots__ = ("_effort", "_key_length", "_program", "_states", "_transition_count", "_waiting_count")

    def __init__(self, text: str, effort: Effort) -> None:
        self._program: Program
        self._program, has_edges = read_pattern(text)
        self._effort = effort
        self._key_length = 2 if has_edges else 1  # characters on which a transition depends
        self._states: dict[tuple[frozenset[int], bool], _State] = {}
        self._transition_count = self._waiting_count = 0

    @property
    def instructions(self) -> int:
        return len(self._program)

    def is_in(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in ``text``. Raises TooMuchWork."""
        _CACHED_PATTERNS.pop(self, None)
        _CACHED_PATTERNS[self] = None
        if len(_CACHED_PATTERNS) > CACHED_PATTERNS_MAX:
            oldest = next(iter(_CACHED_PATTERNS))
            del _CACHED_PATTERNS[oldest]
            oldest.forget()
        state = self._follow({0}, text, 0)
        is_one = self._key_length == 1
        last = max(0, len(text) - _TAIL - 1)
        for start in range(0, last, _PIECE):
            self._effort.spend(_PIECE // _CHARACTERS_PER_UNIT)
            for position in range(start, min(start + _PIECE, last)):
                if state.is_match:
                    return True
                key = text[position] if is_one else text[position : position + 2]
                after = state.next.get(key)
                if after is None:
                    after = self._step(state, text, position)
                    self._remember(state, key, after)
                state = after
        for position in range(last, len(text)):
            if state.is_match:
                return True
            state = self._step(state, text, position)
        return state.is_match

    def _remember(self, state: _State, key: str, after: _State) -> None:
        if self._transition_count >= TRANSITIONS_MAX:
            self.forget()
        self._transition_count += 1
        state.next[key] = after

    def forget(self) -> None:
        """Clear the cache."""
        for each in self._states.values():
            each.next = {}
        self._states.clear()
        self._transition_count = self._waiting_count = 0

    def _step(self, state: _State, text: str, position: int) -> _State:
        """Return the state after the character at ``position``. A match may also begin at the next character."""
        character = text[position]
        self._effort.spend(_FIXED_UNITS + len(state.waiting) // _INSTRUCTIONS_PER_UNIT)
        program = self._program
        return self._follow({0, *(at + 1 for at in state.waiting if program[at][1](character))}, text, position + 1)

    def _follow(self, ways: set[int], text: str, position: int) -> _State:
        """Return the state at this place of the text: all instructions reached from ``ways`` without a character."""
        left = list(ways)
        waiting: list[int] = []
        is_match = False
        seen = ways
        while left:
            at = left.pop()
            operation, argument, other = self._program[at]
            if operation == CHARACTER:
                waiting.append(at)
                continue
            more: tuple[int, ...] = ()
            if operation == SPLIT:
                more = argument, other
            elif operation == JUMP:
                more = (argument,)
            elif operation == MATCH:
                is_match = True
            elif argument(text, position):
                more = (at + 1,)
            for each in more:
                if each not in seen:
                    seen.add(each)
                    left.append(each)
        self._effort.spend(_FIXED_UNITS + len(seen) // _INSTRUCTIONS_PER_UNIT)
        identity = frozenset(waiting), is_match
        state = self._states.get(identity)
        if state is None:
            if self._waiting_count > WAITING_MAX:
                self.forget()
            self._waiting_count += 1 + len(waiting)
            state = self._states[identity] = _State(*identity)
        return state

    def spans(self, text: str) -> Iterator[Span]:
        """Yield the matches from left to right, without overlap. Raises TooMuchWork."""
        search = _Search(self._program, text, self._effort)
        position = 0
        while position <= len(text):
            span = search.first(position)
            if span is None:
                return
            yield span
            position = span[1] if span[1] > span[0] else span[1] + 1


#: Patterns with a cache, the least recently used one first.
_CACHED_PATTERNS: dict[Pattern, None] = {}


class _Search:
    """Search for matches in one text."""

    __slots__ = ("_effort", "_program", "_text")

    def __init__(self, program: Program, text: str, effort: Effort) -> None:
        self._program = program
        self._text = text
        self._effort = effort

    def first(self, position: int) -> Span | None:
        """Return the leftmost match that begins at ``position`` or later."""
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
                    break  # the other threads are less preferred
                if position < len(text) and argument(text[position]):
                    self._follow(at + 1, start, position + 1, threads, seen)
            self._effort.spend(len(going) + 1)
            position += 1
            if position > len(text) or (found is not None and not threads):
                return found

    def _follow(self, at: int, start: int, position: int, threads: list[Span], seen: set[int]) -> None:
        """Add to ``threads`` all instructions that are reached from ``at`` without a character and wait for one."""
        ways = [at]
        while ways:
            at = ways.pop()
            if at in seen:
                continue
            seen.add(at)
            self._effort.spend(1)
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
