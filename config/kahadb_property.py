"""A setting of ActiveMQ and its treatment here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError


class Outcome(Enum):
    """The treatment of a property; the values are those of the documentation."""

    ACCEPTED = "accepted"
    MAPPED = "mapped"
    FIXED = "fixed"
    REFUSED = "refused"


Values = tuple[bool | int | str, ...]


@dataclass(frozen=True, slots=True)
class Property:
    """Setting of ActiveMQ. ``here`` is its effect here, or the reason why it has none and the setting to use instead.
    An empty ``here`` means the same as in ActiveMQ.

    ``key`` is its key here. For MAPPED, ``target`` is the setting that it is read as, with the value that ``convert``
    returns. For FIXED, ``values`` are the accepted values; the first one is shown.
    """

    outcome: Outcome
    here: str
    key: str = ""
    name: str = ""
    default: str = ""
    target: str = ""
    convert: Callable[[Any], Any] = field(default=lambda value: value)
    values: Values = ()


def properties(table: str, found: Mapping[tuple[str, str], Property]) -> tuple[Property, ...]:
    """Return the properties by ActiveMQ's name and default. The default key is that name, in this table."""
    return tuple(
        replace(each, name=name, default=default, key=each.key or f"{table}.{snake_case(name)}")
        for (name, default), each in found.items()
    )


def accepted(here: str = "", key: str = "") -> Property:
    return Property(Outcome.ACCEPTED, here, key)


def mapped(target: str, here: str, convert: Callable[[Any], Any] = lambda value: value) -> Property:
    return Property(Outcome.MAPPED, here, target=target, convert=convert)


def fixed(values: Values, here: str, key: str = "") -> Property:
    return Property(Outcome.FIXED, here, key, values=values)


def always(here: str, key: str = "") -> Property:
    """Make a FIXED property that accepts only true."""
    return fixed((True,), here, key)


def never(here: str, key: str = "") -> Property:
    """Make a FIXED property that accepts only false."""
    return fixed((False,), here, key)


def refused(here: str) -> Property:
    return Property(Outcome.REFUSED, here)


def snake_case(name: str) -> str:
    """Return ActiveMQ's name as a key: journal_max_file_length for journalMaxFileLength."""
    name = re.sub("JMS|LFRU|LFU|SQL|XA|GC|DB|DLQ", lambda found: found[0].capitalize(), name.rpartition(".")[2])
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


_EXPECTED: Final = {bool: "true or false", int: "a whole number", str: "text"}


def read_as(kind: type[bool] | type[int] | type[str], value: object) -> bool | int | str:
    """Return a value as this kind, also from text. ValueError names the expected form."""
    try:
        read: bool | int | str = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(_EXPECTED[kind]) from error
    return read
