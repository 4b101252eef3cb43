"""OpenWire frames out of a stream of bytes. Pure.

    u4 size, size bytes        (openwire.md 1)

Promises: however the bytes were cut on their way, the same frames come out; a size is judged as soon as its four
bytes are there, before anything is kept for it; what is kept of an unfinished frame is what came of it, and of one that
is too long its head. Bytes are copied once, into their frame; only pieces too small to be kept each by itself are
gathered before.
"""

from __future__ import annotations

import struct

from tandemmq.broker.protocols.openwire.errors import FrameTooLong, WireError

# A WireFormatInfo is a few hundred bytes; before one came, no peer is trusted with more.
HANDSHAKE_BYTES_MAX = 0xFFFF
# Of a frame that is too long: of a message, its producer, destination and transaction stand in less.
HEAD_BYTES_MAX = 8 * 1024

_PIECE_BYTES_MIN = 4096
_SIZE = struct.Struct(">i")
_PREFIX = _SIZE.size


class FrameCutter:
    """Takes bytes as they come, gives whole frames with their sizes.

    ``frame_bytes_max`` limits what a size may say, the size itself not counted; it may be changed between frames.
    ``chunk``: what was fed last; empty once it was used up. ``passes_over``: a frame beyond the limit is refused alone,
    and those behind it come out.
    """

    __slots__ = ("_gathered", "_left", "_pieces", "_position", "_wanted", "chunk", "frame_bytes_max", "passes_over")

    def __init__(self, frame_bytes_max: int = HANDSHAKE_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.passes_over = False
        self.chunk = b""  # what came last, used up to _position
        self._position = 0
        self._pieces: list[bytes | bytearray | memoryview] = []  # of the frame under way, before chunk
        self._gathered = 0  # their length
        # How long they must become: a size, a whole frame, or the head of one that is too long. 0: that was given.
        self._wanted = _PREFIX
        self._left = -1  # of a frame that is too long, how many bytes follow its head; -1: it is not too long

    @property
    def pending_bytes(self) -> int:
        """What was fed and not yet given out."""
        return self._gathered + len(self.chunk) - self._position

    def feed(self, data: bytes) -> None:
        """Call ``next_frame`` until it has no more before feeding again."""
        assert self._position == len(self.chunk), "the bytes before were not used up"
        self.chunk = data
        self._position = 0

    def next_frame(self) -> bytes | None:
        """The next whole frame; None until more is fed. Raises FrameTooLong for one that is passed over, and WireError
        for a size that breaks the limit: the end."""
        if self._pieces:
            return self._finish()
        chunk, position = self.chunk, self._position
        left = len(chunk) - position
        if left >= _PREFIX:
            (size,) = _SIZE.unpack_from(chunk, position)
            if not 0 < size <= self.frame_bytes_max:
                self._begin_too_long(size)
                self._pieces.append(b"")
                return self._finish()
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
            self._gather(left)
        self.chunk = b""  # as _let_go
        self._position = 0
        return None

    def _finish(self) -> bytes | None:
        """The frame whose beginning is among the pieces."""
        if not self._wanted:
            return self._pass_over()
        while True:
            left = len(self.chunk) - self._position
            missing = self._wanted - self._gathered
            if left < missing:
                self._gather(left)
                return None
            if self._wanted > _PREFIX:
                break
            self._gather(missing)
            (size,) = _SIZE.unpack(b"".join(self._pieces))
            if 0 < size <= self.frame_bytes_max:
                self._wanted = _PREFIX + size
            else:
                self._begin_too_long(size)
        start, self._position = self._position, self._position + missing
        frame = b"".join((*self._pieces, memoryview(self.chunk)[start : self._position]))
        self._pieces.clear()
        self._gathered = 0
        if self._left >= 0:
            self._pieces.append(b"")
            self._wanted = 0
            (size,) = _SIZE.unpack_from(frame)
            raise FrameTooLong(frame, size, self.frame_bytes_max)
        return frame

    def _begin_too_long(self, size: int) -> None:
        """A frame begins that breaks the limit: its head is to be gathered."""
        if size < 1 or not self.passes_over:
            raise WireError(f"a frame of {size} bytes; 1 to {self.frame_bytes_max} are allowed")
        self._wanted = min(_PREFIX + size, HEAD_BYTES_MAX)
        self._left = _PREFIX + size - self._wanted

    def _pass_over(self) -> bytes | None:
        """The rest of a frame that is too long goes as it comes; then the next frame comes out."""
        count = min(self._left, len(self.chunk) - self._position)
        self._position += count
        self._left -= count
        if self._left:
            self._let_go()
            return None
        self._left = -1
        self._wanted = _PREFIX
        self._pieces.clear()
        return self.next_frame()

    def _let_go(self) -> None:
        """The chunk is used up. It may be much longer than what is kept of it, and all that is counted."""
        self.chunk = b""
        self._position = 0

    def _gather(self, length: int) -> None:
        """Moves the next bytes of the chunk to the pieces."""
        if not length:
            return
        start, self._position = self._position, self._position + length
        piece = memoryview(self.chunk)[start : self._position]
        self._gathered += length
        last = self._pieces[-1] if self._pieces else None
        if length >= _PIECE_BYTES_MIN and 2 * length >= len(self.chunk):  # a piece keeps its whole chunk
            self._pieces.append(piece)
        elif type(last) is bytearray and len(last) < _PIECE_BYTES_MIN:
            last += piece
        else:
            self._pieces.append(bytearray(piece))
