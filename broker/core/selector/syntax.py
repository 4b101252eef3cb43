"""Syntax of a regular expression (the part of java.util.regex that needs no backtracking), and its program.

    alternatives = sequence { "|" sequence }
    sequence     = { atom [ ("*" | "+" | "?" | "{n}" | "{n,}" | "{n,m}") ["?"] ] }
    atom         = "(" ["?:"] alternatives ")" | "[" class "]" | "." | "^" | "$" | "\\" escape | character

``(?i)`` at the beginning ignores case. All other syntax of Java is refused by name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

NESTING_MAX = 50
# Repetitions are written out, so this also bounds (x{1000}){1000}.
INSTRUCTIONS_MAX = 2000
_REPEATED_MAX = 1000

CHARACTER: Final = 0
SPLIT: Final = 1
JUMP: Final = 2
PLACE: Final = 3
MATCH: Final = 4
Instruction = tuple[int, Any, int]
Program = list[Instruction]
Test = Callable[[str], bool]
Place = Callable[[str, int], bool]


class PatternInvalid(ValueError):
    """The text is not a regular expression, or it is not supported."""


# ---- parts of an expression


@dataclass(frozen=True, slots=True)
class _One:
    test: Test


@dataclass(frozen=True, slots=True)
class _At:
    place: Place


@dataclass(frozen=True, slots=True)
class _All:
    parts: list[_Part]


@dataclass(frozen=True, slots=True)
class _Any:
    ways: list[_Part]


@dataclass(frozen=True, slots=True)
class _Repeated:
    part: _Part
    least: int
    most: int | None
    is_greedy: bool


_Part = _One | _At | _All | _Any | _Repeated


# ---- characters and places. Java's classes are ASCII.


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


def _is_space(character: str) -> bool:
    return character in " \t\n\x0b\f\r"


def _is_in_line(character: str) -> bool:
    return character not in "\n\r\x85\u2028\u2029"


def _not(test: Test) -> Test:
    return lambda character: not test(character)


def _is_edge(text: str, position: int) -> bool:
    before = position > 0 and _is_word(text[position - 1])
    return before is not (position < len(text) and _is_word(text[position]))


def _is_start(text: str, position: int) -> bool:
    return position == 0


def _is_very_end(text: str, position: int) -> bool:
    return position == len(text)


def _is_end(text: str, position: int) -> bool:
    """Return whether the position is the end of the text, or directly before its last line break."""
    rest = text[position : position + 3]
    if rest == "\n" and position and text[position - 1] == "\r":
        return False
    return not rest or rest == "\r\n" or (len(rest) == 1 and not _is_in_line(rest))


_CLASSES: dict[str, Test] = {
    "d": _is_digit,
    "D": _not(_is_digit),
    "w": _is_word,
    "W": _not(_is_word),
    "s": _is_space,
    "S": _not(_is_space),
}
_PLACES: dict[str, Place] = {
    "b": _is_edge,
    "B": lambda text, position: not _is_edge(text, position),
    "A": _is_start,
    "Z": _is_end,
    "z": _is_very_end,
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_HEX_DIGITS = {"x": 2, "u": 4}


def _is_empty(part: _Part) -> bool:
    return isinstance(part, _All) and not part.parts


class _Reader:
    """Parser of one pattern."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._ignores_case = False
        if text.startswith("(?i)"):
            self._ignores_case = True
            self._position = 4

    def read(self) -> _Part:
        part = self._alternatives()
        if self._position < len(self._text):
            raise self._invalid("an unmatched )")
        return part

    def _invalid(self, what: str) -> PatternInvalid:
        return PatternInvalid(f"{what} at character {self._position + 1}")

    def _next(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    def _alternatives(self) -> _Part:
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())
        return ways[0] if len(ways) == 1 else _Any(ways)

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._next() not in ("", "|", ")"):
            part = self._repetition(self._atom())
            # A part without instructions is left out: INSTRUCTIONS_MAX does not limit its repetitions.
            if not _is_empty(part):
                parts.append(part)
        return parts[0] if len(parts) == 1 else _All(parts)

    def _repetition(self, part: _Part) -> _Part:
        least: int
        most: int | None
        if self._take("*"):
            least, most = 0, None
        elif self._take("+"):
            least, most = 1, None
        elif self._take("?"):
            least, most = 0, 1
        elif self._take("{"):
            least = self._number()
            most = least
            if self._take(","):
                most = None if self._next() == "}" else self._number()
            if not self._take("}") or (most is not None and most < least):
                raise self._invalid("a bad repetition")
        else:
            return part
        is_greedy = not self._take("?")
        if self._next() in ("*", "+", "?", "{"):
            raise self._invalid("a repetition of a repetition (or a possessive one)")
        return _All([]) if most == 0 or _is_empty(part) else _Repeated(part, least, most, is_greedy)

    def _number(self) -> int:
        start = self._position
        while _is_digit(self._next()):
            self._position += 1
        digits = self._text[start : self._position]
        if not digits or len(digits) > 4 or int(digits) > _REPEATED_MAX:
            raise self._invalid(f"a repetition that is not from 0 to {_REPEATED_MAX}")
        return int(digits)

    def _atom(self) -> _Part:
        character = self._next()
        if character in "*+?{":
            raise self._invalid("nothing to repeat")
        self._position += 1
        if character == "(":
            return self._group()
        if character == "[":
            return _One(self._class())
        if character == ".":
            return _One(_is_in_line)
        if character == "^":
            return _At(_is_start)
        if character == "$":
            return _At(_is_end)
        if character == "\\":
            place = _PLACES.get(self._next())
            if place is not None:
                self._position += 1
                return _At(place)
            found = self._escape()
            return _One(found if callable(found) else self._between(found, found))
        return _One(self._between(character, character))

    def _group(self) -> _Part:
        if self._take("?") and not self._take(":"):
            raise self._invalid("a special group, which is not supported,")
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise self._invalid(f"more than {NESTING_MAX} nested groups")
        part = self._alternatives()
        if not self._take(")"):
            raise self._invalid("a missing )")
        self._depth -= 1
        return part

    def _escape(self) -> Test | str:
        """Read an escape after a backslash: a class, or one character."""
        character = self._next()
        self._position += 1
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _CONTROLS:
            return _CONTROLS[character]
        count = _HEX_DIGITS.get(character)
        if count is not None:
            digits = self._text[self._position : self._position + count]
            if len(digits) < count or any(each not in "0123456789abcdefABCDEF" for each in digits):
                raise self._invalid(f"no {count} hexadecimal digits")
            self._position += count
            return chr(int(digits, 16))
        if not character or (character.isascii() and character.isalnum()):
            raise self._invalid(f"\\{character}, which is not supported,")
        return character

    def _class(self) -> Test:
        is_negative = self._take("^")
        tests: dict[Test, None] = {}  # of _CLASSES
        ranges: list[tuple[str, str]] = []
        while not self._take("]"):
            if self._next() in ("", "[") or self._text.startswith("&&", self._position):
                raise self._invalid("a missing ] (or nested classes)")
            first = self._class_character()
            if callable(first):
                tests[first] = None
                continue
            last = first
            if self._next() == "-" and self._text[self._position + 1 : self._position + 2] not in ("]", ""):
                self._position += 1
                end = self._class_character()
                if callable(end) or end < first:
                    raise self._invalid("a bad range")
                last = end
            ranges.append((first, last))
        if not tests and not ranges:
            raise self._invalid("an empty class")
        test = _union([*tests, *([self._among(ranges)] if ranges else ())])
        return _not(test) if is_negative else test

    def _class_character(self) -> Test | str:
        if self._take("\\"):
            return self._escape()
        character = self._next()
        if character in ("", "["):
            raise self._invalid("a missing ] (or nested classes)")
        self._position += 1
        return character

    def _between(self, first: str, last: str) -> Test:
        if first == last and not self._ignores_case:
            return first.__eq__
        return self._among([(first, last)])

    def _among(self, ranges: list[tuple[str, str]]) -> Test:
        test = _in_ranges(ranges)
        if not self._ignores_case:
            return test
        return lambda character: (
            test(character.lower()) or test(character.upper()) if character.isascii() else test(character)
        )


