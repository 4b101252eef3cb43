"""The network between the members of a set: connections whose bytes arrive in order, and in time, late, or never.

A simulated broker uses it instead of sockets (broker.replication.network.Network). Handshake and frames are the real
ones. Each node has its own thread for it, as with real sockets.

A cut way loses nothing: the kernel sends again until it gives up, after KEEPALIVE_SECONDS; then each end is notified by
itself. The kernel ends the connections of a dead process; a dead host sends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty
from typing import Final

from tandemmq.broker.replication.handshake import HANDSHAKE_SECONDS_MAX, Handshake
from tandemmq.broker.replication.messages import FrameError, FrameReader, Hello, Message, Proof, Refused, encode
from tandemmq.broker.replication.network import Listener, Member
from tandemmq.simulator.kernel import Process, World, call_all
from tandemmq.simulator.threads import SimulatedThreads

#: Latency of one way, in seconds: nearly always about the first value, sometimes up to the second.
LATENCY_SECONDS: Final = 0.0003
LATENCY_SECONDS_SLOW: Final = 0.03
SLOW_SHARE: Final = 0.01
#: Time after which a kernel gives up a silent peer (tcp: keepalive and user timeout).
KEEPALIVE_SECONDS: Final = (8.0, 11.0)
LOOK_SECONDS: Final = 0.5
CONNECT_SECONDS_MAX: Final = 1.5
PAUSE_SECONDS: Final = (0.1, 1.0)
#: Bytes that the kernels at both ends take before a sender must wait.
KERNEL_BYTES: Final = 1 << 16
NONCE_BYTES: Final = 32
TOKEN: Final = b"simulated"


class Wires:
    """Ways between the nodes. ``cut`` holds ways (from, to) that nothing passes; ``slow`` has seconds by way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.networks: dict[str, MemberNetwork] = {}  # by address, of the listening nodes
        self._ends: list[MemberLink] = []
        self._look()

    def mend(self) -> None:
        """Open all ways; waiting bytes arrive."""
        self.cut.clear()
        self.slow.clear()
        self.go_on()

    def go_on(self) -> None:
        """Continue after a way was opened."""
        for end in list(self._ends):
            end.pump_soon()

    def is_open(self, source: str, target: str) -> bool:
        return (source, target) not in self.cut

    def latency(self, source: str, target: str) -> float:
        chance = self.world.random.random()
        slow = self.slow.get((source, target), 0.0)
        if chance < SLOW_SHARE:
            return slow + LATENCY_SECONDS_SLOW * self.world.random.random()
        return (slow + LATENCY_SECONDS) * (0.5 + chance)

    def connected(self, one: MemberLink, other: MemberLink) -> None:
        """Connect both ends of a connection."""
        one.other, other.other = other, one
        self._ends += [one, other]

    def break_some(self) -> MemberLink | None:
        """Reset one connection, as a router or a firewall does."""
        there = [end for end in self._ends if not end.is_over and end.is_up]
        if not there:
            return None
        broken = self.world.random.choice(there)
        for end in (broken, broken.other):
            if end is not None:
                end.ended("the connection was reset")
        return broken

    def died(self, network: MemberNetwork, *, with_host: bool) -> None:
        """End the connections of a network whose process died."""
        if self.networks.get(network.address) is network:
            del self.networks[network.address]
        for end in list(self._ends):
            if end.network is network and not end.is_over:
                end.is_over = True
                if not with_host:
                    end.say_end()

    def _look(self) -> None:
        """End the connections whose peer is silent although it should be heard."""
        self.world.after(LOOK_SECONDS, self._look)
        now = self.world.now
        self._ends = [end for end in self._ends if not end.is_done]
        for end in self._ends:
            other = end.other
            assert other is not None, "it is connected"
            here, there = end.network.name, other.network.name
            hears = self.is_open(here, there) and self.is_open(there, here) and not (other.is_over and not other.is_fin)
            if hears or end.is_over:
                end.silent_since = None
            elif end.silent_since is None:
                end.silent_since = now + self.world.random.uniform(*KEEPALIVE_SECONDS)
            elif now >= end.silent_since:
                end.ended("the other side is silent")


