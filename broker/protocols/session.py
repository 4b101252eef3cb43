"""What the transport asks of a protocol's session: the seam between sockets and conversations."""

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
    """One client's session: bytes in, commands out; the broker's replies in, bytes out. Pure.

    What the broker says (``core.delivery.Session``) piles up until ``take``; ``pending_bytes`` tells how much.
    """

    pending_bytes: int
    # Whether ``receive(b"")`` gives more, once the commands given so far were carried out. Until it does not, no other
    # bytes are given, but to a session that wakes itself (``set_wake``): what its peer says before the turn for that
    # comes may be given to it before, and it has both to take up then.
    has_more: bool
    is_connected: bool
    # Heart-beats, in milliseconds, 0: none. Final once ``is_connected``.
    send_interval_ms: int
    receive_interval_ms: int

    @property
    def unfinished_bytes(self) -> int:
        """What it holds of a frame that is not whole yet. Asked while there are no more commands."""

    @property
    def is_logged_in(self) -> bool:
        """Whether the broker has accepted who the client says it is."""

    def receive(self, data: bytes) -> Sequence[Command]:
        """Never raises: what cannot be understood is a ProtocolFailure, and the last command if it is fatal."""

    def set_wake(self, wake: Callable[[], None]) -> None:
        """``wake`` is for a session to call when it has commands to give though nothing was received: because of what
        it was told (a delivery, a receipt), or by somebody else on the loop, at any time. It sets ``has_more`` first.
        Then it gets ``receive(b"")`` in a turn soon, as fair as all turns; later, where the engine has it wait. To call
        it again before that, or after the end of the connection, does nothing more."""

    def end(self) -> None:
        """Nothing more is understood: what came and was not is let go."""

    def peer_disconnect(self) -> Command | None:
        """The peer sent all that it will, and may still listen (TCP's half-close): what that means. None: that it is
        gone."""

    def heart_beat(self) -> None: ...

    def tell_brokers(self) -> None:
        """Say to a client where all brokers are, if its protocol has a word for that: they changed, or another one is
        to be master in a moment."""

    def take(self) -> bytes: ...

    def take_parts(self) -> Sequence[bytes | memoryview]:
        """As ``take``, in the pieces that it is made of: those who get the same long body share it."""
