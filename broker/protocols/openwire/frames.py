"""OpenWire frames out of a stream of bytes. Pure.

    u4 size, size bytes        (openwire.md 1)

Promises: however the bytes were cut on their way, the same frames come out; a size is judged as soon as its four
bytes are there, before anything is kept for it; what is kept of an unfinished frame is what came of it. Bytes are
copied once, into their frame; only pieces too small to be kept each by itself are gathered before.
"""

from __future__ import annotations

import struct

from tandemmq.broker.protocols.openwire.errors import WireError

# A WireFormatInfo is a few hundred bytes; before one came, no peer is trusted with more.
HANDSHAKE_BYTES_MAX = 0xFFFF

_PIECE_BYTES_MIN = 4096
_SIZE = struct.Struct(">i")
_PREFIX = _SIZE.size


class FrameCutter:
    """Takes bytes as they come, gives whole frames with their sizes.

    ``frame_bytes_max`` limits what a size may say, the size itself not counted; it may be changed between frames.
    """

    __slots__ = ("_chunk", "_gathered", "_pieces", "_position", "_wanted", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = HANDSHAKE_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._chunk = b""  # what came last, used up to _position
        self._position = 0
        self._pieces: list[bytes | bytearray | memoryview] = []  # of the frame under way, before _chunk
        self._gathered = 0  # their length
        self._wanted = _PREFIX  # how long they must become: a size, or a whole frame

    @property
    def pending_bytes(self) -> int:
        """What was fed and not yet given out."""
        return self._gathered + len(self._chunk) - self._position

    def feed(self, data: bytes) -> None:
        """Call ``next_frame`` until it has no more before feeding again."""
        assert self._position == len(self._chunk), "the bytes before were not used up"
        self._chunk = data
        self._position = 0

    def next_frame(self) -> bytes | None:
        """The next whole frame; None until more is fed. Raises WireError for a size that breaks the limit: the end."""
        if self._pieces:
            return self._finish()
        chunk, position = self._chunk, self._position
        left = len(chunk) - position
        if left >= _PREFIX:
            self._wanted = self._checked(*_SIZE.unpack_from(chunk, position))
            if left >= self._wanted:
                self._position = stop = position + self._wanted
                return chunk if self._wanted == len(chunk) else chunk[position:stop]
        else:
            self._wanted = _PREFIX
        self._gather(left)
        return None

    def _finish(self) -> bytes | None:
        """The frame whose beginning is among the pieces."""
        while True:
            left = len(self._chunk) - self._position
            missing = self._wanted - self._gathered
            if left < missing:
                self._gather(left)
                return None
            if self._wanted > _PREFIX:
                break
            self._gather(missing)
            self._wanted = self._checked(*_SIZE.unpack(b"".join(self._pieces)))
        start, self._position = self._position, self._position + missing
        frame = b"".join((*self._pieces, memoryview(self._chunk)[start : self._position]))
        self._pieces.clear()
        self._gathered = 0
        return frame

    def _checked(self, size: int) -> int:
        """The length of a whole frame of this size."""
        if not 1 <= size <= self.frame_bytes_max:
            raise WireError(f"a frame of {size} bytes; 1 to {self.frame_bytes_max} are allowed")
        return _PREFIX + size

    def _gather(self, length: int) -> None:
        """Moves the next bytes of the chunk to the pieces."""
        if not length:
            return
        start, self._position = self._position, self._position + length
        piece = memoryview(self._chunk)[start : self._position]
        self._gathered += length
        last = self._pieces[-1] if self._pieces else None
        if length >= _PIECE_BYTES_MIN:
            self._pieces.append(piece)
        elif type(last) is bytearray and len(last) < _PIECE_BYTES_MIN:
            last += piece
        else:
            self._pieces.append(bytearray(piece))
