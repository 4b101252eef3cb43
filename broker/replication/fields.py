"""Permitted JSON values from a peer or a file: every number, text and list has a bound. Pure.

A check takes the parsed value and returns it in the form that the code uses (lists as tuples), or raises FieldError.
Messages and promises declare their fields with the types below; ``checks_of`` returns the checks of such a dataclass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from tandemmq.broker.replication.quorum import Founding, Lineage, Position, Voters, is_lineage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Check = Callable[[Any], Any]

NUMBER_MAX: Final = (1 << 63) - 1
FILE_MAX: Final = (1 << 31) - 1  # KahaDB's numbers of files are int
TEXT_CHARACTERS_MAX: Final = 1_024
NODE_CHARACTERS_MAX: Final = 255  # a host name is not longer; seven voters fit into a promise
REASON_CHARACTERS_MAX: Final = 4_096
VOTERS_MAX: Final = 99
ID_BYTES: Final = 16


class FieldError(ValueError):
    """A value is invalid. The message names it."""


def parse_object(data: bytes | memoryview) -> dict[str, Any]:
    """Parse a JSON object in UTF-8; raises FieldError for anything else."""
    try:
        parsed = _decode_json(str(data, "utf-8"))
    except RecursionError:
        raise FieldError("is nested too deeply") from None
    except ValueError as error:
        raise FieldError(f"is not JSON: {error}") from None
    found: dict[str, Any] = mapping(parsed)
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


_decode_json: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


def valid_if(is_valid: Callable[[Any], bool], otherwise: str) -> Check:
    """Return a check for values for which ``is_valid`` is true. ``otherwise``: the end of the error's sentence."""

    def check(value: Any) -> Any:
        if is_valid(value):
            return value
        raise FieldError(f"{_short(value)} is {otherwise}")

    return check


def number_from(least: int, most: int, what: str) -> Check:
    return valid_if(lambda value: type(value) is int and least <= value <= most, f"not a {what}")


number: Final = number_from(0, NUMBER_MAX, "number from 0 to 2^63 - 1")
signed: Final = number_from(-NUMBER_MAX, NUMBER_MAX, "number of 64 bits")
file_number: Final = number_from(0, FILE_MAX, "number of a file")
boolean: Final = valid_if(lambda value: type(value) is bool, "neither true nor false")
mapping: Final = valid_if(lambda value: isinstance(value, dict), "not an object")


def text_up_to(characters_max: int) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise FieldError(f"{_short(value)} is not a text")
        if len(value) > characters_max:
            raise FieldError(f"a text of {len(value)} characters; at most {characters_max} are allowed")
        if not is_text(value):
            raise FieldError(f"{_short(value)} has half of a surrogate pair")
        return value

    return check


text: Final = text_up_to(TEXT_CHARACTERS_MAX)
node: Final = text_up_to(NODE_CHARACTERS_MAX)  # the display name of a member
reason: Final = text_up_to(REASON_CHARACTERS_MAX)


def is_text(value: str) -> bool:
    """Return whether the text can be encoded in UTF-8: JSON can hold half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def hex_of(count: int) -> Check:
    """Return a check for ``count`` bytes in lower-case hexadecimal digits: the only spelling, so ids can be compared as
    texts."""
    is_hex = re.compile(rf"[0-9a-f]{{{2 * count}}}").fullmatch
    otherwise = f"not {count} bytes in hexadecimal digits"
    return valid_if(lambda value: isinstance(value, str) and is_hex(value) is not None, otherwise)


identity: Final = hex_of(ID_BYTES)


def one_of(*words: str) -> Check:
    return valid_if(lambda value: isinstance(value, str) and value in words, f"not one of {', '.join(words)}")


def or_null(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def list_of(check: Check) -> Check:
    def checked(value: Any) -> tuple[Any, ...]:
        if isinstance(value, list):
            return tuple(map(check, value))
        raise FieldError(f"{_short(value)} is not a list")

    return checked


def row_of(*checks: Check) -> Check:
    """Return a check for a list with one value for each of ``checks``."""

    def checked(value: Any) -> tuple[Any, ...]:
        if isinstance(value, list) and len(value) == len(checks):
            return tuple(check(part) for check, part in zip(checks, value, strict=True))
        raise FieldError(f"{_short(value)} is not a list of {len(checks)}")

    return checked


_place = row_of(number, file_number, number)


def position(value: Any) -> Position:
    return Position(*_place(value))


def lineage(value: Any) -> Lineage:
    entries: Lineage = list_of(_place)(value)
    if is_lineage(entries):
        return entries
    raise FieldError(f"{_short(value)} does not ascend")


def voters(ids: Any, names: Any) -> Voters:
    """Check the two keys that name the voters in headers, promises and messages."""
    stores: tuple[str, ...] = list_of(identity)(ids)
    if not 0 < len(stores) <= VOTERS_MAX:
        raise FieldError(f"{len(stores)} voters; from 1 to {VOTERS_MAX} are allowed")
    if len(set(stores)) < len(stores):
        raise FieldError(f"{_short(ids)} names a voter twice")
    by_store = mapping(names)
    if len(by_store) > VOTERS_MAX:
        raise FieldError(f"{len(by_store)} names; at most {VOTERS_MAX} are allowed")
    return Voters(stores, {identity(store): node(name) for store, name in by_store.items()})


def founding(value: Any) -> Founding:
    content = mapping(value)
    missing = {"set", "voters", "names"} - content.keys()
    if missing:
        raise FieldError(f"a founding without {', '.join(sorted(missing))}")
    return Founding(identity(content["set"]), voters(content["voters"], content["names"]))


def as_json(value: object) -> Mapping[str, Any]:
    """Return a value of a field in a form that JSON has. For the argument ``default`` of ``json``."""
    assert isinstance(value, Founding), f"{type(value).__name__} has no place in a message"
    return {"set": value.set, "voters": list(value.voters.ids), "names": dict(value.voters.names)}


def _short(value: Any) -> str:
    return repr(value)[:60]


# ---- types of fields

Number = Annotated[int, number]
Signed = Annotated[int, signed]
FileNumber = Annotated[int, file_number]
Text = Annotated[str, text]
NodeName = Annotated[str, node]
Reason = Annotated[str, reason]
Identity = Annotated[str, identity]
Ascending = Annotated[Lineage, lineage]

_BY_CLASS: Final[Mapping[Any, Check]] = {bool: boolean, Mapping: mapping, Position: position, Founding: founding}


def checks_of(kind: type[DataclassInstance]) -> dict[str, Check]:
    """Return the check of each field of a dataclass that is compared, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _check_of(hints[field.name]) for field in fields(kind) if field.compare}


def _check_of(hint: Any) -> Check:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        check: Check = args[1]
        return check
    if origin is Literal:
        return one_of(*args)
    if origin is tuple:
        return list_of(_check_of(args[0])) if args[-1] is ... else row_of(*map(_check_of, args))
    if NoneType in args:
        return or_null(_check_of(args[0]))
    return _BY_CLASS[origin or hint]
