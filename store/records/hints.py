"""Hints after a framed command, inside its record: ActiveMQ ignores those bytes and writes none. Pure.

    01  order key 12 bytes, old location 8 bytes     this Update is a copy: the message keeps its place in the order
    02  old location 8 bytes                         this Add or Remove is the copy of an operation that is prepared
    03  name, UTF-8                                  this durable subscription belongs to the user of that name
    04  length u16, name, UTF-8                      the bytes of this Add or Update are charged to this user

Hint 04 comes before the others. ``store.records.commands`` reads and writes it, as a part of the command.

Hints count only in files that begin with a header of ours (store.records.headers). A replay without them, ActiveMQ's,
finds the same messages; only their order may differ.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemmq.store.records.commands import sender_end, trailing

COPY = 1
OPERATION = 2
USER = 3
_COPY_BYTES = 21
_OPERATION_BYTES = 9


class CopyHint(NamedTuple):
    """The message took effect at ``order_key``, and its record was at ``old_location``."""

    order_key: int
    old_location: int


class OperationHint(NamedTuple):
    """The operation of a prepared transaction was at ``old_location``."""

    old_location: int


class UserHint(NamedTuple):
    """The subscription belongs to the user of that name."""

    user: str


Hint = CopyHint | OperationHint | UserHint


def with_copy_hint(payload: bytes, order_key: int, old_location: int) -> bytes:
    """Return ``payload``, an Update, with its hint."""
    return b"".join((payload, b"\1", order_key.to_bytes(12, "big"), old_location.to_bytes(8, "big")))


def with_operation_hint(payload: bytes, old_location: int) -> bytes:
    """Return ``payload``, an Add or Remove with a transaction, with its hint."""
    return b"".join((payload, b"\2", old_location.to_bytes(8, "big")))


def with_user_hint(payload: bytes, user: str | None) -> bytes:
    """Return ``payload``, the record of a durable subscription, with its user; None: no user yet."""
    return payload if user is None else b"".join((payload, b"\3", user.encode("utf-8", "surrogatepass")))


def user_in(payload: bytes) -> str | None:
    """Return the user of the durable subscription with this record, or None."""
    hint = hint_of(payload)
    return hint.user if isinstance(hint, UserHint) else None


def hint_of(payload: bytes) -> Hint | None:
    """Return the hint of a record's payload, beside the sender, or None if it has no known one."""
    rest = trailing(payload)
    rest = rest[sender_end(rest) :]
    if not rest:
        return None
    if rest[0] == COPY and len(rest) == _COPY_BYTES:
        return CopyHint(int.from_bytes(rest[1:13], "big"), int.from_bytes(rest[13:], "big"))
    if rest[0] == OPERATION and len(rest) == _OPERATION_BYTES:
        return OperationHint(int.from_bytes(rest[1:], "big"))
    if rest[0] == USER:
        try:
            return UserHint(rest[1:].decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            return None
    return None
