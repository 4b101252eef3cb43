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
    """Unread output of one connection. ``holder`` counts its memory."""

    __slots__ = ("_holder", "_pieces", "_shared", "_written")

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        # Long pieces, each with the value of ``_written`` at its end. ``_written`` is valid only while there are such
        # pieces.
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._shared = 0  # bytes of the long pieces
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
                self._pieces.append((self._written, whole))
                self._shared += len(whole)
                memory.share(whole)

    def skip(self, count: int) -> None:
        """Note that ``count`` bytes without long pieces were written to a peer that reads too slowly."""
        self._written += count

    def note(self, unread: int, *, is_behind: bool) -> None:
        """Note that ``unread`` bytes wait. ``is_behind``: the peer reads too slowly."""
        memory = self._holder.memory
        read = self._written - unread
        while self._pieces and (not is_behind or self._pieces[0][0] <= read):
            _, whole = self._pieces.popleft()
            self._shared -= len(whole)
            memory.give_share(whole)
        self._holder.set_output(max(unread, self._shared), self._shared)
