"""Interface between sockets and protocols: the session of a protocol, as the transport uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tandemmq.broker.core import delivery
from tandemmq.broker.core.commands import Command

# Maximum number of commands that a session returns at once, so that other clients get their turn. It also returns after
# this number of bytes of frames, because long headers and properties take time.
COMMANDS_MAX: Final = 32
RECEIVED_BYTES_MAX: Final = 1 << 16


class Session(delivery.Session, Protocol):
    """Session of one client: bytes in, commands out; the broker's replies in, bytes out. Pure.

    Replies of the broker (``core.delivery.Session``) are kept until ``take``; ``pending_bytes`` is their length.
    """

    pending_bytes: int
    # True if ``receive(b"")`` will return more commands after those returned so far were carried out. Until it is
    # False, the session gets no other bytes. Exception: a session that wakes itself (``set_wake``) can get bytes before
    # the requested turn, and then handles both.
    has_more: bool
    is_connected: bool
    # Heart-beats, in milliseconds, 0: none. Final once ``is_connected``.
    send_interval_ms: int
    receive_interval_ms: int

    @property
    def unfinished_bytes(self) -> int:
        """Number of bytes that the session holds of an incomplete frame. Read when there are no more commands."""

    @property
    def is_logged_in(self) -> bool:
        """True if the broker has accepted the identity of the client."""

    def receive(self, data: bytes) -> Sequence[Command]:
        """Return the commands in ``data``; never raise. Bytes that cannot be parsed become a ProtocolFailure; if it is
        fatal, it is the last command."""

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Set the function with which the session requests a turn. The session calls it when it has commands without
        having received bytes, for example because of a delivery or a receipt. It sets ``has_more`` before. Then
        ``receive(b"")`` is called in one of the next turns, or later if the engine makes the client wait. A second call
        before that, or a call after the end of the connection, has no effect."""

    def set_output(self, has_room: Callable[[], bool], count_waiting: Callable[[int], None]) -> None:
        """Set the functions for deliveries that wait in the session, because its peer takes no more now. ``has_room``
        returns whether the session may write them; if it was false while deliveries wait, the session gets a turn when
        it is true. The session calls ``count_waiting`` with their bytes whenever these changed."""

    def set_certificate(self, certificate: str) -> None:
        """Set the subject of the client's certificate, which TLS has verified. Called before the first bytes, at most
        once."""

    def end(self) -> None:
        """Stop parsing, and drop the bytes that are not parsed yet."""

    def peer_disconnect(self) -> Command | None:
        """Return the command for the end of the peer's input, if the peer may still read (TCP's half-close). None: the
        connection has ended."""

    def heart_beat(self) -> None: ...

    def tell_brokers(self) -> None:
        """Send the addresses of all brokers to the client, if its protocol has a frame for that. Called when they
        changed, or before another broker becomes master."""

    def take(self) -> bytes: ...

    def take_parts(self) -> Sequence[bytes | memoryview]:
        """Return the same bytes as ``take``, but in their pieces, so that clients that get the same long body share
        it."""
