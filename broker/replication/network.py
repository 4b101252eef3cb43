"""The members of a set, as the replica sees them: links with ordered messages, and the member at the other end.

The implementation uses sockets (``tcp``) or those of the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tandemmq.broker.replication.messages import Hello, Message


@dataclass(frozen=True, slots=True)
class Member:
    """The member at the other end, by its HELLO."""

    store: str
    node: str
    life: int
    set: str | None
    address: str


class Link(Protocol):
    """A connection to a member after the handshake. Frames arrive in order, or the link ends."""

    @property
    def member(self) -> Member: ...

    @property
    def is_ours(self) -> bool:
        """Return whether this node opened the link. A node sends its requests on such links."""
        ...

    def send(self, message: Message) -> None:
        """Send a message. Any thread. Never blocks: the caller must bound ``unsent_bytes``. No effect when the link has
        ended."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes given to ``send`` and not yet to the socket."""
        ...

    def wait_sent(self, below: int, timeout: float) -> bool:
        """Wait until fewer than ``below`` bytes wait; any thread but the network's. False: the link ended, or the time
        is over."""
        ...

    def close(self, reason: str) -> None:
        """Close the link; any thread. The listener is notified on the network's thread that the link is down, even if
        the call came from there. What was not sent is lost."""
        ...


class Listener(Protocol):
    """Callbacks on the network's thread; they must not block. For each link: up, then received messages, then down,
    once each."""

    def link_up(self, link: Link) -> None: ...

    def link_down(self, link: Link, reason: str) -> None: ...

    def received(self, link: Link, message: Message) -> None: ...

    def hello(self) -> Hello:
        """Return the HELLO of this node: set, life and address may change. The network draws the nonce."""
        ...

    def knows(self, store: str) -> bool:
        """Return whether a node with that store is, or was, a member as far as this node knows."""
        ...

    def admits(self, hello: Hello, is_proved: bool) -> str | None:
        """Return the reason to refuse this member; None: it is admitted. ``is_proved``: the member has proved that it
        knows the token. Without a proof, its HELLO must not change any state."""
        ...


class Network(Protocol):
    """Network of a node. Any thread."""

    def start(self, listener: Listener) -> str:
        """Bind and listen. Return the "host:port" to advertise, with the bound port. Raises OSError."""
        ...

    def dial(self, addresses: Mapping[str, str]) -> None:
        """Keep one link of ours to each of these, store id -> "host:port", and end links to others. Replaces the former
        addresses. A link that ended is dialed again automatically, after a pause that grows."""
        ...

    def end(self) -> None:
        """End all links, stop listening, and end the thread; done on return."""
        ...
