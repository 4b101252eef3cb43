"""Terms of OpenWire's table: kinds of fields, versions, and structures that are not commands.

A structure is described once, by its class: the order of the fields is the order on the wire, and each annotation
defines the encoding of the field (openwire.md 4.1, 4.2) and the versions that have it::

    @structure(6)
    class ProducerInfo(Command):
        producer_id: Cached[ProducerId] = None
        window_size: Annotated[Int, Since(3)] = 0

Names are OpenWire's. Fields of a superclass come first. Transactions' ids and destinations are the store's values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from inspect import get_annotations
from types import SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ForwardRef,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from tandemmq.store.records import loose
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId

VERSION_MAX = 12

T = TypeVar("T")


class Kind(Enum):
    """Form of a field on the wire."""

    BOOL = "bool"
    BYTE = "byte"
    INT = "int"
    LONG = "long"
    STRING = "string"  # null or at most 64 KiB of modified UTF-8
    NAME = "name"  # a string that must be there
    BYTES = "bytes"  # null or bytes
    OCTETS = "octets"  # bytes; null reads as none
    MAGIC = "magic"  # the eight bytes that say ActiveMQ
    CONNECTION = "connection"  # a ConnectionId as cached object, of which only the text is kept
    NESTED = "nested"
    CACHED = "cached"
    ARRAY = "array"
    THROWABLE = "throwable"


class Since(NamedTuple):
    """First version that has the field."""

    version: int


class Until(NamedTuple):
    """Last version that has the field."""

    version: int


Bool = Annotated[bool, Kind.BOOL]
Byte = Annotated[int, Kind.BYTE]
Int = Annotated[int, Kind.INT]
Long = Annotated[int, Kind.LONG]
Text = Annotated[str | None, Kind.STRING]
Name = Annotated[str, Kind.NAME]
Bytes = Annotated[bytes | None, Kind.BYTES]
Nested = Annotated[T | None, Kind.NESTED]
Cached = Annotated[T | None, Kind.CACHED]
Array = Annotated[tuple[T | None, ...] | None, Kind.ARRAY]


class Field(NamedTuple):
    """Field of a structure. ``classes``: types of the object in a nested or cached field or an array."""

    name: str
    kind: Kind
    since: int = 1
    until: int = VERSION_MAX
    classes: tuple[type, ...] = ()


class Description(NamedTuple):
    """Form of a class on the wire: the structure's number, its first version, its fields in the order of the wire.

    ``make`` takes the fields by name.
    """

    number: int
    name: str
    since: int
    fields: tuple[Field, ...]
    make: Callable[..., Any]
    cls: type

    def fields_in(self, version: int) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.since <= version <= field.until)


# data type -> description; complete once schema.py is imported
DESCRIPTIONS: dict[int, Description] = {}
# class -> data type, for all but destinations, whose kind is the type
NUMBERS: dict[type, int] = {}


def wire(number: int, since: int = 1, *, has_base: bool = True) -> Callable[[type[T]], type[T]]:
    """Register a structure's class. ``has_base``: the fields of the superclasses travel too."""

    def register(cls: type[T]) -> type[T]:
        found: dict[str, Field] = {}
        for each in reversed(cls.__mro__) if has_base else (cls,):
            found |= _own_fields(each)
        DESCRIPTIONS[number] = Description(number, cls.__name__, since, tuple(found.values()), cls, cls)
        NUMBERS[cls] = number
        return cls

    return register


@dataclass_transform()
def structure(number: int, since: int = 1, *, has_base: bool = True) -> Callable[[type[T]], type[T]]:
    """Register a class as ``wire`` does, and make it a dataclass with slots."""
    register = wire(number, since, has_base=has_base)
    return lambda cls: register(_dataclass(cls))


def _dataclass(cls: type[T]) -> type[T]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # dataclass would write the signature, which takes long
    return dataclass(slots=True)(cls)


@cache
def _own_fields(cls: type) -> dict[str, Field]:
    """Return the fields that a class itself defines."""
    hints = get_annotations(cls)
    texts = {name: hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint for name, hint in hints.items()}
    # A start waits for this: each annotation is evaluated once, however many fields have it.
    new = SimpleNamespace(__annotations__={text: text for text in texts.values() if text not in _EVALUATED})
    _EVALUATED.update(get_type_hints(new, vars(sys.modules[cls.__module__]), {cls.__name__: cls}, include_extras=True))
    return {name: _field(name, _EVALUATED[text]) for name, text in texts.items()}


_EVALUATED: dict[str, Any] = {}


