"""Frames of a WebSocket (RFC 6455, 5): bytes of a client in, payload out; and output of a session as messages. Pure.

    | fin, rsv, opcode u8 | mask bit, length u7 | length u16 or u64 | mask 4 bytes, a client's | payload |

The payload of data messages is one stream of bytes: nothing waits here for the end of a message, so a message of any
length takes no memory, and a frame of STOMP or MQTT may be split over messages or joined with others.

Output of STOMP: each frame is one message, as in ActiveMQ, because some clients accept no other form. It is a text
message if it is UTF-8. MQTT: output of one turn is one message (MQTT 5, 6.0: packets need not be aligned with them);
AMQP likewise.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
_CONTINUATION: Final = 0x0
_FIN: Final = 0x80
_RSV: Final = 0x70
_MASKED: Final = 0x80
# Payload of a control frame (5.5).
CONTROL_BYTES_MAX: Final = 125
# Lengths up to these are written in one byte, and in two more bytes; longer ones in eight more.
_ONE_BYTE_MAX, _TWO_BYTES_MAX = 125, 0xFFFF
# A longer body that is not ASCII is sent as binary without a check: that takes a millisecond a megabyte.
TEXT_BYTES_MAX: Final = 8 << 20
# Bytes that are checked at once, without a copy of the whole.
_SLICE_BYTES: Final = 256 * 1024

Parts = Sequence[bytes | memoryview]
Cut = Callable[[Parts], list[bytes | memoryview]]


class CloseCode(IntEnum):
    """Reason why a WebSocket ends (7.4.1)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    NO_CODE = 1005  # never on the wire
    INVALID_PAYLOAD = 1007
    MESSAGE_TOO_BIG = 1009


