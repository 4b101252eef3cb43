"""INLIST, MAKELIST, REGEX, REPLACE and SPLIT (org.apache.activemq.filter.function).

Patterns must be literals: they are compiled with the selector, and patterns.py keeps them harmless. Arguments that
Classic fails on (a value that is not a list, a missing text) give "unknown" here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandemmq.broker.core.selector.effort import Effort
from tandemmq.broker.core.selector.patterns import Pattern
from tandemmq.broker.core.selector.values import (
    COMPARED,
    TEXT,
    TEXT_CHARACTERS_MAX,
    Evaluate,
    Value,
    as_text,
    kind,
    spend_copy,
    weigh,
)
from tandemmq.store.records.message import Message

Arguments = Sequence[Evaluate]


def in_list(arguments: Arguments, effort: Effort) -> Evaluate:
    """Return a condition: the first argument, a list, contains the second argument."""
    items, candidate = arguments

    def evaluate(message: Message) -> Value:
        among = items(message)
        if not isinstance(among, list):
            return None
        wanted = candidate(message)
        wanted_kind = kind(wanted)
        units = len(wanted) // COMPARED if wanted_kind == TEXT else weigh(wanted, effort)
        effort.spend(len(among) * (1 + units))
        return any(kind(each) == wanted_kind and each == wanted and each is not None for each in among)

    return evaluate


def make_list(arguments: Arguments, effort: Effort) -> Evaluate:
    return lambda message: [argument(message) for argument in arguments]


def regex(pattern: Pattern, candidate: Evaluate, effort: Effort) -> Evaluate:
    """Return a condition: the pattern matches a part of the value, converted to text. False for NULL."""

    def evaluate(message: Message) -> Value:
        found = candidate(message)
        if found is None:
            return False
        return pattern.is_in(as_text(found, effort))

    return evaluate


def replace(source: Evaluate, pattern: Pattern, replacement: str, effort: Effort) -> Evaluate:
    """Return the text with all matches replaced."""

    def evaluate(message: Message) -> Value:
        text = source(message)
        if kind(text) != TEXT:
            return None
        parts: list[str] = []
        position = length = 0
        for start, end in pattern.spans(text):
            parts += text[position:start], replacement
            length += start - position + len(replacement)
            if length > TEXT_CHARACTERS_MAX:
                return None
            position = end
        parts.append(text[position:])
        spend_copy(length + len(text) - position, text.isascii() and replacement.isascii(), effort)
        return "".join(parts)

    return evaluate


def split(source: Evaluate, pattern: Pattern, limit: int) -> Evaluate:
    """Split a text as String.split does: at most ``limit`` parts; 0: no empty parts at the end; below 0: all parts."""

    def evaluate(message: Message) -> Value:
        text = source(message)
        if kind(text) != TEXT:
            return None
        return _split(text, pattern, limit)

    return evaluate


def _split(text: str, pattern: Pattern, limit: int) -> list[Value]:
    parts: list[Value] = []
    position = 0
    for start, end in pattern.spans(text):
        if len(parts) + 1 == limit:
            break
        if end == 0:  # an empty match at the beginning makes no empty part
            continue
        parts.append(text[position:start])
        position = end
    if not parts:
        return [text]
    parts.append(text[position:])
    if limit == 0:
        while parts and not parts[-1]:
            del parts[-1]
    return parts


def replacement_text(written: str) -> str:
    """Parse a replacement as Matcher.appendReplacement does. Raises ValueError for ``$``, which means a group, and for
    a backslash at the end."""
    parts = []
    characters = iter(written)
    for character in characters:
        if character == "$":
            raise ValueError("$ in a replacement means a group, and groups are not supported; write \\$")
        if character == "\\":
            character = next(characters, "")
            if not character:
                raise ValueError("a replacement ends with \\")
        parts.append(character)
    return "".join(parts)


LISTS: dict[str, Callable[[Arguments, Effort], Evaluate]] = {"INLIST": in_list, "MAKELIST": make_list}
# Minimum and maximum number of arguments.
ARITIES = {"INLIST": (2, 2), "MAKELIST": (0, 1 << 16), "REGEX": (2, 2), "REPLACE": (3, 3), "SPLIT": (2, 3)}
CONDITIONS = frozenset(("INLIST", "REGEX"))
