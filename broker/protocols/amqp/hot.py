"""Fast codec for common forms of the composite types that each message has, without the table of schema.py. Pure.

    transfer      00 53 14 c0 size count  handle delivery-id delivery-tag message-format settled more ...
    disposition   00 53 15 c0 size count  role first last settled accepted ...
    flow          00 53 13 c0 size count  next-incoming-id incoming-window next-outgoing-id outgoing-window handle ...
    header        00 53 70 c0 size count  durable priority ttl first-acquirer delivery-count
    properties    00 53 73 c0 size count  message-id user-id to subject reply-to correlation-id ...

Promise: each result equals that of ``codec.py``. Each function that reads returns None for an uncommon form and for
damaged bytes; then codec.py reads them or reports the error.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from tandemmq.broker.protocols.amqp.schema import ACCEPTED, Disposition, Flow, Header, Properties, Transfer
from tandemmq.broker.protocols.amqp.types import EMPTY_LIST, Timestamp

_TRANSFER: Final = b"\0\x53\x14\xc0"
_DISPOSITION: Final = b"\0\x53\x15\xc0"
_FLOW: Final = b"\0\x53\x13\xc0"
#: The third byte of such a frame.
TRANSFER_CODE: Final = 0x14
DISPOSITION_CODE: Final = 0x15
_NUMBERS: Final = 8  # the first fields of a flow
_NONE: Final = -1  # null in place of a number
_NO_DISPOSITION: Final = (-1, 0, 0, 0)
_START: Final = 6  # offset of the first field, after size and count
_NULL: Final = 0x40
_TRUE: Final = 0x41
_FALSE: Final = 0x42
_ZERO: Final = 0x43
_SMALL: Final = 0x52
_UINT: Final = 0x70
_UBYTE: Final = 0x50
_TIME: Final = 0x83
_BINARY: Final = 0xA0
_TEXT: Final = 0xA1
_SYMBOL: Final = 0xA3
_LIST: Final = 0xC0
_ACCEPTED_STATES: Final = (b"\0\x53\x24\x45", b"\0\x53\x24\xc0\x01\0")
_TAG_BYTES_MAX: Final = 32


def _flag(code: int) -> int:
    """Return 1 for true, 0 for false and null, -1 for anything else."""
    if code == _TRUE:
        return 1
    return 0 if code in (_FALSE, _NULL) else -1


def _uint(data: bytes, at: int) -> int:
    """Return the uint at this offset; -1 if there is none."""
    code = data[at]
    if code == _SMALL:
        return data[at + 1]
    if code == _ZERO:
        return 0
    if code == _UINT:
        return data[at + 1] << 24 | data[at + 2] << 16 | data[at + 3] << 8 | data[at + 4]
    return -1


def _after(data: bytes, at: int) -> int:
    """Return the offset after the uint at this offset."""
    code = data[at]
    return at + (2 if code == _SMALL else 5 if code == _UINT else 1)


def read_whole(data: bytes) -> tuple[int, int, bool, int]:
    """Return handle, delivery id, ``settled`` and the offset of the payload of a transfer that is a whole delivery of
    message-format 0 without a state. The handle is -1 for any other frame."""
    try:
        if data.startswith(_TRANSFER) and data[5] <= 6:
            stop = _START - 1 + data[4]
            handle = _uint(data, _START)
            at = _after(data, _START)
            delivery_id = _uint(data, at)
            at = _after(data, at)
            size = data[at + 1]
            has_tag = data[at] == _BINARY and size <= _TAG_BYTES_MAX
            at += 2 + size
            is_usual = has_tag and data[at] == _ZERO and delivery_id >= 0
            fields = data[5]
            settled = _flag(data[at + 1]) if fields > 4 else 0
            more = _flag(data[at + 2]) if fields > 5 else 0
            is_complete = fields >= 4 and at + fields - 3 == stop <= len(data)
            if is_usual and is_complete and settled >= 0 and not more:
                return handle, delivery_id, settled == 1, stop
    except IndexError:
        pass
    return -1, 0, False, 0


def read_transfer(data: bytes) -> tuple[Transfer, int] | None:
    """Return the first transfer of a delivery, without a state, and the offset of its payload."""
    if not data.startswith(_TRANSFER):
        return None
    try:
        stop = _START - 1 + data[4]
        fields = data[5]
        if fields < 4 or stop > len(data):
            return None
        handle = _uint(data, _START)
        at = _after(data, _START)
        delivery_id = _uint(data, at)
        at = _after(data, at)
        size = data[at + 1]
        if handle < 0 or delivery_id < 0 or data[at] != _BINARY or size > _TAG_BYTES_MAX:
            return None
        tag = data[at + 2 : at + 2 + size]
        at += 2 + size
        message_format = _uint(data, at)
        at = _after(data, at)
        settled = _NULL
        more = resume = aborted = batchable = 0
        if fields > 4:  # Proton omits the nulls at the end
            settled = data[at]
            at += 1
        if fields > 5:
            more = _flag(data[at])
            at += 1
        if (fields > 6 and data[at] != _NULL) or (fields > 7 and data[at + 1] != _NULL):
            return None  # it has a settle mode or a state
        at += min(max(fields - 6, 0), 2)
        if fields > 8:
            resume = _flag(data[at])
            at += 1
        if fields > 9:
            aborted = _flag(data[at])
            at += 1
        if fields > 10:
            batchable = _flag(data[at])
            at += 1
    except IndexError:
        return None
    if message_format < 0 or _flag(settled) < 0 or more < 0 or resume or aborted or batchable < 0:
        return None
    if at != stop or fields > 11:
        return None
    found = Transfer(
        handle, delivery_id, tag, message_format, None if settled == _NULL else settled == _TRUE, more == 1
    )
    found.batchable = batchable == 1
    return found, at


def read_disposition(data: bytes) -> Disposition | None:
    """Return a disposition of a receiver with the outcome accepted."""
    first, last, settled, batchable = read_accepted(data)
    if first < 0:
        return None
    return Disposition(True, first, None if last < 0 else last, settled == 1, ACCEPTED, batchable == 1)


def read_accepted(data: bytes) -> tuple[int, int, int, int]:
    """Return ``first``, ``last`` (-1: null), ``settled`` and ``batchable`` of a disposition of a receiver with the
    outcome accepted. ``first`` is -1 for any other frame."""
    if not data.startswith(_DISPOSITION):
        return _NO_DISPOSITION
    try:
        stop = _START - 1 + data[4]
        if stop != len(data) or not 5 <= data[5] <= 6 or data[_START] != _TRUE:
            return _NO_DISPOSITION
        first = _uint(data, _START + 1)
        last = _NONE
        at = _after(data, _START + 1)
        if data[at] == _NULL:
            at += 1
        else:
            last = _uint(data, at)
            if last < 0:
                return _NO_DISPOSITION
            at = _after(data, at)
        settled = _flag(data[at])
        if first < 0 or settled < 0:
            return _NO_DISPOSITION
        at += 1
        state = _ACCEPTED_STATES[0] if data[at + 3] == _ACCEPTED_STATES[0][3] else _ACCEPTED_STATES[1]
        if not data.startswith(state, at):
            return _NO_DISPOSITION
        at += len(state)
        batchable = 0
        if data[5] == 6:
            batchable = _flag(data[at])
            at += 1
    except IndexError:
        return _NO_DISPOSITION
    return (first, last, settled, batchable) if at == stop and batchable >= 0 else _NO_DISPOSITION


def read_flow(data: bytes) -> Flow | None:
    """Return a flow without properties."""
    if not data.startswith(_FLOW):
        return None
    numbers = [_NONE] * _NUMBERS
    drain = echo = 0
    try:
        stop = _START - 1 + data[4]
        fields = data[5]
        if stop != len(data) or not 4 <= fields <= 10:
            return None
        at = _START
        for place in range(min(fields, _NUMBERS)):
            if data[at] == _NULL:
                at += 1
                continue
            number = _uint(data, at)
            if number < 0:
                return None
            numbers[place] = number
            at = _after(data, at)
        if fields > 8:
            drain = _flag(data[at])
            at += 1
        if fields > 9:
            echo = _flag(data[at])
            at += 1
    except IndexError:
        return None
    next_incoming, incoming_window, next_outgoing, outgoing_window, handle, delivered, credit, available = numbers
    if at != stop or drain < 0 or echo < 0 or min(incoming_window, next_outgoing, outgoing_window) < 0:
        return None
    return Flow(
        next_incoming_id=None if next_incoming < 0 else next_incoming,
        incoming_window=incoming_window,
        next_outgoing_id=next_outgoing,
        outgoing_window=outgoing_window,
        handle=None if handle < 0 else handle,
        delivery_count=None if delivered < 0 else delivered,
        link_credit=None if credit < 0 else credit,
        available=None if available < 0 else available,
        drain=drain == 1,
        echo=echo == 1,
    )


# ---- sections of a message: ``data`` is the described list

_UINTS: Final = bytes((_ZERO, _SMALL, _UINT))
_HEADER: Final = b"\0\x53\x70\xc0"
_NO_DELIVERIES: Final = bytes((_NULL, _ZERO))
_SMALL_ULONG: Final = 0x53
_BEFORE_ANNOTATIONS: Final = 0x71  # highest code of a section before the message annotations
_DEFAULT_PRIORITY: Final = 4
_PRIORITY_MAX: Final = 9
# For each field of the properties, the constructors of its common forms.
_USUAL: Final = (
    bytes((_TEXT,)), bytes((_BINARY,)), *[bytes((_TEXT,))] * 4, *[bytes((_SYMBOL,))] * 2, *[bytes((_TIME,))] * 2,
    bytes((_TEXT,)), _UINTS, bytes((_TEXT,)),
)  # fmt: skip


def read_header(data: bytes) -> Header | None:
    """Return the header."""
    try:
        stop = len(data)
        if data[0] == EMPTY_LIST and stop == 1:
            return Header()
        if data[0] != _LIST or 2 + data[1] != stop:
            return None
        left = data[2]
        at = 3
        found = Header()
        if left > 0 and data[at] != _NULL:
            found.durable = data[at] == _TRUE
            if _flag(data[at]) < 0:
                return None
        at += left > 0
        if left > 1:
            if data[at] == _UBYTE:
                found.priority = data[at + 1]
                at += 1
            elif data[at] != _NULL:
                return None
            at += 1
        if left > 2:
            if data[at] != _NULL:
                found.ttl = _uint(data, at)
                if found.ttl < 0:
                    return None
            at = _after(data, at)
        if left > 3:
            if data[at] != _NULL:
                found.first_acquirer = data[at] == _TRUE
                if _flag(data[at]) < 0:
                    return None
            at += 1
        if left > 4:
            if data[at] != _NULL:
                found.delivery_count = _uint(data, at)
                if found.delivery_count < 0:
                    return None
            at = _after(data, at)
    except IndexError:
        return None
    return found if at == stop and left <= 5 else None


def has_header(message: bytes, durable: bool, priority: int) -> bool:
    """Return whether the header of an encoded message has these values, no ttl and no delivery-count. A message without
    a header has the defaults. Delivery annotations must not follow."""
    is_durable, known, at = False, _DEFAULT_PRIORITY, 0
    try:
        if message.startswith(_HEADER):
            at = 5 + message[4]
            fields = message[5]
            place = _START
            if fields > 0:
                is_durable = message[place] == _TRUE
                if _flag(message[place]) < 0:
                    return False
                place += 1
            if fields > 1:
                if message[place] == _UBYTE:
                    known = min(message[place + 1], _PRIORITY_MAX)
                    place += 1
                elif message[place] != _NULL:
                    return False
                place += 1
            if fields > 2 and message[place] != _NULL:
                return False
            place += fields > 2
            if fields > 3 and _flag(message[place]) < 0:
                return False
            place += fields > 3
            if fields > 4 and message[place] not in _NO_DELIVERIES:
                return False
            place += fields > 4
            if place != at or fields > 5:
                return False
        if message[at] or message[at + 1] != _SMALL_ULONG or message[at + 2] <= _BEFORE_ANNOTATIONS:
            return False
    except IndexError:
        return False
    return is_durable is durable and known == priority


def read_properties(data: bytes) -> Properties | None:
    """Return the properties."""
    values: list[Any] = []
    try:
        stop = len(data)
        if data[0] == EMPTY_LIST and stop == 1:
            return Properties()
        if data[0] != _LIST or 2 + data[1] != stop or data[2] > len(_USUAL):
            return None
        count = data[2]
        at = 3
        for usual in _USUAL[:count]:
            code = data[at]
            if code == _NULL:
                values.append(None)
                at += 1
            elif code not in usual:
                return None
            elif code >= _BINARY:
                start = at + 2
                at = start + data[at + 1]
                content = data[start:at]
                values.append(content if code == _BINARY else content.decode("ascii" if code == _SYMBOL else "utf-8"))
            elif code == _TIME:
                values.append(Timestamp(int.from_bytes(data[at + 1 : at + 9], "big", signed=True)))
                at += 9
            else:
                values.append(_uint(data, at))
                at = _after(data, at)
    except (IndexError, UnicodeDecodeError):
        return None
    return Properties(*values) if at == stop else None


# ---- writing

_FRAME: Final = struct.Struct(">IBBH4sBB")  # head of a frame, and start of its performative
_TRANSFER_FRAME: Final = struct.Struct(">IBBH4sBBBIBIBBQBB")
_DISPOSITION_FIELDS: Final = struct.Struct(">BBIBIB4s")
#: Number of bytes that ``transfer_head`` returns.
TRANSFER_HEAD_BYTES: Final = 36
_TRANSFER_LIST_BYTES: Final = 23  # of its fields, and their number


def transfer_head(channel: int, handle: int, delivery_id: int, tag: int, settled: bool, payload_bytes: int) -> bytes:
    """Return the bytes before the payload of a frame with a complete delivery of message-format 0. ``tag``: a number
    of 64 bits."""
    return _TRANSFER_FRAME.pack(
        TRANSFER_HEAD_BYTES + payload_bytes, 2, 0, channel, _TRANSFER, _TRANSFER_LIST_BYTES, 5, _UINT, handle, _UINT,
        delivery_id, _BINARY, 8, tag, _ZERO, _TRUE if settled else _FALSE,
    )  # fmt: skip


def accepted(channel: int, first: int, last: int) -> bytes:
    """Return the frame that settles deliveries from the client as accepted."""
    size = _DISPOSITION_FIELDS.size
    head = _FRAME.pack(_FRAME.size + size, 2, 0, channel, _DISPOSITION, size + 1, 5)
    return head + _DISPOSITION_FIELDS.pack(_TRUE, _UINT, first, _UINT, last, _TRUE, _ACCEPTED_STATES[0])
