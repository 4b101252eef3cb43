"""Write numbers as Java's toString does: the form of JMS properties for STOMP clients, and of texts in selectors.
Pure."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal

from tandemmq.store.records.message import PropertyValue
from tandemmq.store.records.properties import Float

_FLOAT = struct.Struct(">f")
_FLOAT_DIGITS_MAX = 9
# Double.toString: digits without an exponent in this range.
_PLAIN_MIN, _PLAIN_END = Decimal("0.001"), Decimal(10_000_000)


def whole_number(text: str) -> int:
    """Parse ASCII digits, with or without a sign; blanks around them are ignored. Raises ValueError. (``int`` also
    accepts digits of other scripts, and underscores.)"""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text)


_WHOLE = re.compile(r"[ \t]*[+-]?[0-9]{1,20}[ \t]*")


def property_text(value: PropertyValue) -> str:
    """Return a property's value for protocols that have only texts; None becomes an empty text. Lists and maps, which a
    JMS client may nest in a property, are written as Java's ``toString`` writes them."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return f"[{', '.join(map(_nested_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}={_nested_text(each)}' for name, each in value.items())}}}"
    return java_text(value)


def _nested_text(value: PropertyValue) -> str:
    return "null" if value is None else property_text(value)


def java_text(value: bool | int | float) -> str:
    """Write ``value`` as Java does: true, 3, 1.0E10, NaN."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    return str(int(value))


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    number = Decimal(_shortest_float(value) if isinstance(value, Float) else repr(value))
    if number == 0 or _PLAIN_MIN <= abs(number) < _PLAIN_END:
        text = f"{number:f}"
        return text if "." in text else text + ".0"
    sign, digits, exponent = number.normalize().as_tuple()
    assert isinstance(exponent, int), "it is finite"
    first, *others = map(str, digits)
    return f"{'-' * sign}{first}.{''.join(others) or '0'}E{exponent + len(others)}"


def _shortest_float(value: float) -> str:
    """Return the fewest digits that convert back to the same 32-bit number."""
    wanted = _FLOAT.pack(value)
    for digits in range(1, _FLOAT_DIGITS_MAX):
        text = f"{value:.{digits}g}"
        try:
            if _FLOAT.pack(float(text)) == wanted:
                return text
        except OverflowError:  # rounded up beyond the greatest
            continue
    return f"{value:.{_FLOAT_DIGITS_MAX}g}"
