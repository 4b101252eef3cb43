"""The network between the members of a set: which stores a node dials, which nodes it admits, and which links are up.

For each store at most one link of each direction is up. A newer link replaces an older one, since a peer that lost its
power leaves a connection that looks alive. A subclass carries the bytes: over TCP (``tcp``), or in the simulator.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final, Generic, Protocol, TypeVar

from tandemmq.broker.replication.frames import FRAME_BYTES_MAX, HANDSHAKE_BYTES_MAX, FrameError, FrameReader
from tandemmq.broker.replication.handshake import Handshake
from tandemmq.broker.replication.messages import NONCE_BYTES, Challenge, Hello, Message, Proof, Refused, name_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """The member at the other end, by its HELLO."""

    store: str
    node: str
    life: int
    set: str | None
    address: str


class Link(ABC):
    """A connection to a member, also before its handshake and after its end. Frames arrive in order, or the link ends.
    The network's thread, except where noted.

    ``target``: the store that was dialed; None: the peer dialed this node. ``peer``: address of the peer. ``member`` is
    set when the link is up. ``ended_by``: why it ended; any thread.
    """

    member: Member

    def __init__(self, target: str | None, peer: str) -> None:
        self.target = target
        self.peer = peer
        self.handshake: Handshake | None = None
        self.reader = FrameReader(HANDSHAKE_BYTES_MAX)
        self.is_up = False
        self.up_at = 0.0
        self.ended_by: str | None = None

    @property
    def is_ours(self) -> bool:
        """Return whether this node opened the link. A node sends its requests on such links."""
        return self.target is not None

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message. Any thread. Never blocks: the caller must bound ``unsent_bytes``. No effect when the link has
        ended."""

    @property
    @abstractmethod
    def unsent_bytes(self) -> int:
        """Number of bytes given to ``send`` and not yet to the socket."""

    @abstractmethod
    def wait_sent(self, below: int, timeout: float) -> bool:
        """Wait until fewer than ``below`` bytes wait; any thread but the network's. False: the link ended, or the time
        is over."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Close the link; any thread. The listener is notified on the network's thread that the link is down, even if
        the call came from there. Unsent bytes are lost."""

    def come_up(self, member: Member, now: float) -> None:
        self.member = member
        self.is_up, self.up_at = True, now
        self.reader.bytes_max = FRAME_BYTES_MAX


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


L = TypeVar("L", bound=Link)


class Target(Generic[L]):
    """A store to connect to; one attempt at a time."""

    def __init__(self, store: str, address: str) -> None:
        self.store = store
        self.address = address
        self.link: L | None = None  # up
        self.linked_address = ""  # at which it was dialed
        self.attempt: L | None = None
        self.is_resolving = False
        self.failures = 0
        self.next_at = 0.0
        self.trouble = ""  # last logged reason
        self.is_former = False  # it refused CHALLENGE: the next attempt begins with HELLO

    @property
    def needs_link(self) -> bool:
        is_there = self.link is not None and self.linked_address == self.address
        return not is_there and self.attempt is None and not self.is_resolving