class MemberLink:
    """An end of a connection. What it sends waits in ``_under_way`` until it is at the other end."""

    def __init__(self, network: MemberNetwork, *, is_ours: bool, target: str | None) -> None:
        self.network = network
        self.is_ours = is_ours
        self.target = target  # the store that was dialed
        self.other: MemberLink | None = None
        self.is_over = False
        self.is_up = False
        self.is_fin = False  # the other end will learn that this one is over
        self.silent_since: float | None = None
        self.reader = FrameReader()
        self.handshake: Handshake | None = None
        self.up_at = 0.0
        self._member: Member | None = None
        self._under_way: deque[tuple[float, bytes | None]] = deque()  # when it arrives; None: the end
        self._unsent = 0
        self._last_due = 0.0
        self._waiting: list[Callable[[], object]] = []

    @property
    def member(self) -> Member:
        assert self._member is not None, "the handshake is over"
        return self._member

    @property
    def is_done(self) -> bool:
        """Return whether both ends are over, and nothing is under way."""
        return self.is_over and self.other is not None and self.other.is_over

    def met(self, member: Member) -> None:
        self._member = member
        self.is_up = True

    # ---- any thread

    def send(self, message: Message) -> None:
        if not self.is_over:
            self._put(encode(message))

    def say_end(self) -> None:
        self.is_fin = True
        self._put(None)

    def _put(self, data: bytes | None) -> None:
        wires, other = self.network.wires, self.other
        assert other is not None, "it is connected"
        self._unsent += len(data or b"")
        due = wires.world.now + wires.latency(self.network.name, other.network.name)
        self._last_due = max(due, self._last_due)
        self._under_way.append((self._last_due, data))
        wires.world.after(self._last_due - wires.world.now, self._pump)

    def pump_soon(self) -> None:
        if self._under_way and self.other is not None:
            wires = self.network.wires
            wires.world.after(wires.latency(self.network.name, self.other.network.name), self._pump)

    def _pump(self) -> None:
        wires, other = self.network.wires, self.other
        assert other is not None, "it is connected"
        while self._under_way and self._under_way[0][0] <= wires.world.now + 1e-9:
            if not wires.is_open(self.network.name, other.network.name):
                return
            if other.network.process.is_dead and not other.is_fin:
                return  # its host died, and answers nothing
            _, data = self._under_way.popleft()
            self._unsent -= len(data or b"")
            call_all(self._waiting)
            if other.is_over:
                if data is not None and not self.is_over:
                    self.ended("the connection was reset")
            elif data is None:
                other.ended("the other side ended the connection")
            else:
                other.network.call(lambda data=data: other.network.read(other, data))  # type: ignore[misc]

    @property
    def unsent_bytes(self) -> int:
        return max(0, self._unsent - KERNEL_BYTES)

    def wait_sent(self, below: int, timeout: float) -> bool:
        process = self.network.process
        deadline = process.boot() + timeout
        while not self.is_over and self.unsent_bytes >= below:
            left = deadline - process.boot()
            if left <= 0:
                return False
            self._waiting.append(process.waker())
            process.park(left)
        return not self.is_over

    def close(self, reason: str) -> None:
        if not self.is_over:
            if self.other is not None:
                self.say_end()
            self.ended(reason)

    def ended(self, reason: str) -> None:
        """End this side, and notify its network."""
        if not self.is_over:
            self.is_over = True
            call_all(self._waiting)
            self.network.call(lambda: self.network.finished(self, reason))


@dataclass(slots=True, eq=False)
class _Target:
    """A store to connect to; one attempt at a time."""

    address: str
    link: MemberLink | None = None
    attempt: MemberLink | None = None
    failures: int = 0
    next_at: float = 0.0

    @property
    def is_due(self) -> bool:
        """Return whether a connection is due, from ``next_at`` on."""
        return self.link is None and self.attempt is None


