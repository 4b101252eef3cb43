"""Frames and protocol headers of AMQP 1.0 (part 2.2 and 2.3). Pure.

    header    'AMQP'  id u8  1 0 0                      id 0: AMQP, 3: SASL
    frame     size u32  doff u8  type u8  channel u16   (doff * 4 - 8) bytes, performative, payload
              size counts the whole frame; type 0: AMQP, 1: SASL; a frame without a body is a heart-beat

Promises: the result does not depend on the pieces in which the bytes arrive. A size is checked when its bytes have
arrived, before memory is used for the frame.
"""

from __future__ import annotations

import struct
from typing import Final

from tandemmq.broker.protocols.amqp.errors import FRAMING_ERROR, AmqpError

AMQP: Final = b"AMQP\0\1\0\0"
SASL: Final = b"AMQP\3\1\0\0"
HEADER_BYTES: Final = 8
OF_AMQP: Final = 0
OF_SASL: Final = 1
# Smallest max-frame-size that a peer may have (MIN-MAX-FRAME-SIZE).
FRAME_BYTES_MIN: Final = 512
# Limit of a frame before the open is read: a login with a token, and the properties of a client, are shorter.
EARLY_FRAME_BYTES_MAX: Final = 16 * 1024
_HEAD: Final = struct.Struct(">IBBH")
FRAME_HEAD_BYTES: Final = 8
_WORD: Final = 4
EMPTY: Final = _HEAD.pack(8, 2, OF_AMQP, 0)


class Frame:
    """A frame: ``body`` is the performative and its payload, ``size`` the length of the whole frame."""

    __slots__ = ("body", "channel", "size", "type")

    def __init__(self, type: int, channel: int, body: bytes, size: int) -> None:
        self.type = type
        self.channel = channel
        self.body = body
        self.size = size


class FrameCutter:
    """Divides received bytes into frames. ``frame_bytes_max`` may be changed between frames."""

    __slots__ = ("_buffer", "_later", "_start", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = EARLY_FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._buffer = b""
        self._start = 0  # offset of the first byte that was not returned
        # Bytes after the buffer. They are joined when they complete a frame, so that many short pieces are not copied
        # again and again.
        self._later = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that were fed and not yet returned."""
        return len(self._buffer) - self._start + len(self._later)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        left = len(self._buffer) - self._start
        if self._later or len(data) < left:
            self._later += data
            return
        self._buffer = self._buffer[self._start :] + data if left else data
        self._start = 0

    def _join(self) -> bytes:
        """Append the later bytes to the buffer and return it. It begins with the first byte that was not returned."""
        self._buffer = joined = b"".join((self._buffer[self._start :], self._later))
        self._start = 0
        self._later = bytearray()
        return joined

    def header(self) -> bytes | None:
        """Return the next 8 bytes, a protocol header; None if more bytes are needed."""
        if self.pending_bytes < HEADER_BYTES:
            return None
        if len(self._buffer) - self._start < HEADER_BYTES:
            self._join()
        begin = self._start
        self._start = begin + HEADER_BYTES
        return self._buffer[begin : begin + HEADER_BYTES]

    def next_frame(self) -> Frame | None:
        """Return the next complete frame; None if more bytes are needed. Raises AmqpError, after which the connection
        must end."""
        buffer = self._buffer
        begin = self._start
        available = len(buffer) - begin
        if available < FRAME_HEAD_BYTES:
            if available + len(self._later) < FRAME_HEAD_BYTES:
                self._wait()
                return None
            buffer = self._join()
            begin = 0
            available = len(buffer)
        # The head is read in place: a Struct would make a tuple.
        size = buffer[begin] << 24 | buffer[begin + 1] << 16 | buffer[begin + 2] << 8 | buffer[begin + 3]
        offset = buffer[begin + 4]
        type = buffer[begin + 5]
        start = offset * _WORD
        if size > self.frame_bytes_max:
            raise AmqpError(FRAMING_ERROR, f"a frame has {size} bytes, and {self.frame_bytes_max} are allowed")
        if size < FRAME_HEAD_BYTES or start < FRAME_HEAD_BYTES or start > size or type > OF_SASL:
            raise AmqpError(FRAMING_ERROR, f"a frame has size {size}, data offset {offset} and type {type}")
        if available < size:
            if available + len(self._later) < size:
                self._wait()
                return None
            buffer = self._join()
            begin = 0
        stop = begin + size
        self._start = stop
        return Frame(type, buffer[begin + 6] << 8 | buffer[begin + 7], buffer[begin + start : stop], size)

    def _wait(self) -> None:
        """Keep only the bytes that were not returned."""
        if self._start:
            self._buffer = self._buffer[self._start :]
            self._start = 0

    def put_back(self, frame: Frame) -> None:
        """Return the last frame again in the next call of ``next_frame``. Call this before ``feed``."""
        self._start -= frame.size


def frame_of(channel: int, body: bytes, type: int = OF_AMQP) -> bytes:
    """Return a whole frame."""
    return _HEAD.pack(_HEAD.size + len(body), 2, type, channel) + body


def head_of(channel: int, body_bytes: int) -> bytes:
    """Return the head of an AMQP frame with a body of this length."""
    return _HEAD.pack(_HEAD.size + body_bytes, 2, OF_AMQP, channel)