class Network(ABC, Generic[L]):
    """The links of one node. On the network's thread, except the methods of any thread.

    ``now``: seconds of a clock. ``chance``: source of nonces and pauses. ``pauses``: shortest and longest seconds from
    a failure to the next attempt. Without ``token`` any node may join.
    """

    _listener: Listener

    def __init__(self, now: Callable[[], float], token: bytes, pauses: tuple[float, float], chance: Random) -> None:
        self._now = now
        self._token = token
        self._pauses: Final = pauses
        self._chance = chance
        self._links: dict[L, None] = {}  # all, by age
        self._up: dict[tuple[str, bool], L] = {}  # by store and direction
        self._targets: dict[str, Target[L]] = {}

    # ---- any thread

    @abstractmethod
    def start(self, listener: Listener) -> str:
        """Bind and listen. Return the "host:port" to advertise, with the bound port. Raises OSError."""

    @abstractmethod
    def dial(self, addresses: Mapping[str, str]) -> None:
        """Keep one dialed link to each of these, store id -> "host:port", and end links to others. Replaces the former
        addresses. A link that ended is dialed again automatically, after a pause that grows."""

    @abstractmethod
    def end(self) -> None:
        """End all links, stop listening, and end the thread; done on return."""

    # ---- the network's thread

    @abstractmethod
    def _finish(self, link: L, reason: str) -> None:
        """End the connection; then ``_remove`` is called, at once or soon."""

    # ---- outgoing connections

    def _dial(self, addresses: Mapping[str, str]) -> None:
        for store in self._targets.keys() - addresses.keys():
            target = self._targets.pop(store)
            for link in (target.attempt, target.link):
                if link is not None:
                    self._finish(link, "it is no longer dialed")
        for store, address in addresses.items():
            former = self._targets.get(store)
            if former is not None and former.address == address:
                continue
            target = self._targets[store] = Target(store, address)
            if former is not None:  # its link stays until there is another one: it may be the only working one
                target.link, target.linked_address = former.link, former.linked_address
                if former.attempt is not None:
                    self._finish(former.attempt, "its address has changed")

    def _due(self) -> list[Target[L]]:
        """Return the targets to connect to now."""
        now = self._now()
        return [target for target in self._targets.values() if target.needs_link and target.next_at <= now]

    def _next_at(self) -> float | None:
        """Return when the next target is due, by the clock. None: no target needs a link."""
        return min((target.next_at for target in self._targets.values() if target.needs_link), default=None)

    def _failed(self, target: Target[L], why: str) -> None:
        target.failures += 1
        shortest, longest = self._pauses
        pause = min(longest, shortest * 2.0 ** min(target.failures - 1, 30))
        # Two that dial at the same time must not do so forever.
        target.next_at = self._now() + pause * (0.5 + self._chance.random() / 2)
        if why != target.trouble:
            target.trouble = why
            logger.info("store %s at %s cannot be reached: %s", target.store, target.address, why)

    # ---- handshakes

    def _greet(self, link: L) -> None:
        """Begin the handshake on a new connection."""
        hello = replace(self._listener.hello(), nonce=self._nonce(), as_sent=None)
        target = self._targets.get(link.target or "")
        is_former = target is not None and target.is_former
        link.handshake = Handshake(
            hello,
            self._token,
            link.is_ours,
            partial(self._admits, link),
            challenge=None if is_former else self._nonce(),
            may_be_plain=self._may_be_plain,
        )
        for message in link.handshake.start():
            link.send(message)

    def _nonce(self) -> str:
        return self._chance.randbytes(NONCE_BYTES).hex()

    def _may_be_plain(self, store: str) -> bool:
        """Return whether a node of that store may be of an older version, which begins with HELLO. Without a token any
        node may join, and learns names anyway."""
        if not self._token:
            return True
        return self._listener.knows(store) and not self._is_introduced(store)

    def _is_introduced(self, store: str) -> bool:
        """Return whether a link to the store is up that began with an introduction: it runs this version, or a later
        one."""
        links = (self._up.get((store, is_ours)) for is_ours in (True, False))
        return any(each is not None and each.handshake is not None and each.handshake.is_introduced for each in links)

    def _admits(self, link: L, hello: Hello, is_proved: bool) -> str | None:
        if link.target not in (None, hello.store):
            return f"store {link.target} was dialed, and this is {hello.store}"
        life = max((other.member.life for other in self._up.values() if other.member.store == hello.store), default=0)
        # The listener also gets the hello of an older life, because it reports that two processes are alive.
        # prove: an-older-life-is-heard order later-life-is-linked
        if (refusal := self._listener.admits(hello, is_proved)) is not None:
            return refusal
        if life > hello.life:  # prove: later-life-is-linked "life > hello.life" -> "False"
            return f"life {life} of store {hello.store} is connected; this is life {hello.life}"
        return None

    # ---- messages

    def _take_messages(self, link: L) -> None:
        """Handle the messages that are complete. Raises FrameError."""
        while link.ended_by is None and (message := link.reader.next_message()) is not None:
            if not link.is_up:
                self._shake_hands(link, message)
            elif isinstance(message, Refused):
                self._finish(link, f"refused by the other side: {message.reason}")
            elif isinstance(message, Challenge | Hello | Proof):
                raise FrameError(f"{name_of(message)} after the handshake")
            else:
                self._listener.received(link, message)

    def _shake_hands(self, link: L, message: Message) -> None:
        handshake = link.handshake
        assert handshake is not None, "a link that sends a greeting has a handshake"
        for answer in handshake.receive(message):
            link.send(answer)
        if handshake.refused is not None:
            self._finish(link, handshake.refused)
        elif handshake.peer is not None:
            self._come_up(link, handshake.peer)

    # ---- up and down

    def _come_up(self, link: L, hello: Hello) -> None:
        older = [other for other in self._up.values() if other.member.store == hello.store]
        link.come_up(Member(hello.store, hello.node, hello.life, hello.set, hello.address), self._now())
        self._up[hello.store, link.is_ours] = link
        target = self._targets.get(hello.store)
        if link.is_ours and target is not None:
            target.link, target.linked_address, target.attempt, target.trouble = link, link.peer, None, ""
        for other in older:
            if other.is_ours == link.is_ours or other.member.life < hello.life:
                self._finish(other, "a newer link takes its place")
        self._listener.link_up(link)

    def _remove(self, link: L, reason: str) -> None:
        """Remove an ended link; its target is dialed again after a pause."""
        del self._links[link]
        target = self._targets.get(link.target or "")
        if target is not None and link in (target.attempt, target.link):
            is_former = link.handshake is not None and link.handshake.is_former
            target.is_former = is_former and not self._is_introduced(target.store)
            if target.attempt is link:
                target.attempt = None
            else:
                target.link = None
                if self._now() - link.up_at >= self._pauses[1]:
                    target.failures = 0
            self._failed(target, reason)
        if link.is_up and self._up.get((link.member.store, link.is_ours)) is link:
            del self._up[link.member.store, link.is_ours]
