"""Messages that a client sends: the broker stores them, or refuses them. Pure.

A message must belong to a producer of its connection; ``producers``: these producers by full id.

If a message exceeds the maximum frame length, only its head is read, with the fields that its refusal needs:

    i4 size, u1 data type, i4 command id, bool response required, object producer id, object destination,
    object transaction id, ...

That is the loose encoding, in all versions.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Final, NamedTuple

from tandemmq.broker.core.commands import ClientError, ErrorKind, ProtocolFailure, Receipt, Send, refusal
from tandemmq.broker.protocols.openwire.codec import message_of
from tandemmq.broker.protocols.openwire.conversation import Producer
from tandemmq.broker.protocols.openwire.errors import FrameTooLong, WireError
from tandemmq.broker.protocols.openwire.types import ProducerId
from tandemmq.store.records import loose
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.frames import OpenedMessage, accept_frame
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.properties import has_at_most
from tandemmq.store.records.utf import SURROGATE_LEAD

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


# A message id must fit into one value of the store's index.
_ID_BYTES_MAX: Final = 1000
_ID_SHOWN_MAX: Final = 200

# Limits of the properties of a client's message: number of values, also those inside lists and maps; bytes; and
# characters that Java writes as two. Decoding properties at these limits takes about 20 ms. The limits do not apply to
# messages that are read from the store.
PROPERTIES_MAX: Final = 10_000
PROPERTIES_BYTES_MAX: Final = 16 * 1024 * 1024
PAIRS_MAX: Final = 25_000

# Message.getSize: a message counts in the window of its producer with this many bytes, plus content and properties.
MESSAGE_SIZE_MIN: Final = 1024


class Window(NamedTuple):
    """Receipt of a message for which the producer does not wait, but which counts in its window
    (ProducerInfo.windowSize)."""

    producer_id: ProducerId
    size: int


def send_of(frame: bytes | BytesIO, sequence: int, now: int, producers: dict[str, Producer]) -> Send | ProtocolFailure:
    """Return the command for a message in the store's form, which came at ``now`` (milliseconds since 1970);
    ``sequence`` is the broker's number for it; ``frame`` as ``accept_frame`` takes it. Raises RecordDamaged."""
    accepted = accept_frame(frame, sequence, now)
    message, producer_id = accepted.message, accepted.producer_id
    transaction = None if accepted.transaction is None else accepted.transaction.key
    producer = None if producer_id is None else producers.get(producer_id)
    id = message.message_id
    is_own = id.rpartition(":")[0] == producer_id
    if producer is None or not is_own or len(id) > _ID_BYTES_MAX or not (id.isascii() or _is_kept(id)):
        if producer is None:
            reason = f"its producer {str(producer_id)[:_ID_SHOWN_MAX]} had not been registered"
        elif not is_own:
            reason = f"its id is not one of its producer {str(producer_id)[:_ID_SHOWN_MAX]}"
        else:
            reason = f"its id has more than {_ID_BYTES_MAX} bytes, or is not valid Unicode"
        error = ClientError(
            f"Cannot send message {id[:_ID_SHOWN_MAX]!r}: {reason}",
            is_fatal=False,
            receipt=accepted.command_id if accepted.is_response_required else None,
        )
        return ProtocolFailure(error, transaction)
    receipt: Receipt | None = None
    if accepted.is_response_required:
        receipt = accepted.command_id
    elif producer.has_window:
        receipt = Window(producer.id, MESSAGE_SIZE_MIN + _content_bytes(message))
    # prove: properties-of-a-message-are-bounded "_excess(message)" -> "None"
    if message.size > PROPERTIES_MAX and message.may_have_properties and (excess := _excess(message)) is not None:
        refused = refusal(
            f"Message {id} has {excess} in its properties",
            "Values of lists and maps count, too. Send a map as a MapMessage, and a long text as a TextMessage.",
            ErrorKind.RESOURCE,
            receipt=receipt,
        )
        return ProtocolFailure(refused, transaction)
    return Send(message, transaction, receipt)


def refusal_of(error: FrameTooLong, producers: dict[str, Producer]) -> ProtocolFailure:
    """Return the refusal of a message that is longer than a frame may be; its transaction is refused, too. The
    connection stays open: a Java client checks the size only in tight encoding, and with a failover transport it would
    reconnect and send the message again without end. Raises WireError if the frame is not a message."""
    head = read_head(error.head)
    producer = None if head.producer_id is None else producers.get(head.producer_id)
    receipt: Receipt | None = None
    if head.is_response_required:
        receipt = head.command_id
    elif producer is not None and producer.has_window:
        # At least the size that the producer counts, otherwise its window would stay closed. The whole frame is an
        # upper bound of content and properties.
        receipt = Window(producer.id, MESSAGE_SIZE_MIN + error.size)
    refused = refusal(
        f"A message of {error.size} bytes is too long: the maximum is {error.limit}",
        "The maximum is wireFormat.maxFrameSize of the connector.",
        ErrorKind.RESOURCE,
        receipt=receipt,
    )
    return ProtocolFailure(refused, head.transaction)


def _excess(message: Message) -> str | None:
    """Return the limit that its properties exceed; None: they exceed none."""
    assert isinstance(message, OpenedMessage), "an accepted message has its frame"
    size = message.properties_bytes
    if size <= PROPERTIES_MAX:
        return None  # each value takes a byte at least
    if size > PROPERTIES_BYTES_MAX:
        return f"{size} bytes (the maximum is {PROPERTIES_BYTES_MAX})"
    marshalled = message.marshalled_properties
    if marshalled.count(SURROGATE_LEAD) > 2 * PAIRS_MAX:
        return f"more than {PAIRS_MAX} characters beyond U+FFFF"
    try:
        return None if has_at_most(marshalled, PROPERTIES_MAX) else f"more than {PROPERTIES_MAX} values"
    except (RecordDamaged, IndexError, struct.error):
        return None  # the decoder of the properties will report it


def _is_kept(id: str) -> bool:
    """Return whether the store can write ``id``: a Java string may have single surrogates."""
    try:
        return len(id.encode()) <= _ID_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _content_bytes(message: Message) -> int:
    """Return the number of bytes of content and properties in the frame. The producer counts the same."""
    assert message.raw is not None, "an accepted message has its frame"
    wire_message = message_of(message.raw)
    return len(wire_message.content or b"") + len(wire_message.marshalled_properties or b"")