def _union(tests: list[Test]) -> Test:
    return tests[0] if len(tests) == 1 else lambda character: any(test(character) for test in tests)


def _in_ranges(ranges: list[tuple[str, str]]) -> Test:
    """Return a test for a character in one of the ranges. A class may have tens of thousands, and its test is one step
    of a search, so the test uses a binary search."""
    if len(ranges) == 1:
        ((first, last),) = ranges
        return lambda character: first <= character <= last
    firsts: list[str] = []
    lasts: list[str] = []
    for first, last in sorted(ranges):
        if lasts and first <= lasts[-1]:
            lasts[-1] = max(lasts[-1], last)
        else:
            firsts.append(first)
            lasts.append(last)
    return lambda character: (at := bisect_right(firsts, character)) > 0 and character <= lasts[at - 1]


# ---- the program


def read_pattern(text: str) -> tuple[Program, bool]:
    """Return the program, and whether it tests word boundaries. Raises PatternInvalid."""
    program: Program = []
    _emit(program, _Reader(text).read())
    _append(program, MATCH)
    edges = (_PLACES["b"], _PLACES["B"])
    return program, any(operation == PLACE and argument in edges for operation, argument, _ in program)


def _append(program: Program, operation: int, argument: Any = None, other: int = 0) -> int:
    if len(program) >= INSTRUCTIONS_MAX:
        raise PatternInvalid(f"more than {INSTRUCTIONS_MAX} steps when its repetitions are written out")
    program.append((operation, argument, other))
    return len(program) - 1


def _split(program: Program, at: int, is_greedy: bool, inside: int, outside: int) -> None:
    program[at] = (SPLIT, inside, outside) if is_greedy else (SPLIT, outside, inside)


def _emit(program: Program, part: _Part) -> None:
    if isinstance(part, _One):
        _append(program, CHARACTER, part.test)
    elif isinstance(part, _At):
        _append(program, PLACE, part.place)
    elif isinstance(part, _All):
        for each in part.parts:
            _emit(program, each)
    elif isinstance(part, _Any):
        _emit_ways(program, part.ways)
    else:
        _emit_repeated(program, part)


def _emit_ways(program: Program, ways: list[_Part]) -> None:
    jumps = []
    for way in ways[:-1]:
        split = _append(program, SPLIT)
        _emit(program, way)
        jumps.append(_append(program, JUMP))
        _split(program, split, True, split + 1, len(program))
    _emit(program, ways[-1])
    for jump in jumps:
        program[jump] = (JUMP, len(program), 0)


def _emit_repeated(program: Program, repeated: _Repeated) -> None:
    part, is_greedy = repeated.part, repeated.is_greedy
    for _ in range(repeated.least):
        _emit(program, part)
    if repeated.most is None:
        split = _append(program, SPLIT)
        _emit(program, part)
        _append(program, JUMP, split)
        _split(program, split, is_greedy, split + 1, len(program))
        return
    splits = []
    for _ in range(repeated.most - repeated.least):
        splits.append(_append(program, SPLIT))
        _emit(program, part)
    for split in splits:
        _split(program, split, is_greedy, split + 1, len(program))
