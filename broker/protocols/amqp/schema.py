"""Composite types of AMQP 1.0: the table that the codec interprets (AMQP 1.0, parts 2, 3, 4 and 5).

Each class is a row of the table; its annotations are the columns: the kind of each field, in the order of the list on
the wire. A field without a default is mandatory; an absent field has its default. ``codec.py`` reads and writes the
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass
from enum import Enum, auto
from typing import Annotated, Any, Final, TypeVar, get_type_hints

from tandemmq.broker.protocols.amqp.types import Described, Symbol

UINT_MAX: Final = 0xFFFFFFFF
SESSION_END: Final = Symbol("session-end")
NEVER: Final = Symbol("never")


class Kind(Enum):
    """Kind of value that a field holds."""

    BOOLEAN = auto()
    UBYTE = auto()
    USHORT = auto()
    UINT = auto()
    ULONG = auto()
    TIMESTAMP = auto()
    STRING = auto()
    SYMBOL = auto()
    SYMBOLS = auto()  # none, one, or an array
    BINARY = auto()
    MAP = auto()
    ADDRESS = auto()  # any type; strings are used
    COMPOSITE = auto()  # a described list


Boolean = Annotated[bool, Kind.BOOLEAN]
MaybeBoolean = Annotated[bool | None, Kind.BOOLEAN]
UByte = Annotated[int, Kind.UBYTE]
UShort = Annotated[int, Kind.USHORT]
MaybeUShort = Annotated[int | None, Kind.USHORT]
UInt = Annotated[int, Kind.UINT]
MaybeUInt = Annotated[int | None, Kind.UINT]
MaybeULong = Annotated[int | None, Kind.ULONG]
MaybeTimestamp = Annotated[int | None, Kind.TIMESTAMP]
String = Annotated[str, Kind.STRING]
MaybeString = Annotated[str | None, Kind.STRING]
Name = Annotated[str, Kind.SYMBOL]
MaybeName = Annotated[str | None, Kind.SYMBOL]
Names = Annotated[tuple[str, ...], Kind.SYMBOLS]
Binary = Annotated[bytes, Kind.BINARY]
MaybeBinary = Annotated[bytes | None, Kind.BINARY]
Map = Annotated[dict[Any, Any] | None, Kind.MAP]
Anything = Annotated[Any, Kind.ADDRESS]
Composed = Annotated[Any, Kind.COMPOSITE]


@dataclass(frozen=True, slots=True)
class Field:
    """Column of a row: name, kind, default, and whether the field is mandatory."""

    name: str
    kind: Kind
    is_mandatory: bool
    default: Any


class Composite:
    """Base of all rows."""

    __slots__ = ()


ROWS: Final[dict[int, type[Composite]]] = {}
CODES: Final[dict[type[Composite], int]] = {}
BY_NAME: Final[dict[str, int]] = {}
Row = TypeVar("Row", bound=type[Composite])


def composite(code: int, name: str) -> Callable[[Row], Row]:
    """Add a class to the table, with its descriptor."""
    return lambda row: _enter(row, code, name)


def _enter(row: Row, code: int, name: str) -> Row:
    ROWS[code] = row
    CODES[row] = code
    BY_NAME[f"amqp:{name}:list"] = code
    return row


def fields_of(row: type[Composite]) -> tuple[Field, ...]:
    """Return the columns of a row, in the order of the wire."""
    hints = get_type_hints(row, include_extras=True)
    found = []
    for each in row.__dataclass_fields__.values():  # type: ignore[attr-defined]
        is_mandatory = each.default is MISSING
        kind = hints[each.name].__metadata__[0]
        found.append(Field(each.name, kind, is_mandatory, None if is_mandatory else each.default))
    return tuple(found)


# ---- connection, session, link (part 2)


@composite(0x10, "open")
@dataclass(slots=True)
class Open(Composite):
    container_id: String
    hostname: MaybeString = None
    max_frame_size: UInt = UINT_MAX
    channel_max: UShort = 0xFFFF
    idle_time_out: MaybeUInt = None
    outgoing_locales: Names = ()
    incoming_locales: Names = ()
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Map = None


@composite(0x11, "begin")
@dataclass(slots=True, kw_only=True)
class Begin(Composite):
    remote_channel: MaybeUShort = None
    next_outgoing_id: UInt
    incoming_window: UInt
    outgoing_window: UInt
    handle_max: UInt = UINT_MAX
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Map = None


@composite(0x12, "attach")
@dataclass(slots=True, kw_only=True)
class Attach(Composite):
    """``role``: False for a sender, True for a receiver."""

    name: String
    handle: UInt
    role: Boolean
    snd_settle_mode: UByte = 2
    rcv_settle_mode: UByte = 0
    source: Composed = None
    target: Composed = None
    unsettled: Map = None
    incomplete_unsettled: Boolean = False
    initial_delivery_count: MaybeUInt = None
    max_message_size: MaybeULong = None
    offered_capabilities: Names = ()
    desired_capabilities: Names = ()
    properties: Map = None


@composite(0x13, "flow")
@dataclass(slots=True, kw_only=True)
class Flow(Composite):
    next_incoming_id: MaybeUInt = None
    incoming_window: UInt
    next_outgoing_id: UInt
    outgoing_window: UInt
    handle: MaybeUInt = None
    delivery_count: MaybeUInt = None
    link_credit: MaybeUInt = None
    available: MaybeUInt = None
    drain: Boolean = False
    echo: Boolean = False
    properties: Map = None


@composite(0x14, "transfer")
@dataclass(slots=True)
class Transfer(Composite):
    handle: UInt
    delivery_id: MaybeUInt = None
    delivery_tag: MaybeBinary = None
    message_format: MaybeUInt = None
    settled: MaybeBoolean = None
    more: Boolean = False
    rcv_settle_mode: Annotated[int | None, Kind.UBYTE] = None
    state: Composed = None
    resume: Boolean = False
    aborted: Boolean = False
    batchable: Boolean = False


@composite(0x15, "disposition")
@dataclass(slots=True)
class Disposition(Composite):
    role: Boolean
    first: UInt
    last: MaybeUInt = None
    settled: Boolean = False
    state: Composed = None
    batchable: Boolean = False


@composite(0x16, "detach")
@dataclass(slots=True)
class Detach(Composite):
    handle: UInt
    closed: Boolean = False
    error: Composed = None


@composite(0x17, "end")
@dataclass(slots=True)
class End(Composite):
    error: Composed = None


@composite(0x18, "close")
@dataclass(slots=True)
class Close(Composite):
    error: Composed = None


@composite(0x1D, "error")
@dataclass(slots=True)
class Error(Composite):
    condition: Name
    description: MaybeString = None
    info: Map = None


# ---- outcomes and termini (part 3)


@composite(0x23, "received")
@dataclass(slots=True)
class Received(Composite):
    section_number: UInt
    section_offset: Annotated[int, Kind.ULONG]


@composite(0x24, "accepted")
@dataclass(slots=True)
class Accepted(Composite):
    pass


ACCEPTED: Final = Accepted()


@composite(0x25, "rejected")
@dataclass(slots=True)
class Rejected(Composite):
    error: Composed = None


@composite(0x26, "released")
@dataclass(slots=True)
class Released(Composite):
    pass


@composite(0x27, "modified")
@dataclass(slots=True)
class Modified(Composite):
    delivery_failed: Boolean = False
    undeliverable_here: Boolean = False
    message_annotations: Map = None


@composite(0x28, "source")
@dataclass(slots=True, kw_only=True)
class Source(Composite):
    """Source of a link. ``durable``: 0 none, 1 configuration, 2 unsettled state."""

    address: Anything = None
    durable: UInt = 0
    expiry_policy: Name = SESSION_END
    timeout: UInt = 0
    dynamic: Boolean = False
    dynamic_node_properties: Map = None
    distribution_mode: MaybeName = None
    filter: Map = None
    default_outcome: Composed = None
    outcomes: Names = ()
    capabilities: Names = ()


@composite(0x29, "target")
@dataclass(slots=True, kw_only=True)
class Target(Composite):
    address: Anything = None
    durable: UInt = 0
    expiry_policy: Name = SESSION_END
    timeout: UInt = 0
    dynamic: Boolean = False
    dynamic_node_properties: Map = None
    capabilities: Names = ()


@composite(0x70, "header")
@dataclass(slots=True)
class Header(Composite):
    durable: MaybeBoolean = None
    priority: Annotated[int | None, Kind.UBYTE] = None
    ttl: MaybeUInt = None
    first_acquirer: MaybeBoolean = None
    delivery_count: MaybeUInt = None


@composite(0x73, "properties")
@dataclass(slots=True)
class Properties(Composite):
    message_id: Anything = None
    user_id: MaybeBinary = None
    to: Anything = None
    subject: MaybeString = None
    reply_to: Anything = None
    correlation_id: Anything = None
    content_type: MaybeName = None
    content_encoding: MaybeName = None
    absolute_expiry_time: MaybeTimestamp = None
    creation_time: MaybeTimestamp = None
    group_id: MaybeString = None
    group_sequence: MaybeUInt = None
    reply_to_group_id: MaybeString = None


# ---- transactions (part 4)


@composite(0x30, "coordinator")
@dataclass(slots=True)
class Coordinator(Composite):
    capabilities: Names = ()


@composite(0x31, "declare")
@dataclass(slots=True)
class Declare(Composite):
    global_id: Anything = None


@composite(0x32, "discharge")
@dataclass(slots=True)
class Discharge(Composite):
    """``fail``: roll back."""

    txn_id: Binary
    fail: Boolean = False


@composite(0x33, "declared")
@dataclass(slots=True)
class Declared(Composite):
    txn_id: Binary


@composite(0x34, "transactional-state")
@dataclass(slots=True)
class TransactionalState(Composite):
    txn_id: Binary
    outcome: Composed = None


# ---- SASL (part 5)


@composite(0x40, "sasl-mechanisms")
@dataclass(slots=True)
class SaslMechanisms(Composite):
    sasl_server_mechanisms: Names


@composite(0x41, "sasl-init")
@dataclass(slots=True)
class SaslInit(Composite):
    mechanism: Name
    initial_response: MaybeBinary = None
    hostname: MaybeString = None

    def __repr__(self) -> str:
        """Leave out the response, which contains the password."""
        return f"SaslInit({self.mechanism})"


@composite(0x44, "sasl-outcome")
@dataclass(slots=True)
class SaslOutcome(Composite):
    code: UByte
    additional_data: MaybeBinary = None


def described_name(descriptor: Any) -> str:
    """Return the text of a descriptor for an error."""
    if isinstance(descriptor, Described):
        return "a descriptor that is described"
    return f"0x{descriptor:x}" if isinstance(descriptor, int) else repr(descriptor)[:60]
