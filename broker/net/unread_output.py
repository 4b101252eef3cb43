"""Bytes that a connection's peer has not read yet, and the long pieces of them, which other peers may get as well.

A long piece stays in memory until the socket has taken the last of it. It counts until then, once for all peers
that get it (``Memory.share``). They are distinguished only while their peer is behind: a peer that reads costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tandemmq.broker.core.memory import Holder

# Shorter ones count with the rest.
PIECE_BYTES_MIN = 64 * 1024


class UnreadOutput:
    """The unread output of one connection; ``holder`` counts it."""

    __slots__ = ("_holder", "_pieces", "_shared", "_written")

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        # Each with how much was written up to its end, by ``_written``, which is kept while there are any.
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._shared = 0  # bytes of them
        self._written = 0

    def write(self, pieces: Iterable[bytes | memoryview], unread: int) -> None:
        """Note that ``pieces`` are written next, where ``unread`` bytes wait; ``note`` gets the number that waits
        then."""
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
        """Note that ``count`` bytes without long pieces were written, to a peer that is behind."""
        self._written += count

    def note(self, unread: int, *, is_behind: bool) -> None:
        """Note that ``unread`` bytes are still to be read. ``is_behind``: the peer reads too slowly."""
        memory = self._holder.memory
        read = self._written - unread
        while self._pieces and (not is_behind or self._pieces[0][0] <= read):
            _, whole = self._pieces.popleft()
            self._shared -= len(whole)
            memory.give_share(whole)
        self._holder.set_output(max(unread, self._shared), self._shared)
