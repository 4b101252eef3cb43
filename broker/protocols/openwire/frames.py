"""OpenWire frames out of a stream of bytes. Pure.

    u4 size, size bytes        (openwire.md 1)

Promises: the result does not depend on the pieces in which the bytes arrive. A size is checked as soon as its four
bytes are there, before memory is used for the frame. The received bytes of an incomplete frame are kept; of a frame
that is too long, only its head. Bytes are copied once, into their frame.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Final

from tandemmq.broker.protocols.openwire.errors import FrameTooLong, WireError

# Limit of a frame before the WireFormatInfo, which has a few hundred bytes.
HANDSHAKE_BYTES_MAX: Final = 0xFFFF
# Head of a frame that is too long: a message's producer, destination and transaction take less.
HEAD_BYTES_MAX: Final = 8 * 1024

# A frame that is shorter is always returned as bytes.
GATHERED_BYTES_MIN: Final = 64 * 1024
_SIZE: Final = struct.Struct(">i")
_PREFIX = _SIZE.size


class FrameCutter:
    """Takes bytes as they arrive, and returns complete frames with their sizes. A long frame that arrived in pieces is
    returned as the buffer with these pieces: it can be changed without a copy.

    ``frame_bytes_max`` limits the value of a size, which does not count itself; it may be changed between frames.
    ``chunk``: the bytes that were fed last; empty once it was used up. ``passes_over``: only the frame beyond the limit
    is refused, and the following frames are returned.
    """

    __slots__ = ("_frame", "_gathered", "_left", "_position", "_wanted", "chunk", "frame_bytes_max", "passes_over")

    def __init__(self, frame_bytes_max: int = HANDSHAKE_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.passes_over = False
        self.chunk = b""  # the last bytes, used up to _position
        self._position = 0
        # The beginning of the frame under way, before chunk. It grows in place, and becomes bytes without a copy.
        self._frame: BytesIO | None = None
        self._gathered = 0  # its length
        # Length to gather: a size, a whole frame, or the head of a frame that is too long. 0: the head was reported.
        self._wanted = _PREFIX
        self._left = -1  # number of bytes after the head of a frame that is too long; -1: the frame is not too long

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that were fed and not yet returned."""
        return self._gathered + len(self.chunk) - self._position

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Call ``next_frame`` until it has no more before feeding again."""
        assert self._position == len(self.chunk), "the bytes before were not used up"
        self.chunk = data
        self._position = 0

    def next_frame(self) -> bytes | BytesIO | None:
        """Return the next complete frame; None: more bytes are needed. Raises FrameTooLong for a frame that is passed
        over, and WireError for a size above the limit, after which the connection must end."""
        if self._frame is not None:
            return self._finish(self._frame)
        chunk, position = self.chunk, self._position
        left = len(chunk) - position
        if left >= _PREFIX:
            (size,) = _SIZE.unpack_from(chunk, position)
            if not 0 < size <= self.frame_bytes_max:
                self._begin_too_long(size)
                self._frame = BytesIO()
                return self._finish(self._frame)
            self._wanted = wanted = _PREFIX + size
            if left >= wanted:
                if left == wanted:
                    self.chunk = b""
                    self._position = 0
                    return chunk[position:] if position else chunk
                self._position = stop = position + wanted
                return chunk[position:stop]
        else:
            self._wanted = _PREFIX
        if left:
            self._frame = BytesIO()
            self._gather(self._frame, left)
        self._let_go()
        return None

    def _finish(self, frame: BytesIO) -> bytes | BytesIO | None:
        """Complete ``frame``, which has begun."""
        if not self._wanted:
            return self._pass_over()
        while True:
            left = len(self.chunk) - self._position
            missing = self._wanted - self._gathered
            if left < missing:
                self._gather(frame, left)
                self._let_go()
                return None
            self._gather(frame, missing)
            if self._wanted > _PREFIX:
                break
            (size,) = _SIZE.unpack(frame.getvalue())
            if 0 < size <= self.frame_bytes_max:
                self._wanted = _PREFIX + size
            else:
                self._begin_too_long(size)
        length = self._gathered
        self._gathered = 0
        if self._left >= 0:
            self._wanted = 0
            head = frame.getvalue()
            (size,) = _SIZE.unpack_from(head)
            raise FrameTooLong(head, size, self.frame_bytes_max)
        self._frame = None
        return frame.getvalue() if length < GATHERED_BYTES_MIN else frame

    def _begin_too_long(self, size: int) -> None:
        """Begin a frame that breaks the limit: gather its head."""
        if size < 1 or not self.passes_over:
            raise WireError(f"a frame of {size} bytes; 1 to {self.frame_bytes_max} are allowed")
        self._wanted = min(_PREFIX + size, HEAD_BYTES_MAX)
        self._left = _PREFIX + size - self._wanted

    def _pass_over(self) -> bytes | BytesIO | None:
        """Drop the rest of a frame that is too long as it comes, then return the next frame."""
        count = min(self._left, len(self.chunk) - self._position)
        self._position += count
        self._left -= count
        if self._left:
            self._let_go()
            return None
        self._left = -1
        self._wanted = _PREFIX
        self._frame = None
        return self.next_frame()

    def _let_go(self) -> None:
        """Drop the chunk, which is used up: it may be much longer than the bytes that are kept and counted."""
        self.chunk = b""
        self._position = 0

    def _gather(self, frame: BytesIO, length: int) -> None:
        """Move the next bytes of the chunk to ``frame``."""
        start, self._position = self._position, self._position + length
        frame.write(memoryview(self.chunk)[start : self._position])
        self._gathered += length