class WebSocketError(Exception):
    """Violation of the protocol or a limit by the peer: the WebSocket is failed (7.1.7) with ``code`` and
    ``reason``."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class FrameParser:
    """Parser of one client's frames: ``feed`` each piece, then ``read`` until it returns False, and ``take`` the
    payload.

    ``message_bytes_max``: of one message, over all its frames. ``accepts_text``: MQTT is binary.
    """

    __slots__ = (
        "_accepts_text",
        "_data",
        "_decoder",
        "_is_final",
        "_is_mid_character",
        "_is_text",
        "_left",
        "_mask",
        "_message_bytes",
        "_message_bytes_max",
        "_offset",
        "_payload",
        "closed",
        "ping",
    )

    def __init__(self, message_bytes_max: int, *, accepts_text: bool) -> None:
        self._message_bytes_max = message_bytes_max
        self._accepts_text = accepts_text
        self._data = b""
        self._offset = 0
        self._payload: list[bytes] = []
        # For the data frame that is being read: number of bytes to come, and the mask, rotated to the first of them.
        self._left = 0
        self._mask = b""
        self._is_final = True
        # Length of the open message; -1: no message is open.
        self._message_bytes = -1
        self._is_text = False
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_mid_character = False
        # The payload of the last ping that has no answer yet: older ones need none (5.5.3).
        self.ping: bytes | None = None
        # The code of the peer's Close; it sends nothing after that.
        self.closed: int | None = None

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that were fed and not read."""
        return len(self._data) - self._offset

    def feed(self, data: bytes) -> None:
        self._data = self._data[self._offset :] + data if self._data else data
        self._offset = 0

    def take(self) -> bytes:
        """Return the payload of the messages that were read since the last call."""
        payload, self._payload = self._payload, []
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def read(self, frames_max: int) -> bool:
        """Read at most ``frames_max`` frames; return whether there is more to read. Raises WebSocketError: the payload
        before the error may still be taken, but do not read any more."""
        data = self._data
        offset = self._offset
        size = len(data)
        for _ in range(frames_max):
            if self.closed is not None:
                offset = size
                break
            if not self._left:
                begin = self._head(data, offset)
                if begin < 0:  # it is incomplete
                    self._data, self._offset = data[offset:], 0
                    return False
                offset = begin
            count = min(self._left, size - offset)
            if count:
                self._read_payload(data[offset : offset + count])
                offset += count
            if self._left:
                break
            if self._message_bytes >= 0 and self._is_final:
                self._end_message()
        has_more = offset < size
        self._data, self._offset = (data, offset) if has_more else (b"", 0)
        return has_more

    def _head(self, data: bytes, offset: int) -> int:
        """Read the head that begins at ``offset``, or a whole control frame, and return the position after it. -1: it
        is incomplete."""
        size = len(data)
        if size - offset < 2:
            return -1
        first, second = data[offset], data[offset + 1]
        opcode = first & 0x0F
        if first & _RSV:
            raise _error("A reserved bit is set without an extension")
        if not second & _MASKED:
            raise _error("A frame of a client must have a mask")
        length = second & 0x7F
        begin = offset + 2
        if length > _ONE_BYTE_MAX:
            layout = _U16 if length == _ONE_BYTE_MAX + 1 else _U64
            if size - begin < layout.size:
                return -1
            (length,) = layout.unpack_from(data, begin)
            begin += layout.size
            if length <= (_ONE_BYTE_MAX if layout is _U16 else _TWO_BYTES_MAX) or length >> 63:
                raise _error("A length must have its shortest form")
        if size - begin < 4:
            return -1
        mask = data[begin : begin + 4]
        begin += 4
        if opcode & 0x8:
            if length > CONTROL_BYTES_MAX or not first & _FIN:
                raise _error("A control frame must be short and not fragmented")
            if size - begin < length:
                return -1
            self._control(opcode, unmasked(data[begin : begin + length], mask))
            return begin + length
        self._begin_frame(opcode, length, is_final=bool(first & _FIN))
        self._mask = mask
        return begin

    def _begin_frame(self, opcode: int, length: int, *, is_final: bool) -> None:
        if opcode == _CONTINUATION:
            if self._message_bytes < 0:
                raise _error("A continuation frame needs an incomplete message before it")
        elif opcode not in (TEXT, BINARY):
            raise _error(f"There is no opcode {opcode}")
        elif self._message_bytes >= 0:
            raise _error("A message must end before the next one begins")
        elif opcode == TEXT and not self._accepts_text:
            raise WebSocketError(CloseCode.UNSUPPORTED_DATA, "Only binary messages are accepted")
        else:
            self._message_bytes = 0
            self._is_text = opcode == TEXT
        self._message_bytes += length
        if self._message_bytes > self._message_bytes_max:
            raise WebSocketError(
                CloseCode.MESSAGE_TOO_BIG, f"A message must have at most {self._message_bytes_max} bytes"
            )
        self._left = length
        self._is_final = is_final

    def _read_payload(self, masked: bytes) -> None:
        self._left -= len(masked)
        payload = unmasked(masked, self._mask)
        turned = len(masked) % 4
        self._mask = self._mask[turned:] + self._mask[:turned]
        if self._is_text and (self._is_mid_character or not payload.isascii()):
            self._check_text(payload, is_final=False)
            self._is_mid_character = bool(self._decoder.getstate()[0])
        self._payload.append(payload)

    def _end_message(self) -> None:
        if self._is_mid_character:
            self._check_text(b"", is_final=True)
        self._message_bytes = -1

    def _check_text(self, payload: bytes, *, is_final: bool) -> None:
        try:
            self._decoder.decode(payload, is_final)
            return
        except UnicodeDecodeError:
            pass  # not raised from here: as the context, this error would keep the parser and its frames in memory
        raise WebSocketError(CloseCode.INVALID_PAYLOAD, "A text message must be UTF-8")

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.ping = payload
        elif opcode == CLOSE:
            self.closed = _close_code(payload)
        elif opcode != PONG:
            raise _error(f"There is no opcode {opcode}")


_U16: Final = struct.Struct(">H")
_U64: Final = struct.Struct(">Q")


def _error(reason: str) -> WebSocketError:
    return WebSocketError(CloseCode.PROTOCOL_ERROR, reason)


def _close_code(payload: bytes) -> int:
    """Return the code of a Close (5.5.1, 7.4); its reason is not kept."""
    if not payload:
        return CloseCode.NO_CODE
    if len(payload) < 2:
        raise _error("A close code must have two bytes")
    (code,) = _U16.unpack_from(payload)
    if not (code in _CODES or 3000 <= code <= 4999):
        raise _error(f"{code} is not a valid close code")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise WebSocketError(CloseCode.INVALID_PAYLOAD, "A close reason must be UTF-8") from None
    return int(code)


