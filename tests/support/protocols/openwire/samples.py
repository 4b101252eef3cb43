"""Random commands of all types, from the table of the format."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

from tandemmq.broker.protocols.openwire.schema import (
    ActiveMQBlobMessage,
    Command,
    ConsumerInfo,
    SubscriptionInfo,
    WireMessage,
)
from tandemmq.broker.protocols.openwire.types import DESCRIPTIONS, Description, Field, Kind, StackFrame, Throwable

COMMANDS = [row for row in DESCRIPTIONS.values() if issubclass(row.cls, Command)]

TEXTS = ["", "a", "ID:host-1:1", "a\0\u00e9\u20ac\U0001f600", "x" * 300]
BLOBS = [b"", b"\0", b"\xff" * 40]


def signed(dice: random.Random, bits: int) -> int:
    limit = 1 << bits - 1
    value = dice.choice(
        (0, 1, -1, 0xFFFF, 0x10000, 0xFFFFFFFF, 1 << 32, limit - 1, -limit, dice.randrange(-limit, limit))
    )
    return value if -limit <= value < limit else 0


def throwable(dice: random.Random) -> Throwable:
    frames = [StackFrame("a.B", dice.choice(TEXTS), None, signed(dice, 32)) for _ in range(dice.randrange(3))]
    return Throwable(
        "java.io.IOException", dice.choice(TEXTS), tuple(frames), throwable(dice) if dice.random() < 0.3 else None
    )


PLAIN: dict[Kind, Callable[[random.Random], Any]] = {
    Kind.BOOL: lambda dice: dice.random() < 0.5,
    Kind.BYTE: lambda dice: signed(dice, 8),
    Kind.INT: lambda dice: signed(dice, 32),
    Kind.LONG: lambda dice: signed(dice, 64),
    Kind.STRING: lambda dice: dice.choice([None, *TEXTS]),
    Kind.NAME: lambda dice: dice.choice(TEXTS[1:]),  # Java refuses a destination without a name
    Kind.CONNECTION: lambda dice: dice.choice(TEXTS),
    Kind.BYTES: lambda dice: dice.choice([None, *BLOBS]),
    Kind.OCTETS: lambda dice: dice.choice(BLOBS),
    Kind.MAGIC: lambda dice: b"ActiveMQ",
    Kind.THROWABLE: lambda dice: throwable(dice) if dice.random() < 0.7 else None,
}


def value(dice: random.Random, field: Field, version: int, depth: int) -> Any:
    if field.kind in PLAIN:
        return PLAIN[field.kind](dice)
    if dice.random() < 0.2:
        return None
    if field.kind is Kind.ARRAY:
        return tuple(nested(dice, field, version, depth) for _ in range(dice.randrange(4)))
    return nested(dice, field, version, depth)


def nested(dice: random.Random, field: Field, version: int, depth: int) -> Any:
    rows = [row for row in DESCRIPTIONS.values() if row.since <= version and issubclass(row.cls, field.classes)]
    row = dice.choice(rows)
    if depth > 3 and is_dataclass(row.cls):
        return None
    return structure(dice, row, version, depth + 1)


def structure(dice: random.Random, row: Description, version: int, depth: int = 0) -> Any:
    """Return a value with random fields of this version; all others have their defaults."""
    made = row.make(**{field.name: value(dice, field, version, depth) for field in row.fields_in(version)})
    # Values that Java itself would change.
    if isinstance(made, WireMessage):
        made.priority %= 10
        if isinstance(made, ActiveMQBlobMessage):
            made.mime_type = made.mime_type or "text/plain"
    elif isinstance(made, ConsumerInfo):
        made.network_consumer_path = made.network_consumer_path or None
    elif isinstance(made, SubscriptionInfo) and version >= 3:
        made.subscribed_destination = made.subscribed_destination or made.destination
    return made
