"""What the transport asks of a protocol's session: the seam between sockets and conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.core.commands import AckMode, ClientError, Command, Connect
from store.records.message import Message


class Session(Protocol):
    """One client's conversation: bytes in, commands out; what the broker says in, bytes out. Pure.

    What the broker says piles up until ``take``; ``pending_bytes`` tells how much it is.
    """

    pending_bytes: int
    # Whether ``receive(b"")`` gives more, once the commands given so far were carried out.
    has_more: bool
    is_connected: bool
    # Heart-beats, in milliseconds, 0: none. Final once ``is_connected``.
    send_interval_ms: int
    receive_interval_ms: int

    def receive(self, data: bytes) -> Sequence[Command]:
        """Never raises: what cannot be understood is a ProtocolFailure, and the last command if it is fatal."""

    def connected(self, command: Connect, session_id: str) -> None: ...

    def receipt(self, receipt: str) -> None: ...

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redelivered: bool, ack_mode: AckMode
    ) -> None: ...

    def fail(self, error: ClientError) -> None: ...

    def heart_beat(self) -> None: ...

    def take(self) -> bytes: ...
