"""The members of a set, as the replica sees them: links with messages in their order, and who is at the other end.

Sockets lie behind it (``tcp``), or the simulator's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tandemmq.broker.replication.messages import Hello, Message


@dataclass(frozen=True, slots=True)
class Member:
    """Who is at the other end, by its HELLO."""

    store: str
    node: str
    life: int
    set: str | None
    address: str


class Link(Protocol):
    """One connection to a member after the handshake. Frames arrive in order, or the link ends."""

    @property
    def member(self) -> Member: ...

    @property
    def is_ours(self) -> bool:
        """Dialed by this node: requests go out on it."""
        ...

    def send(self, message: Message) -> None:
        """Any thread. Never blocks; what waits is counted in ``unsent_bytes``, and its bound is the sender's to keep.
        Of no effect when the link has ended."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """What was given to ``send`` and not yet to the socket."""
        ...

    def wait_sent(self, below: int, timeout: float) -> bool:
        """Any thread but the network's: until fewer than ``below`` bytes wait. False: it ended, or the time is over."""
        ...

    def close(self, reason: str) -> None:
        """Any thread. The listener is told that the link is down, on the network's thread; also if it was so asked
        there. What was not sent is lost."""
        ...


class Listener(Protocol):
    """Called on the network's thread; must not block. For a link: up, then what was received, then down, once each."""

    def link_up(self, link: Link) -> None: ...

    def link_down(self, link: Link, reason: str) -> None: ...

    def received(self, link: Link, message: Message) -> None: ...

    def hello(self) -> Hello:
        """What this node says of itself now: set, life and address may change. The nonce is drawn by the network."""
        ...

    def knows(self, store: str) -> bool:
        """Whether a node with that store is, or was, a member as far as this one knows."""
        ...

    def admits(self, hello: Hello, is_proved: bool) -> str | None:
        """Why this member is refused. None: it is not. ``is_proved``: it knows the token, and completes a handshake;
        else it only says this of itself, and nothing is noted."""
        ...


class Network(Protocol):
    """Any thread."""

    def start(self, listener: Listener) -> str:
        """Bind and listen. The "host:port" to advertise, with the port as it was bound. Raises OSError."""
        ...

    def dial(self, addresses: Mapping[str, str]) -> None:
        """Keep one link of ours to each of these, store id -> "host:port", and end those to others. Replaces what was
        said before. A link that ended is dialed again by itself, after a pause that grows."""
        ...

    def end(self) -> None:
        """All links end, nobody can connect, the thread is over on return."""
        ...
