"""A client on an engine whose turns are hand-driven: the real session, bytes in and bytes out."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from tandemmq.broker.core.memory import Holder
from tandemmq.broker.protocols.session import Session


class Pieces(Enum):
    """Split of a client's bytes into pieces."""

    WHOLE = auto()
    BYTES = auto()


class Wire:
    """A connection whose bytes stay in memory. As the transport, it hands over all commands of one piece of input, and
    gives the session turns that it asks for."""

    session: Any

    def __init__(
        self, harness: Any, id: str, session: Session, *, pieces: Pieces = Pieces.WHOLE, peer: str = "test:1"
    ) -> None:
        self.id = id
        self.peer = peer
        self.client: Any = None
        self.certificate: str | None = None
        self.pieces = pieces
        self.session = session
        session.set_wake(self._wake)
        self.engine = harness.engine
        self.holder = Holder(self.engine.memory)
        self.is_writable = True
        self.is_held = False
        self.is_reading = True
        self.is_closed = self.has_hung_up = False
        self._harness = harness
        self._unread: list[bytes] = []
        self._is_woken = False
        self.engine.opened(self)

    def touch(self) -> None: ...

    def close(self, after_flush: bool = True) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.session.end()
            self._harness.soon(lambda: self.engine.closed(self))

    def stop_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._harness.soon(self._turn)

    def _turn(self) -> None:
        self._is_woken = False
        data = b""
        while not self.is_closed and self.is_reading:
            if not data and self._unread and not self.session.has_more:
                data = self._unread.pop(0)
            elif not self.session.has_more:
                break
            for command in self.session.receive(data):
                if not self.is_closed:
                    self.engine.handle(self, command)
            data = b""

    def receive(self, data: bytes) -> None:
        """Receive bytes, and carry out all that is scheduled."""
        self.arrive(data)
        self._harness.turn()

    def arrive(self, data: bytes) -> None:
        """Receive bytes of the client."""
        self._unread += [data] if self.pieces is Pieces.WHOLE else [data[at : at + 1] for at in range(len(data))]
        self._wake()

    def vanish(self) -> None:
        """Close the socket of the client."""
        self.has_hung_up = not self.is_closed
        self.close()
        self._harness.turn()
