"""A network in memory between replicas: messages as bytes, in order. Each link can be cut or slowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from queue import Empty

from tandemmq.broker.replication.frames import FrameReader, encode
from tandemmq.broker.replication.messages import Hello, Message
from tandemmq.broker.replication.network import Listener, Member
from tandemmq.store.threads import OS_THREADS, Threads

REDIAL_SECONDS = 0.02


class SwitchLink:
    """One end of a link. A sent message waits in the other end's network until its thread delivers it."""

    def __init__(self, network: SwitchNetwork, member: Member, *, is_ours: bool) -> None:
        self.member = member
        self.is_ours = is_ours
        self.network = network
        self.other: SwitchLink | None = None
        self.is_over = False
        self.has_lost = False
        self.reader = FrameReader()

    def send(self, message: Message) -> None:
        other = self.other
        if self.is_over or other is None:
            return
        other.network.deliver(self.network, other, encode(message))

    @property
    def unsent_bytes(self) -> int:
        return 0

    def wait_sent(self, below: int, timeout: float) -> bool:
        return not self.is_over

    def close(self, reason: str) -> None:
        for end in (self, self.other):
            if end is not None and not end.is_over:
                end.is_over = True
                end.network.ended(end, reason)


class SwitchNetwork:
    """A network with the interface of broker.replication.network.Network."""

    def __init__(self, switch: Switch, address: str, threads: Threads) -> None:
        self.address = address
        self.listener: Listener | None = None
        self.links: list[SwitchLink] = []
        self._switch = switch
        self._threads = threads
        self._inbox = threads.inbox()
        self._wanted: dict[str, str] = {}
        self._is_over = False
        self._thread = threads.thread(self._run, f"switch-{address}")

    def start(self, listener: Listener) -> str:
        self.listener = listener
        self._switch.networks[self.address] = self
        self._thread.start()
        self._inbox.put(self._redial)
        return self.address

    def dial(self, addresses: Mapping[str, str]) -> None:
        self._wanted = dict(addresses)

    def end(self) -> None:
        self._is_over = True
        self._switch.networks.pop(self.address, None)
        for link in list(self.links):
            link.close("the network ends")
        self._inbox.put(None)
        self._thread.join()

    def deliver(self, source: SwitchNetwork, link: SwitchLink, frame: bytes) -> None:
        delay = self._switch.delay(source.address, self.address)
        if delay is None or link.has_lost:
            link.has_lost = True  # the link stays half open: no frame arrives after a lost one
            return
        self._inbox.put(lambda: self._receive(link, frame, delay))

    def ended(self, link: SwitchLink, reason: str) -> None:
        self._inbox.put(lambda: self._down(link, reason))

    def _run(self) -> None:
        due = self._threads.monotonic()
        while not self._is_over:
            try:
                work = self._inbox.get(timeout=REDIAL_SECONDS)
            except Empty:
                work = None
            if work is not None:
                work()
            if self._threads.monotonic() >= due:
                due = self._threads.monotonic() + REDIAL_SECONDS
                self._redial()

    def _receive(self, link: SwitchLink, frame: bytes, delay: float) -> None:
        if delay:
            self._threads.sleep(delay)
        if link.is_over:
            return
        assert self.listener is not None
        link.reader.feed(frame)
        while (message := link.reader.next_message()) is not None:
            self.listener.received(link, message)

    def _down(self, link: SwitchLink, reason: str) -> None:
        if link in self.links:
            self.links.remove(link)
            assert self.listener is not None
            self.listener.link_down(link, reason)

    def _redial(self) -> None:
        there = {link.member.store for link in self.links if link.is_ours}
        for store, address in self._wanted.items():
            if store not in there:
                self._switch.connect(self, address)


class Switch:
    """State of the connections. ``cut``: pairs (from, to) without a connection in this direction; ``slow``: delay in
    seconds; ``refused``: number of refused connections of each node."""

    def __init__(self) -> None:
        self.networks: dict[str, SwitchNetwork] = {}
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.refused: Counter[str] = Counter()

    def network(self, address: str, threads: Threads = OS_THREADS) -> SwitchNetwork:
        return SwitchNetwork(self, address, threads)

    def delay(self, source: str, target: str) -> float | None:
        return None if (source, target) in self.cut else self.slow.get((source, target), 0.0)

    def isolate(self, address: str) -> None:
        for other in list(self.networks):
            if other != address:
                self.cut |= {(address, other), (other, address)}

    def join(self, *groups: set[str]) -> None:
        """Connect only the members of the same group."""
        together = {(one, other) for group in groups for one in group for other in group}
        self.cut = {(one, other) for one in self.networks for other in self.networks if one != other} - together
        self._end_links_that_lost()

    def heal(self) -> None:
        """Restore all connections. Links that lost a message end, as by TCP keepalive."""
        self.cut = set()
        self.slow.clear()
        self._end_links_that_lost()

    def _end_links_that_lost(self) -> None:
        for network in list(self.networks.values()):
            for link in list(network.links):
                if link.has_lost:
                    link.close("frames were lost")

    def connect(self, source: SwitchNetwork, address: str) -> None:
        target = self.networks.get(address)
        if target is None or (source.address, address) in self.cut or (address, source.address) in self.cut:
            return
        assert source.listener is not None
        assert target.listener is not None
        here, there = source.listener.hello(), target.listener.hello()
        for one, hello, refused in ((target, here, source), (source, there, target)):
            assert one.listener is not None
            if one.listener.admits(hello, True) is not None:
                self.refused[refused.address] += 1
                return
        for one, hello in ((target, here), (source, there)):
            for link in list(one.links):
                if link.member.store == hello.store and link.member.life < hello.life:
                    link.close("a newer link takes its place")
        ours = SwitchLink(source, _member(there), is_ours=True)
        theirs = SwitchLink(target, _member(here), is_ours=False)
        ours.other, theirs.other = theirs, ours
        source.links.append(ours)
        target.links.append(theirs)
        target.listener.link_up(theirs)
        source.listener.link_up(ours)


def _member(hello: Hello) -> Member:
    return Member(hello.store, hello.node, hello.life, hello.set, hello.address)
