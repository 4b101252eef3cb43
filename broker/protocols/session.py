"""Seam between sockets and conversations: the session of a protocol, as the transport uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tandemmq.broker.core import delivery
from tandemmq.broker.core.commands import Command

# A session gives so many commands at once, at most, so that others may have their turn between them. It gives what it
# has after so many bytes of frames, because long headers and properties take time.
COMMANDS_MAX = 32
RECEIVED_BYTES_MAX = 1 << 16


class Session(delivery.Session, Protocol):
    """Session of one client: bytes in, commands out; the broker's replies in, bytes out. Pure.

    Replies of the broker (``core.delivery.Session``) pile up until ``take``; ``pending_bytes`` is their length.
    """

    pending_bytes: int
    # Whether ``receive(b"")`` gives more, once the commands given so far were carried out. Until it does not, no other
    # bytes are given, but to a session that wakes itself (``set_wake``): bytes that come before the turn for that
    # comes may be given to it before, and it handles both then.
    has_more: bool
    is_connected: bool
    # Heart-beats, in milliseconds, 0: none. Final once ``is_connected``.
    send_interval_ms: int
    receive_interval_ms: int

    @property
    def unfinished_bytes(self) -> int:
        """Bytes that it holds of a frame that is not whole yet. Read while there are no more commands."""

    @property
    def is_logged_in(self) -> bool:
        """True if the broker has accepted the identity of the client."""

    def receive(self, data: bytes) -> Sequence[Command]:
        """Return the commands in ``data``; never raise. What cannot be understood is a ProtocolFailure, and the last
        command if it is fatal."""

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Set the function that requests a turn: the session calls it when it has commands although nothing was
        received, for a delivery, a receipt or another event on the loop, at any time. It sets ``has_more`` first. Then
        it gets ``receive(b"")`` in a turn soon, as fair as all turns; later, where the engine makes it wait. Another
        call before that, or after the end of the connection, does nothing more."""

    def end(self) -> None:
        """Parse nothing more, and drop what came and was not parsed."""

    def peer_disconnect(self) -> Command | None:
        """Return what the end of the peer's input means, when the peer may still listen (TCP's half-close); None: the
        peer is gone."""

    def heart_beat(self) -> None: ...

    def tell_brokers(self) -> None:
        """Send the addresses of all brokers to the client, if its protocol has a frame for that: they changed, or
        another broker is to be master in a moment."""

    def take(self) -> bytes: ...

    def take_parts(self) -> Sequence[bytes | memoryview]:
        """Return the same as ``take``, in the pieces that it is made of: clients that get the same long body share
        it."""
