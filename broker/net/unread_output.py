"""Output of a connection that its peer has not read yet. Long pieces of it may be shared with other connections.

A long piece stays in memory until its last byte is passed to the kernel. It is counted until then, once for all
connections that write it (``Memory.share``). Pieces are tracked only while the peer reads too slowly, so a peer that
reads costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tandemmq.broker.core.memory import Holder

# Minimum length of a piece that is counted as shared.
PIECE_BYTES_MIN = 64 * 1024


class UnreadOutput:
    """Unread output of one connection. ``holder`` counts its memory. ``waiting``: bytes of deliveries that wait in the
    session."""

    __slots__ = ("_holder", "_lengths", "_pieces", "_shared", "_written", "waiting")

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self.waiting = 0
        # Long pieces, each with the value of ``_written`` at its end, its length, and the object that it is a part of.
        # ``_written`` is valid only while there are such pieces.
        self._pieces: deque[tuple[int, int, bytes]] = deque()
        self._lengths: dict[int, int] = {}  # of the pieces of each object, by its address
        self._shared = 0  # bytes of the long pieces, or of their objects if these have more
        self._written = 0

    def write(self, pieces: Iterable[bytes | memoryview], unread: int) -> None:
        """Note that ``pieces`` are written while ``unread`` bytes wait. Call ``note`` afterwards."""
        memory = self._holder.memory
        if not self._pieces:
            self._written = unread
        for piece in pieces:
            self._written += len(piece)
            whole = piece.obj if isinstance(piece, memoryview) else piece
            if len(piece) >= PIECE_BYTES_MIN and type(whole) is bytes:
                self._pieces.append((self._written, len(piece), whole))
                if id(whole) not in self._lengths:
                    memory.share(whole)
                self._count(whole, len(piece))

    def skip(self, count: int) -> None:
        """Note that ``count`` bytes without long pieces were written to a peer that reads too slowly."""
        self._written += count

    def note(self, unread: int, *, is_behind: bool) -> None:
        """Note that ``unread`` bytes wait. ``is_behind``: the peer reads too slowly."""
        memory = self._holder.memory
        read = self._written - unread
        while self._pieces and (not is_behind or self._pieces[0][0] <= read):
            _, length, whole = self._pieces.popleft()
            self._count(whole, -length)
            if id(whole) not in self._lengths:
                memory.give_share(whole)
        self._holder.set_output(max(unread, self._shared) + self.waiting, self._shared)

    def _count(self, whole: bytes, more: int) -> None:
        """Count more or fewer bytes of pieces of an object. It stays in memory until the last of them is read."""
        before = self._lengths.get(id(whole), 0)
        length = before + more
        self._shared += (max(length, len(whole)) if length else 0) - (max(before, len(whole)) if before else 0)
        if length:
            self._lengths[id(whole)] = length
        else:
            del self._lengths[id(whole)]
