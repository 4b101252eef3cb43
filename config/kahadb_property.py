"""One of ActiveMQ's settings of a store, and what may become of it here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError


class Outcome(Enum):
    """What becomes of a property; the values are those of the documentation."""

    ACCEPTED = "accepted"
    MAPPED = "mapped"
    FIXED = "fixed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Property:
    """One of ActiveMQ's settings. ``here`` says what it does here, or why it does not and what to set instead.

    ``key`` is ours: the setting by which it is given. For MAPPED, ``target`` is the setting as which it is read, with
    the value that ``convert`` makes of it. For FIXED, ``values`` are those that are taken, first the one that is shown.
    """

    name: str
    default: str
    outcome: Outcome
    here: str
    key: str
    target: str = ""
    convert: Callable[[Any], Any] = field(default=lambda value: value)
    values: tuple[bool | int | str, ...] = ()


def snake_case(name: str) -> str:
    """ActiveMQ's name as a key: journalMaxFileLength is journal_max_file_length."""
    name = name.rpartition(".")[2].replace("JMS", "Jms").replace("LFRU", "Lfru").replace("LFU", "Lfu")
    name = name.replace("SQL", "Sql").replace("XAT", "XaT").replace("NoGC", "NoGc").replace("DB", "Db")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def is_true(value: object) -> bool:
    """A boolean, also as text. ValueError says what was expected."""
    return bool(read_as(bool, value))


_EXPECTED: Final = {bool: "true or false", int: "a whole number", str: "text"}


def read_as(kind: type[bool] | type[int] | type[str], value: object) -> bool | int | str:
    """A value of a kind, also as text. ValueError says what was expected."""
    try:
        read: bool | int | str = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(_EXPECTED[kind]) from error
    return read
