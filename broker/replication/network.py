"""The members of a set, as the replica sees them: links with ordered messages, the member at the other end, and the
external directory that lists the members.

The implementation of the links uses sockets (``tcp``) or those of the simulator; that of the directory is ZooKeeper
(``zookeeper``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry that a member publishes about itself. ``store`` and ``set`` are ids in hex; ``address`` is where it accepts
    links, HOST:PORT; ``admin`` and ``connectors`` are the URIs advertised to operators and clients."""

    store: str
    node: str
    address: str
    weight: int
    set: str | None  # None: it belongs to no set yet
    has_journal: bool
    version: str
    is_master: bool
    epoch: int
    admin: str | None
    connectors: tuple[str, ...]


class Directory(Protocol):
    """Directory of the members: it lists them and reports changes, and does not take part in decisions. Calls never
    block long; any thread."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to watch. ``on_change`` is called, on any thread, after ``entries`` has changed; it must not block."""

    def publish(self, entry: Entry) -> None:
        """Publish this entry for this node from now on, in place of the former one; after a lost session it is
        published again automatically."""

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries known now, ours included, by store id; while the directory cannot be reached, those known
        last."""

    @property
    def problem(self) -> str | None:
        """Reason for which the directory cannot be reached now, for the operator; None: it can."""

    def end(self) -> None:
        """Remove our entry if possible, and stop watching. ``on_change`` is not called afterwards."""