def _field(name: str, hint: Any) -> Field:
    """Return the field that an annotation describes."""
    inner, *marks = get_args(hint)
    since, until, kind = 1, VERSION_MAX, None
    for mark in marks:
        if isinstance(mark, Since):
            since = mark.version
        elif isinstance(mark, Until):
            until = mark.version
        else:
            kind = mark
    assert kind is not None, f"field {name} has no wire type"
    has_objects = kind in (Kind.NESTED, Kind.CACHED, Kind.ARRAY)
    return Field(name, kind, since, until, tuple(_classes(inner)) if has_objects else ())


def _classes(hint: Any) -> list[type]:
    """Return the classes named anywhere in ``A | B | None`` or ``tuple[A | None, ...] | None``."""
    if get_origin(hint) in (Union, UnionType, tuple):
        return [found for part in get_args(hint) for found in _classes(part)]
    return [hint] if isinstance(hint, type) and hint is not type(None) else []


# ---- identifiers


@wire(loose.CONNECTION_ID)
class ConnectionId(NamedTuple):
    value: Name


@wire(loose.BROKER_ID)
class BrokerId(NamedTuple):
    value: Name


@wire(loose.SESSION_ID)
class SessionId(NamedTuple):
    connection_id: Name
    value: Long

    def __str__(self) -> str:
        return f"{self.connection_id}:{self.value}"


@wire(loose.CONSUMER_ID)
class ConsumerId(NamedTuple):
    connection_id: Name
    session_id: Long
    value: Long

    def __str__(self) -> str:
        return f"{self.connection_id}:{self.session_id}:{self.value}"


@wire(loose.PRODUCER_ID)
class ProducerId(NamedTuple):
    connection_id: Name
    value: Long  # before the session's, other than in a ConsumerId
    session_id: Long

    def __str__(self) -> str:
        return f"{self.connection_id}:{self.session_id}:{self.value}"


@wire(loose.MESSAGE_ID)
class MessageId(NamedTuple):
    """``text_view`` is set for ids that came from elsewhere; then there may be no producer."""

    text_view: Annotated[Text, Since(10)] = None
    producer_id: Cached[ProducerId] = None
    producer_sequence_id: Long = 0
    broker_sequence_id: Long = 0

    @property
    def key(self) -> str | None:
        """Return the ``message_id`` of a stored message with this id; None for an id without content."""
        if self.producer_id is not None:
            return f"{self.producer_id}:{self.producer_sequence_id}"
        return None if self.text_view is None else loose.producer_key(self.text_view)


# ---- the store's own values


def _destination(kind: DestinationKind) -> Callable[..., Destination]:
    return lambda name: Destination(kind, name)


for _kind, _title in (
    (DestinationKind.QUEUE, "ActiveMQQueue"),
    (DestinationKind.TOPIC, "ActiveMQTopic"),
    (DestinationKind.TEMP_QUEUE, "ActiveMQTempQueue"),
    (DestinationKind.TEMP_TOPIC, "ActiveMQTempTopic"),
):
    _number = loose.DESTINATION_BASE + _kind
    DESCRIPTIONS[_number] = Description(
        _number, _title, 1, (Field("name", Kind.NAME),), _destination(_kind), Destination
    )

DESCRIPTIONS[loose.LOCAL_TRANSACTION_ID] = Description(
    loose.LOCAL_TRANSACTION_ID,
    "LocalTransactionId",
    1,
    (Field("value", Kind.LONG), Field("connection_id", Kind.CONNECTION)),
    LocalTransactionId,
    LocalTransactionId,
)
DESCRIPTIONS[loose.XA_TRANSACTION_ID] = Description(
    loose.XA_TRANSACTION_ID,
    "XATransactionId",
    1,
    (Field("format_id", Kind.INT), Field("global_id", Kind.OCTETS), Field("branch", Kind.OCTETS)),
    XaTransactionId,
    XaTransactionId,
)
NUMBERS[LocalTransactionId] = loose.LOCAL_TRANSACTION_ID
NUMBERS[XaTransactionId] = loose.XA_TRANSACTION_ID


def number_of(value: object) -> int | None:
    """Return the data type of a value; None if OpenWire has no structure for it."""
    if type(value) is Destination:
        return loose.DESTINATION_BASE + value.kind
    return NUMBERS.get(type(value))


# ---- exceptions


class StackFrame(NamedTuple):
    class_name: str | None
    method: str | None
    file: str | None
    line: int


@dataclass(slots=True, frozen=True)
class Throwable:
    """Java exception by the name of its class. ``stack`` and ``cause`` travel only where both sides want them."""

    class_name: str | None
    message: str | None
    stack: tuple[StackFrame, ...] = ()
    cause: Throwable | None = None


Thrown = Annotated[Throwable | None, Kind.THROWABLE]
