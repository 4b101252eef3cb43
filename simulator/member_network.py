"""The network between the members of a set: connections whose bytes arrive in order, and in time, late, or never.

A simulated broker uses it instead of sockets (broker.replication.network.Network). Frames, handshakes and the table of
links are the real ones. Each node has its own thread for it, as with real sockets.

A cut way loses nothing: the kernel sends again until it gives up, after KEEPALIVE_SECONDS; then each end is notified by
itself. The kernel ends the connections of a dead process; a dead host sends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Final

from tandemmq.broker.replication.frames import FrameError, encode
from tandemmq.broker.replication.handshake import HANDSHAKE_SECONDS_MAX
from tandemmq.broker.replication.messages import Message
from tandemmq.broker.replication.network import Link, Listener, Network, Target
from tandemmq.simulator.kernel import Process, World, call_all
from tandemmq.simulator.threads import SimulatedThreads

#: Latency of one way, in seconds: nearly always about the first value, sometimes up to the second.
LATENCY_SECONDS: Final = 0.0003
LATENCY_SECONDS_SLOW: Final = 0.03
SLOW_SHARE: Final = 0.01
#: Time after which a kernel gives up a silent peer (tcp: keepalive and user timeout).
KEEPALIVE_SECONDS: Final = (8.0, 11.0)
CHECK_SECONDS: Final = 0.5
CONNECT_SECONDS_MAX: Final = 1.5
PAUSE_SECONDS: Final = (0.1, 1.0)
#: Bytes that the kernels at both ends take before a sender must wait.
KERNEL_BYTES: Final = 1 << 16
TOKEN: Final = b"simulated"


class Wires:
    """Ways between the nodes. ``cut`` holds ways (from, to) that nothing passes; ``slow`` has seconds by way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.networks: dict[str, MemberNetwork] = {}  # by address, of the listening nodes
        self._ends: list[MemberLink] = []
        self._check()

    def resume(self) -> None:
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

    def break_some(self) -> None:
        """Reset one connection, as a router or a firewall does."""
        there = [end for end in self._ends if not end.is_over and end.is_up]
        if not there:
            return
        broken = self.world.random.choice(there)
        for end in (broken, broken.other):
            if end is not None:
                end.ended("the connection was reset")

    def died(self, network: MemberNetwork, *, with_host: bool) -> None:
        """End the connections of a network whose process died."""
        if self.networks.get(network.address) is network:
            del self.networks[network.address]
        for end in list(self._ends):
            if end.network is network and not end.is_over:
                end.ended_by = "its process died"
                if not with_host:
                    end.say_end()

    def _check(self) -> None:
        """End the connections whose peer is silent although it should be heard."""
        self.world.after(CHECK_SECONDS, self._check)
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


class MemberLink(Link):
    """An end of a connection. What it sends waits in ``_under_way`` until it is at the other end."""

    def __init__(self, network: MemberNetwork, target: str | None, peer: str) -> None:
        super().__init__(target, peer)
        self.network = network
        self.other: MemberLink | None = None
        self.is_fin = False  # the other end will learn that this one is over
        self.silent_since: float | None = None
        self._under_way: deque[tuple[float, bytes | None]] = deque()  # when it arrives; None: the end
        self._unsent = 0
        self._last_due = 0.0
        self._waiting: list[Callable[[], object]] = []

    @property
    def is_over(self) -> bool:
        return self.ended_by is not None

    @property
    def is_done(self) -> bool:
        """Return whether both ends are over, and nothing is under way."""
        return self.is_over and self.other is not None and self.other.is_over

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
            self.ended_by = reason
            call_all(self._waiting)
            self.network.call(lambda: self.network.finished(self, reason))


class MemberNetwork(Network[MemberLink]):
    """Network of one life of one broker; ``name`` is its host's. An address belongs to one name of the broker."""

    def __init__(self, wires: Wires, process: Process, threads: SimulatedThreads, name: str, port: int) -> None:
        super().__init__(threads.monotonic, TOKEN, PAUSE_SECONDS, wires.world.random)
        self.wires = wires
        self.process = process
        self.name = name
        self.address = f"{name}:{port}"
        self._inbox = threads.inbox()
        self._thread = threads.thread(self._run, "tandemmq-replication")
        self._is_ending = False

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
        self.call(self._stop)
        self._thread.join()

    def call(self, act: Callable[[], object]) -> None:
        """Call ``act`` on the network's thread, soon."""
        self._inbox.put(act)

    # ---- the thread

    def _run(self) -> None:
        while not self._is_ending:
            next_at = self._next_at()
            try:
                self._inbox.get(timeout=None if next_at is None else max(0.0, next_at - self._now()))()
            except Empty:
                pass
            for target in self._due():
                self._connect(target)

    def _stop(self) -> None:
        self._is_ending = True
        if self.wires.networks.get(self.address) is self:
            del self.wires.networks[self.address]
        for link in list(self._links):
            link.close("this node ends its network")
            self.finished(link, "this node ends its network")

    def _connect(self, target: Target[MemberLink]) -> None:
        link = target.attempt = MemberLink(self, target.store, target.address)
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
            theirs = MemberLink(other, None, self.name)
            wires.connected(link, theirs)
            other.call(lambda: other.greet(theirs))
            self.call(lambda: self.greet(link))

        world.after(wires.latency(self.name, there), arrive)

    def greet(self, link: MemberLink) -> None:
        """Begin the handshake on a new connection."""
        if link.is_over:
            return
        self._links[link] = None
        self._greet(link)

        def give_up() -> None:
            if not link.is_up:
                link.close("no handshake in time")

        self.wires.world.after(HANDSHAKE_SECONDS_MAX, give_up)

    def read(self, link: MemberLink, data: bytes) -> None:
        """Take bytes that arrived."""
        if link.is_over:
            return
        link.reader.feed(data)
        try:
            self._take_messages(link)
        except FrameError as error:
            self.wires.world.bugs.append(f"{self.name}: {error}")
            link.close(str(error))

    def _finish(self, link: MemberLink, reason: str) -> None:
        link.close(reason)

    def finished(self, link: MemberLink, reason: str) -> None:
        """Note the end of a link."""
        if link in self._links:
            self._remove(link, reason)
            if link.is_up:
                self._listener.link_down(link, reason)