@dataclass(eq=False)
class MemberNetwork:
    """Network of one life of one broker; ``name`` is its host's. An address belongs to one name of the broker."""

    wires: Wires
    process: Process
    threads: SimulatedThreads
    name: str
    port: int
    address: str = field(init=False)

    def __post_init__(self) -> None:
        self.address = f"{self.name}:{self.port}"
        self._inbox = self.threads.inbox()
        self._thread = self.threads.thread(self._run, "tandemmq-replication")
        self._targets: dict[str, _Target] = {}
        self._links: dict[MemberLink, None] = {}
        self._up: dict[tuple[str, bool], MemberLink] = {}
        self._listener: Listener | None = None
        self._is_ending = False
        self._due_at: float | None = None  # when to connect to the next target; None: no target

    # ---- any thread

    def start(self, listener: Listener) -> str:
        self._listener = listener
        self.wires.networks[self.address] = self
        self._thread.start()
        return self.address

    def dial(self, addresses: Mapping[str, str]) -> None:
        wanted = dict(addresses)
        self.call(lambda: self._dial(wanted))

    def end(self) -> None:
        self.call(self._end)
        self._thread.join()

    def call(self, act: Callable[[], object]) -> None:
        """Call ``act`` on the network's thread, soon."""
        self._inbox.put(act)

    @property
    def _listens(self) -> Listener:
        assert self._listener is not None, "it was started"
        return self._listener

    # ---- the thread

    def _run(self) -> None:
        while not self._is_ending:
            try:
                self._inbox.get(timeout=self._patience())()
            except Empty:
                pass
            if self._due_at is None:
                continue
            now = self.threads.monotonic()
            if now < self._due_at:
                continue
            for store, target in list(self._targets.items()):
                if target.is_due and target.next_at <= now:
                    self._connect(store, target)
            self._due_at = min((each.next_at for each in self._targets.values() if each.is_due), default=None)

    def _patience(self) -> float | None:
        return None if self._due_at is None else max(0.0, self._due_at - self.threads.monotonic())

    def _look_again(self) -> None:
        """Check the targets soon: a connection may be due."""
        self._due_at = 0.0

    def _end(self) -> None:
        self._is_ending = True
        if self.wires.networks.get(self.address) is self:
            del self.wires.networks[self.address]
        for link in list(self._links):
            link.close("this node ends its network")
            self.finished(link, "this node ends its network")

    def _dial(self, addresses: dict[str, str]) -> None:
        for store in [store for store in self._targets if store not in addresses]:
            target = self._targets.pop(store)
            for link in (target.attempt, target.link):
                if link is not None:
                    link.close("it is not to be dialed any more")
        for store, address in addresses.items():
            former = self._targets.get(store)
            if former is None or former.address != address:
                self._targets[store] = _Target(address, None if former is None else former.link)
        self._look_again()

    def _connect(self, store: str, target: _Target) -> None:
        link = target.attempt = MemberLink(self, is_ours=True, target=store)
        self._links[link] = None
        world, wires = self.wires.world, self.wires
        there = target.address.partition(":")[0]

        def give_up() -> None:
            if link.other is None:
                link.ended("no connection in time")

        world.after(CONNECT_SECONDS_MAX, give_up)

        def arrive() -> None:
            other = wires.networks.get(target.address)
            if not (wires.is_open(self.name, there) and wires.is_open(there, self.name)) or link.is_over:
                return  # no answer
            if other is None:
                world.after(wires.latency(there, self.name), lambda: link.ended("connection refused"))
                return
            theirs = MemberLink(other, is_ours=False, target=None)
            wires.connected(link, theirs)
            other.call(lambda: other.greet(theirs))
            self.call(lambda: self.greet(link))

        world.after(wires.latency(self.name, there), arrive)

    def greet(self, link: MemberLink) -> None:
        """Begin the handshake on a new connection."""
        if link.is_over:
            return
        self._links[link] = None
        world = self.wires.world
        hello = replace(self._listens.hello(), nonce=world.random.randbytes(NONCE_BYTES).hex(), as_sent=None)
        link.handshake = Handshake(hello, TOKEN, link.is_ours, partial(self._admits, link))
        for message in link.handshake.start():
            link.send(message)

        def give_up() -> None:
            if not link.is_up:
                link.close("no handshake in time")

        world.after(HANDSHAKE_SECONDS_MAX, give_up)

    def _admits(self, link: MemberLink, hello: Hello, is_proved: bool) -> str | None:
        if link.target not in (None, hello.store):
            return f"store {link.target} was dialed, and this is {hello.store}"
        if (refusal := self._listens.admits(hello, is_proved)) is not None:
            return refusal
        for other in self._up.values():
            if other.member.store == hello.store and other.member.life > hello.life:
                return f"life {other.member.life} of store {hello.store} is connected; this is life {hello.life}"
        return None

    def read(self, link: MemberLink, data: bytes) -> None:
        """Take bytes that arrived."""
        if link.is_over:
            return
        link.reader.feed(data)
        try:
            while not link.is_over and (message := link.reader.next_message()) is not None:
                self._take(link, message)
        except FrameError as error:
            self.wires.world.bugs.append(f"{self.name}: {error}")
            link.close(str(error))

    def _take(self, link: MemberLink, message: Message) -> None:
        if link.is_up:
            if isinstance(message, Refused):
                link.close(f"refused by the other side: {message.reason}")
            else:
                assert not isinstance(message, Hello | Proof), "the handshake is over"
                self._listens.received(link, message)
            return
        handshake = link.handshake
        assert handshake is not None, "who greets has one"
        for answer in handshake.receive(message):
            link.send(answer)
        if handshake.refused is not None:
            link.close(handshake.refused)
        elif handshake.peer is not None:
            self._come_up(link, handshake.peer)

    def _come_up(self, link: MemberLink, hello: Hello) -> None:
        older = [other for other in self._up.values() if other.member.store == hello.store]
        link.met(Member(hello.store, hello.node, hello.life, hello.set, hello.address))
        link.up_at = self.threads.monotonic()
        self._up[hello.store, link.is_ours] = link
        target = self._targets.get(link.target or "")
        if target is not None and target.attempt is link:
            target.link, target.attempt = link, None
        for other in older:
            if other.is_ours == link.is_ours or other.member.life < hello.life:
                other.close("a newer link takes its place")
        self._listens.link_up(link)

    def finished(self, link: MemberLink, reason: str) -> None:
        """Note the end of a link."""
        if link not in self._links:
            return
        del self._links[link]
        target = self._targets.get(link.target or "")
        if target is not None and link in (target.attempt, target.link):
            if target.link is link and self.threads.monotonic() - link.up_at >= PAUSE_SECONDS[1]:
                target.failures = 0
            target.attempt = None if target.attempt is link else target.attempt
            target.link = None if target.link is link else target.link
            pause = min(PAUSE_SECONDS[1], PAUSE_SECONDS[0] * 2.0 ** min(target.failures, 30))
            target.failures += 1
            target.next_at = self.threads.monotonic() + pause * (0.5 + self.wires.world.random.random() / 2)
            self._look_again()
        if link.is_up:
            if self._up.get((link.member.store, link.is_ours)) is link:
                del self._up[link.member.store, link.is_ours]
            self._listens.link_down(link, reason)
