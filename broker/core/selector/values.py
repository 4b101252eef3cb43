"""Value of a part of a selector: None (NULL, unknown), a truth value, a number, a text or a list.

Numbers follow Java: an integer that fits is an Integer unless it is a Long, and integers wrap. Operations that Java
refuses with an exception while it evaluates a message ('a' - 1) give None here, so that a selector never fails on a
message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from tandemmq.broker.core.numbers import java_text
from tandemmq.broker.core.selector.effort import Effort
from tandemmq.store.records.message import Message
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short

Value = Any
Evaluate = Callable[[Message], Value]

# Maximum length of a text that a selector makes by itself (``+``, REPLACE); a longer one is None instead.
TEXT_CHARACTERS_MAX = 1 << 20
# Maximum length of a number for a selector that converts texts.
NUMBER_CHARACTERS_MAX = 40

# Characters compared, or copied, for one unit of effort. A character that is not ASCII may take four bytes.
COMPARED = 4096
_COPIED_WIDE = COMPARED // 4
# Characters and bytes within lists and maps, which may be written with escapes, for one unit.
_WITHIN = 64
# Units for the text of a float, which takes some 4 microseconds, and for one within a map.
_FLOAT_TEXT = 12
_FLOAT_WITHIN = 2

TRUTH, NUMBER, TEXT, OTHER = range(4)
_KINDS: dict[type, int] = {
    bool: TRUTH,
    int: NUMBER,
    float: NUMBER,
    Byte: NUMBER,
    Short: NUMBER,
    Long: NUMBER,
    Float: NUMBER,
    str: TEXT,
    Char: TEXT,
}

_INT_MAX = 0x7FFFFFFF
_LONG_MAX = 0x7FFFFFFF_FFFFFFFF


def kind(value: Value) -> int:
    """Return TRUTH, NUMBER, TEXT, or OTHER: values of different kinds are never equal."""
    return _KINDS.get(type(value), OTHER)


# ---- arithmetic (ArithmeticExpression, UnaryExpression.negate)


def _is_long(value: int) -> bool:
    return type(value) is Long or not -_INT_MAX - 1 <= value <= _INT_MAX


def _wrapped(value: int, is_long: bool) -> int:
    if is_long:
        return Long((value + _LONG_MAX + 1 & 2 * _LONG_MAX + 1) - _LONG_MAX - 1)
    return (value + _INT_MAX + 1 & 2 * _INT_MAX + 1) - _INT_MAX - 1


def _exact(operation: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Value]:
    """Return an operation on numbers: integers stay integers, and wrap; one float makes both double."""

    def calculate(left: Value, right: Value) -> Value:
        if kind(left) != NUMBER or kind(right) != NUMBER:
            return None
        if isinstance(left, float) or isinstance(right, float):
            try:
                return float(operation(float(left), float(right)))
            except OverflowError:
                return None
        return _wrapped(operation(left, right), _is_long(left) or _is_long(right))

    return calculate


_sum = _exact(lambda left, right: left + right)
minus = _exact(lambda left, right: left - right)
times = _exact(lambda left, right: left * right)


def plus(effort: Effort, left: Value, right: Value) -> Value:
    """Return the sum, or the concatenation if the left side is a text. Raises TooMuchWork."""
    if kind(left) != TEXT:
        return _sum(left, right)
    added = as_text(right, effort)
    if len(left) + len(added) > TEXT_CHARACTERS_MAX:
        return None
    spend_copy(len(left) + len(added), left.isascii() and added.isascii(), effort)
    return str(left) + added


def divided(left: Value, right: Value) -> Value:
    """Return the quotient, always double: 5 / 2 is 2.5, and 1 / 0 is infinite."""
    if kind(left) != NUMBER or kind(right) != NUMBER:
        return None
    over, under = float(left), float(right)
    if under:
        return over / under
    if not over or math.isnan(over) or math.isnan(under):
        return math.nan
    return math.copysign(math.inf, over) * math.copysign(1.0, under)


def remainder(left: Value, right: Value) -> Value:
    """Return the remainder, always double, with the sign of the left side."""
    if kind(left) != NUMBER or kind(right) != NUMBER:
        return None
    over, under = float(left), float(right)
    return math.nan if not under or math.isinf(over) else math.fmod(over, under)


def negated(value: Value) -> Value:
    if kind(value) != NUMBER:
        return None
    return -float(value) if isinstance(value, float) else _wrapped(-value, _is_long(value))


# ---- from text and to text

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_DOUBLE = re.compile(r"[\0- ]*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?[\0- ]*\Z")
_RANGES: dict[type, int] = {Byte: 0x7F, Short: 0x7FFF}


def converted(text: str, example: Value) -> Value:
    """Return the text as a value of ``example``'s type, as Java's ``valueOf`` reads it; None when it is not such a
    value.

    A text of any length takes a microsecond: its length is checked before it is read.
    """
    if type(example) is bool:
        return len(text) == 4 and text.lower() == "true"
    if len(text) > NUMBER_CHARACTERS_MAX:  # prove: a-long-text-is-no-number
        return None
    if isinstance(example, float):
        decimal = _DOUBLE.match(text)
        return None if decimal is None else float(decimal[1])
    if not isinstance(example, int) or _INTEGER.match(text) is None:
        return None
    most = _RANGES.get(type(example)) or (_LONG_MAX if _is_long(example) else _INT_MAX)
    value = int(text)
    return value if -most - 1 <= value <= most else None


def as_text(value: Value, effort: Effort) -> str:
    """Write ``value`` as Java's ``toString`` does. Raises TooMuchWork."""
    if type(value) is str:
        return value
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, float):
        effort.spend(_FLOAT_TEXT)
        return java_text(value)
    if isinstance(value, list):
        effort.spend(len(value))
        texts = [as_text(each, effort) for each in value]
        spend_copy(sum(map(len, texts)), False, effort)
        return f"[{', '.join(texts)}]"
    weigh(value, effort)
    return str(value)


# ---- effort


def spend_copy(characters: int, is_ascii: bool, effort: Effort) -> None:
    """Spend the effort of making a text of that many characters. Raises TooMuchWork."""
    effort.spend(characters // (COMPARED if is_ascii else _COPIED_WIDE))


def weigh(value: Value, effort: Effort) -> int:
    """Spend the effort to compare or to write a list, a map or bytes, with all their content; return these units.
    Raises TooMuchWork."""
    units = 0
    if isinstance(value, str | bytes):
        units = len(value) // _WITHIN
    elif isinstance(value, float):
        units = _FLOAT_WITHIN
    elif isinstance(value, list | dict):
        units = len(value)
    effort.spend(units)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        units += sum(weigh(each, effort) for each in value)
    return units
