"""Hints: bytes after a command, in the same record. ActiveMQ ignores them. Pure.

    01  order key 12 bytes, old location 8 bytes     this Update is a copy; the message keeps its order key
    02  old location 8 bytes                         this Add or Remove is a copy of an operation of a prepared
                                                     transaction
    03  name, UTF-8                                  this durable subscription belongs to this user
    04  length u16, name, UTF-8                      this user is charged for the bytes of this Add or Update

Hint 04 comes before the others; ``store.records.commands`` reads and writes it.

Hints count only in files that begin with a header (store.records.headers). A replay by ActiveMQ, which ignores hints,
finds the same messages, but may find another order.
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
    """Hint of a copied message: its order key, and the location of the record that was copied."""

    order_key: int
    old_location: int


class OperationHint(NamedTuple):
    """Hint of a copied operation of a prepared transaction: the location of the record that was copied."""

    old_location: int


class UserHint(NamedTuple):
    """Hint of a durable subscription: the name of its user."""

    user: str


Hint = CopyHint | OperationHint | UserHint


def with_copy_hint(payload: bytes, order_key: int, old_location: int) -> bytes:
    """Return ``payload``, an Update, with a CopyHint."""
    return b"".join((payload, b"\1", order_key.to_bytes(12, "big"), old_location.to_bytes(8, "big")))


def with_operation_hint(payload: bytes, old_location: int) -> bytes:
    """Return ``payload``, an Add or Remove in a transaction, with an OperationHint."""
    return b"".join((payload, b"\2", old_location.to_bytes(8, "big")))


def with_user_hint(payload: bytes, user: str | None) -> bytes:
    """Return ``payload``, a durable subscription, with a UserHint (None: without)."""
    return payload if user is None else b"".join((payload, b"\3", user.encode("utf-8", "surrogatepass")))


def user_in(payload: bytes) -> str | None:
    """Return the user in the payload of a durable subscription, or None."""
    hint = hint_of(payload)
    return hint.user if isinstance(hint, UserHint) else None


def hint_of(payload: bytes) -> Hint | None:
    """Return the hint in a record's payload, other than the sender, or None if there is no known hint."""
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