# Those that may be sent (7.4.1, and IANA's registry).
_CODES: Final = frozenset((1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014))


def unmasked(payload: bytes, mask: bytes) -> bytes:
    """Apply a mask to ``payload``: this masks plain bytes, and unmasks masked ones (5.3). The bytes are one number for
    this, which is 20 times as fast as byte by byte."""
    size = len(payload)
    if not size or mask == b"\0\0\0\0":
        return payload
    key = mask * (size // 4) + mask[: size % 4]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def head(opcode: int, length: int) -> bytes:
    """Return the head of a frame with ``length`` bytes, which is one message of the broker."""
    if length <= _ONE_BYTE_MAX:
        return bytes((_FIN | opcode, length))
    if length <= _TWO_BYTES_MAX:
        return _HEAD_16.pack(_FIN | opcode, _ONE_BYTE_MAX + 1, length)
    return _HEAD_64.pack(_FIN | opcode, _ONE_BYTE_MAX + 2, length)


_HEAD_16: Final = struct.Struct(">BBH")
_HEAD_64: Final = struct.Struct(">BBQ")


def close_frame(code: int, reason: str = "") -> bytes:
    """Return a Close frame of the broker. A long reason is cut."""
    if code == CloseCode.NO_CODE:
        return head(CLOSE, 0)
    text = reason.encode()[: CONTROL_BYTES_MAX - 2].decode(errors="ignore").encode()
    return head(CLOSE, 2 + len(text)) + _U16.pack(code) + text


# ---- messages


def binary_messages(parts: Parts) -> list[bytes | memoryview]:
    """Return one message of all output."""
    return [head(BINARY, sum(map(len, parts))), *parts]


def stomp_messages(parts: Parts) -> list[bytes | memoryview]:
    """Return a message for each frame and each heart-beat of a STOMP session's output. The output has whole frames and
    heart-beats. The session sets the length of each body, unless the body has no NUL and is in one piece with its
    head."""
    messages: list[bytes | memoryview] = []
    left = list(reversed(parts))
    while left:
        part = left.pop()
        data = part if isinstance(part, bytes) else bytes(part)
        is_ascii = data.isascii()
        size, start = len(data), 0
        while start < size:
            if data[start] == _LF:
                messages += (_HEART_BEAT_HEAD, b"\n")
                start += 1
                continue
            body = data.index(b"\n\n", start) + 2
            length = data.find(_CONTENT_LENGTH, start, body)
            if length >= 0:
                end = body + int(data[length + len(_CONTENT_LENGTH) : data.index(b"\n", length + 1, body)])
            else:
                end = data.index(b"\0", body)
            count = end + _END_BYTES - start
            frame: list[bytes | memoryview] = [data if count == size else data[start : start + count]]
            rest = count - (size - start)
            start += count
            while rest > 0:  # a long body is a separate part, and so is the end after it
                frame.append(left.pop())
                rest -= len(frame[-1])
            assert not rest or start <= size, "the pieces of a frame end with it"
            messages.append(head(TEXT if is_text(frame, is_ascii=is_ascii) else BINARY, count))
            messages += frame
    return messages


_LF: Final = ord("\n")
_HEART_BEAT_HEAD: Final = head(TEXT, 1)
_CONTENT_LENGTH: Final = b"\ncontent-length:"
_END_BYTES: Final = len(b"\0\n")


def is_text(frame: Parts, *, is_ascii: bool) -> bool:
    """Return whether ``frame`` is UTF-8; ``is_ascii``: its first part is known to be ASCII."""
    if is_ascii and len(frame) == 1:
        return True
    checks_all = sum(map(len, frame)) <= TEXT_BYTES_MAX
    decoder = codecs.getincrementaldecoder("utf-8" if checks_all else "ascii")()
    try:
        for part in frame:
            for start in range(0, len(part), _SLICE_BYTES):
                decoder.decode(part[start : start + _SLICE_BYTES])
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True
