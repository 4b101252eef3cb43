"""Head of a message that exceeds the maximum frame length: the fields that its refusal needs. Pure.

    i4 size, u1 data type, i4 command id, bool response required, object producer id, object destination,
    object transaction id, ...

That is the loose encoding, in all versions.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.store.records import loose
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import BodyKind

_KIND_AT = 4
_COMMAND = struct.Struct(">i?")
_KINDS = frozenset(map(int, BodyKind))


class MessageHead(NamedTuple):
    """``producer_id``: ``<connection>:<session>:<producer>``; ``transaction``: its key. None: there is none."""

    command_id: int
    is_response_required: bool
    producer_id: str | None
    transaction: str | None


def read_head(head: bytes) -> MessageHead:
    """Read the head. Raises WireError for bytes that are not a message, or if these fields do not end within
    ``head``."""
    if head[_KIND_AT] not in _KINDS:
        raise WireError(f"data type {head[_KIND_AT]} is not a message")
    try:
        command_id, is_response_required = _COMMAND.unpack_from(head, loose.FRAME_SIZE)
        position, producer_id = loose.FRAME_SIZE + _COMMAND.size, None
        if head[position]:
            producer_id, position = loose.read_producer_id(head, position)
        else:
            position += 1
        _, position = loose.read_destination(head, position)
        transaction, _ = loose.read_transaction_id(head, position)
    except (IndexError, struct.error, RecordDamaged) as error:
        raise WireError(f"its header is invalid: {error}") from None
    return MessageHead(command_id, is_response_required, producer_id, None if transaction is None else transaction.key)
