"""Faults and their duration: drawn from a seed, done to a running world, and undone at the end.

simulator.kinds has the kinds; this module has the operations that they use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.simulator.database import Database
from tandemmq.simulator.generous_lock import Grants
from tandemmq.simulator.kernel import World
from tandemmq.simulator.link import Link
from tandemmq.simulator.node import Node
from tandemmq.simulator.server import Server
from tandemmq.simulator.steps import Steps, Traps
from tandemmq.simulator.tally import Tally

#: Longest pause; most pauses are short.
PAUSE_SECONDS_MAX: Final = 30.0
#: Time after which a server releases a lock of a silent host.
LOCK_LEASE_SECONDS: Final = (1.0, 10.0)
#: The same for a machine that sleeps as a whole: soon, so that successors come while it sleeps.
FREEZE_LEASE_SECONDS: Final = (0.2, 3.0)

Begin = Mapping[str, Callable[["Faults"], None]]


@dataclass(slots=True)
class Site:
    """Targets of the faults, and where faults are reported and counted. ``database_links`` by broker.

    ``is_lock_harmed``: the lock may have been taken from its holder, or given to another broker, too. ``mending``:
    functions that still have to undo a fault. ``disturbed_at``: time of the last fault or its end. ``grants``:
    additional grants of the lock. ``on_link`` is called with each journal file that got its name: the broker, the path,
    and whether files with higher numbers existed.
    """

    world: World
    server: Server
    nodes: Sequence[Node]
    database: Database
    database_links: dict[str, Link]
    directory: str
    tell: Callable[[str], None]
    tally: Tally
    traps: Traps
    is_lock_harmed: bool = False
    mending: list[Callable[[], None]] = field(default_factory=list)
    disturbed_at: float = 0.0
    grants: Grants = field(default_factory=Grants)
    on_link: Callable[[Node, str, bool], None] | None = None

    def node_of(self, steps: Steps) -> Node:
        """Return the node of these steps."""
        return next(node for node in self.nodes if node.name == steps.process.name)


class Faults:
    """Plan of faults: between now and ``seconds`` from now ``count`` faults of these ``kinds`` begin. ``mend`` ends all
    of them."""

    def __init__(
        self,
        site: Site,
        kinds: Sequence[str],
        begin: Begin,
        count: int,
        seconds: float,
        pause_seconds_max: float = PAUSE_SECONDS_MAX,
    ) -> None:
        self._pause_seconds_max = pause_seconds_max
        self.site = site
        self.world = site.world
        self._lock_lease = site.world.random.uniform(*LOCK_LEASE_SECONDS)
        self.is_over = False  # all faults were undone; no more faults then
        self._begin_of = begin
        chance = site.world.random
        self._to_come = 0
        for _ in range(count if kinds else 0):
            kind = chance.choice(kinds)
            self.plan(kind, seconds * chance.random())

    def plan(self, kind: str, seconds: float) -> None:
        """Plan one more fault, ``seconds`` from now."""
        self._to_come += 1
        self.world.after(seconds, lambda: self._begin(kind))

    def _begin(self, kind: str) -> None:
        self._to_come -= 1
        if not self.is_over:
            self._begin_of[kind](self)

    @property
    def quiet_since(self) -> float | None:
        """Time since which all faults have come and are undone; None: they are not."""
        return None if self._to_come or self.site.mending else self.site.disturbed_at

    def happened(self, kind: str, what: str) -> None:
        """Report and count a fault that took effect."""
        self.site.tell(what)
        self.site.tally.add("faults", kind)
        self.site.disturbed_at = self.world.now

    def mend(self) -> None:
        """End all faults: everything works from now on."""
        self.is_over = True
        self.site.traps.clear()
        for mend in list(self.site.mending):
            mend()

    def until_mended(self, mend: Callable[[], None]) -> Callable[[], None]:
        """Return a function that undoes a fault. It works once; ``mend`` calls it at the latest."""

        def undo() -> None:
            if undo in self.site.mending:
                self.site.mending.remove(undo)
                self.site.disturbed_at = self.world.now
                mend()

        self.site.mending.append(undo)
        return undo

    def for_a_while(self, kind: str, what: str, mend: Callable[[], None]) -> None:
        """Report a fault, and undo it after a random time."""
        seconds = self.some_seconds()
        self.happened(kind, f"{what} for {seconds:.2f} s")
        self.world.after(seconds, self.until_mended(mend))

    def some_seconds(self) -> float:
        """Return a random duration, usually short."""
        return self._pause_seconds_max * self.world.random.random() ** 3 + 0.05

    def some_node(self) -> Node:
        """Return a node, usually a master: it has more to break."""
        chance = self.world.random
        masters = [node for node in self.site.nodes if node.is_master]
        return chance.choice(masters if masters and chance.random() < 0.7 else self.site.nodes)

    # ---- faults of a broker, a host, a server

    def restart_seconds(self) -> float:
        """Return the seconds until a supervisor, or an operator, starts a broker again."""
        return 0.5 + 5.0 * self.world.random.random()

    def kill_node(self, node: Node) -> None:
        node.kill(self.restart_seconds())

    def pause(self, node: Node) -> Callable[[], None]:
        """Stop the process (SIGSTOP) until the returned function is called, or all faults end."""
        process = node.process
        if process is None:
            return lambda: None
        process.pause()
        return self.until_mended(process.resume)

    def freeze(self, node: Node) -> Callable[[], None]:
        """Like ``pause``, for the whole machine: the server ends its locks after a while."""
        process = node.process
        thaw = self.pause(node)

        def end() -> None:
            if process is not None and process.is_paused and node.process is process:
                self._end_locks_of(lambda owner: getattr(owner, "process", None) is process)

        self.world.after(self.world.random.uniform(*FREEZE_LEASE_SECONDS), end)
        return thaw

    def hang_volume(self, node: Node) -> Callable[[], None]:
        """Hang all volume calls of a node's host; the server ends its locks after a while."""
        host = node.host
        host.cut()
        self.lose_locks_later(node)
        return self.until_mended(host.mend)

    def hang_lock_server(self, node: Node) -> Callable[[], None]:
        """Hang the lock calls of a node's host, but not those of the volume. The server ends its locks after a
        while."""
        link = node.host.lock_link
        database = self.site.database_links[node.name]
        link.cut()
        database.cut()
        self.lose_locks_later(node)

        def mend() -> None:
            if not node.host.link.is_cut:
                link.mend()
            database.mend()

        return self.until_mended(mend)

    def lose_locks_later(self, node: Node) -> None:
        """End the locks of a host that stays silent, as a server does (NFSv4: its lease)."""

        def end() -> None:
            if node.host.lock_link.is_cut:
                self._end_locks_of(lambda owner: getattr(owner, "host", None) is node.host)

        self.world.after(self._lock_lease, end)

    def _end_locks_of(self, is_owner: Callable[[Any], bool]) -> None:
        self.site.is_lock_harmed = True
        self.site.server.unlock_all(is_owner)

    def kill_host(self, node: Node) -> None:
        """Kill a node's host. Its locks outlive it for a while."""
        host = node.host
        server = host.server
        locks = [(file, file.lock) for file in server.files() if getattr(file.lock, "host", None) is host]
        for each in self.site.nodes:
            if each.host is host:
                self.kill_node(each)
        host.died()
        host.link.lose_calls_under_way()
        host.lock_link.lose_calls_under_way()
        for file, owner in locks:
            file.lock = owner

        def end() -> None:
            for file, owner in locks:
                server.unlock(file, owner)

        self.world.after(self._lock_lease, self.until_mended(end))

    def lose_power(self) -> None:
        """Cut the power of everything: bytes that were not synced may be gone."""
        for each in self.site.nodes:
            self.kill_host(each)
        for server in dict.fromkeys(each.host.server for each in self.site.nodes):
            server.lose_power()
