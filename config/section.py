"""Base of every table of settings.

The meaning of a key is the text below its field. A validator raises ValueError with the expected form, in the
operator's words.

In times and sizes a plain number has ActiveMQ's unit, milliseconds or bytes; a number can also have a unit: "5s",
"250ms", "32mb", "64kb". Sizes count in powers of two, as ActiveMQ's do: "1kb" is 1,024 bytes.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """Table of the file. Values do not change while the broker runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class Subject(Section):
    """Table about one subject: exactly one of the keys ``kinds`` is set."""

    kinds: ClassVar[tuple[str, ...]] = ("queue", "topic")

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if len(self._given()) != 1:
            raise ValueError(f"one of {', '.join(self.kinds[:-1])} and {self.kinds[-1]}")
        return self

    @property
    def subject(self) -> tuple[str, str]:
        """Kind (the name of the key) and pattern. Without a pattern: the one that matches all."""
        (kind,) = self._given()
        value = getattr(self, kind)
        return kind, value if isinstance(value, str) else ">"

    def _given(self) -> list[str]:
        return [kind for kind in self.kinds if getattr(self, kind) not in (None, False)]


@cache
def meanings(table: type[Section]) -> dict[str, str]:
    """Return the meaning of each key of a table, read from its source on demand: a starting broker needs none."""
    found: dict[str, str] = {}
    for part in (part for part in reversed(table.__mro__) if issubclass(part, Section)):
        (definition,) = ast.parse(inspect.getsource(part)).body
        assert isinstance(definition, ast.ClassDef), "a table is a class"
        for pair in pairwise(definition.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[key] = " ".join(text.split())
    return found


def section_of(annotation: Any) -> type[Section] | None:
    """Return the table of a field, also of an optional one; None: the field is a value."""
    kinds = [annotation, *get_args(annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def listed(value: object, separator: str = ",") -> object:
    """Convert to a list: ActiveMQ's form, and that of the environment and --set, is one text with commas."""
    return [part.strip() for part in value.split(separator) if part.strip()] if isinstance(value, str) else value


def without(characters: str, expected: str, *, may_be_empty: bool = False) -> AfterValidator:
    """Make a validator of a text without blanks and without these characters."""

    def validate(text: str) -> str:
        if not (text or may_be_empty) or any(each.isspace() or each in characters for each in text):
            raise ValueError(expected)
        return text

    return AfterValidator(validate)


def _path(path: str) -> str:
    if not path or "\0" in path:
        raise ValueError("a path")
    return path


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Listed = BeforeValidator(listed)
Path = Annotated[str, AfterValidator(_path)]
#: For a Literal: ActiveMQ writes its enumerations in capitals.
AnyCase = BeforeValidator(_lower)


TIMES: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
SIZES: Final = {
    "b": 1,
    **dict.fromkeys(("k", "kb", "kib"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib"), 1 << 30),
}

EXPECTED_TIME: Final = 'a time: milliseconds, or with a unit like "250ms", "5s", "2min"'
EXPECTED_SIZE: Final = 'a size: bytes, or with a unit like "64kb", "32mb", "1gb"'
EXPECTED_COUNT: Final = "a whole number"

_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Unit:
    """Mark of a field's unit. ``unlimited``: the number that means no bound, or an interval without an end."""

    name: str
    unlimited: int | None = None

    @property
    def is_time(self) -> bool:
        """True if the field holds milliseconds; "s" is only the unit of input."""
        return self.name in ("ms", "s", "ms or -1")


def milliseconds(value: object) -> int:
    """Parse a time to whole milliseconds. Raises ValueError with the expected form."""
    return _quantity(value, TIMES, EXPECTED_TIME)


def size(value: object) -> int:
    """Parse a size to bytes. Raises ValueError with the expected form."""
    return _quantity(value, SIZES, EXPECTED_SIZE)


def count(value: object) -> int:
    """Parse a whole number, also from text. Raises ValueError with the expected form."""
    return _quantity(value, {}, EXPECTED_COUNT)


def show_milliseconds(value: int) -> str:
    """Return the shortest text of this time that reads back as the same: "5s", "250ms", "0ms"."""
    return _show(value, (("h", 3_600_000), ("min", 60_000), ("s", 1_000)), "ms")


def show_size(value: int) -> str:
    """Return the shortest text of this size that reads back as the same: "32mb", "100b"."""
    return _show(value, (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)), "b")


def _show(value: int, units: tuple[tuple[str, int], ...], smallest: str) -> str:
    for name, factor in units:
        if value and value % factor == 0:
            return f"{value // factor}{name}"
    return f"{value}{smallest}"


def _quantity(value: object, units: dict[str, int], expected: str) -> int:
    # bool is an int in Python, but an error in a setting.
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        number, unit = match[1], match[2].lower()
        factor = units.get(unit) if unit else 1
        if factor is not None and (unit or "." not in number):
            # A fraction of a unit is rounded to whole milliseconds or bytes.
            return round(float(number) * factor) if "." in number else int(number) * factor
    raise ValueError(expected)


def unit_of(field: FieldInfo) -> Unit | None:
    """Return the unit of a setting."""
    # For an optional key, the mark is inside the union with None.
    inner = (mark for one in get_args(field.annotation) for mark in getattr(one, "__metadata__", ()))
    return next((mark for mark in (*field.metadata, *inner) if isinstance(mark, Unit)), None)


Milliseconds = Annotated[int, BeforeValidator(milliseconds), Unit("ms")]
MillisecondsOrNever = Annotated[int, BeforeValidator(milliseconds), Unit("ms", unlimited=0)]
Bytes = Annotated[int, BeforeValidator(size), Unit("bytes")]
BytesOrUnlimited = Annotated[int, BeforeValidator(size), Unit("bytes", unlimited=0)]
Count = Annotated[int, BeforeValidator(count), Unit("")]
