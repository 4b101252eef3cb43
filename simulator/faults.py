"""When something goes wrong, and for how long: drawn from a seed, done to a running world, and mended in the end.

The kinds are in simulator.kinds; here is what they do it with.
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

#: A pause lasts so long at most; most are short.
PAUSE_SECONDS_MAX: Final = 30.0
#: A server lets go of a lock so long after its host fell silent.
LOCK_LEASE_SECONDS: Final = (1.0, 10.0)
#: Of a machine that sleeps as a whole: soon, so that successors come while it does.
FREEZE_LEASE_SECONDS: Final = (0.2, 3.0)

Begin = Mapping[str, Callable[["Faults"], None]]


@dataclass(slots=True)
class Site:
    """All that faults are done to, and where they are reported and counted. ``database_links`` by broker.

    ``is_lock_harmed``: somebody may have had the lock taken away, or given to another one beside. ``mending``: what is
    to be undone yet. ``disturbed_at``: when something was done, or undone, last. ``grants``: of the lock, to one more.
    ``on_link`` is called with each journal file that got its name: by whom, its path, whether files with higher numbers
    were there.
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
        """Whose steps they are."""
        return next(node for node in self.nodes if node.name == steps.process.name)


class Faults:
    """Between now and ``seconds`` from now ``count`` faults of these ``kinds`` begin. ``mend`` ends all of them."""

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
        self.is_over = False  # everything was mended; no more faults then
        self._begin_of = begin
        chance = site.world.random
        self._to_come = 0
        for _ in range(count if kinds else 0):
            kind = chance.choice(kinds)
            self.plan(kind, seconds * chance.random())

    def plan(self, kind: str, seconds: float) -> None:
        """One more, so long from now."""
        self._to_come += 1
        self.world.after(seconds, lambda: self._begin(kind))

    def _begin(self, kind: str) -> None:
        self._to_come -= 1
        if not self.is_over:
            self._begin_of[kind](self)

    @property
    def quiet_since(self) -> float | None:
        """Since when all of them have come and are undone; None: they are not."""
        return None if self._to_come or self.site.mending else self.site.disturbed_at

    def happened(self, kind: str, what: str) -> None:
        """A fault took effect."""
        self.site.tell(what)
        self.site.tally.add("faults", kind)
        self.site.disturbed_at = self.world.now

    def mend(self) -> None:
        """Everything works again, from now on."""
        self.is_over = True
        self.site.traps.clear()
        for mend in list(self.site.mending):
            mend()

    def until_mended(self, mend: Callable[[], None]) -> Callable[[], None]:
        """What undoes a fault: called once, by ``mend`` at the latest, and by whoever calls what is returned."""

        def undo() -> None:
            if undo in self.site.mending:
                self.site.mending.remove(undo)
                self.site.disturbed_at = self.world.now
                mend()

        self.site.mending.append(undo)
        return undo

    def for_a_while(self, kind: str, what: str, mend: Callable[[], None]) -> None:
        """Say it, and undo it in time."""
        seconds = self.some_seconds()
        self.happened(kind, f"{what} for {seconds:.2f} s")
        self.world.after(seconds, self.until_mended(mend))

    def some_seconds(self) -> float:
        """Short, as a rule."""
        return self._pause_seconds_max * self.world.random.random() ** 3 + 0.05

    def some_node(self) -> Node:
        """A master, more often than not: there is more to break."""
        chance = self.world.random
        masters = [node for node in self.site.nodes if node.is_master]
        return chance.choice(masters if masters and chance.random() < 0.7 else self.site.nodes)

    # ---- what is done to a broker, a host, a server

    def restart_seconds(self) -> float:
        """A supervisor, or an operator, starts a broker again after so long."""
        return 0.5 + 5.0 * self.world.random.random()

    def kill_node(self, node: Node) -> None:
        node.kill(self.restart_seconds())

    def pause(self, node: Node) -> Callable[[], None]:
        """SIGSTOP, until what is returned is called, or all is mended."""
        process = node.process
        if process is None:
            return lambda: None
        process.pause()
        return self.until_mended(process.resume)

    def freeze(self, node: Node) -> Callable[[], None]:
        """As ``pause``, but of its whole machine: the server ends its locks after a while."""
        process = node.process
        thaw = self.pause(node)

        def end() -> None:
            if process is not None and process.is_paused and node.process is process:
                self._end_locks_of(lambda owner: getattr(owner, "process", None) is process)

        self.world.after(self.world.random.uniform(*FREEZE_LEASE_SECONDS), end)
        return thaw

    def hang_volume(self, node: Node) -> Callable[[], None]:
        """All calls of its host hang; the server ends its locks after a while."""
        host = node.host
        host.cut()
        self.lose_locks_later(node)
        return self.until_mended(host.mend)

    def hang_lock_server(self, node: Node) -> Callable[[], None]:
        """What its host asks about locks has no answer; the volume has. The server ends its locks after a while."""
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
        """The server ends the locks of a host that stays silent (NFSv4: its lease)."""

        def end() -> None:
            if node.host.lock_link.is_cut:
                self._end_locks_of(lambda owner: getattr(owner, "host", None) is node.host)

        self.world.after(self._lock_lease, end)

    def _end_locks_of(self, is_owner: Callable[[Any], bool]) -> None:
        self.site.is_lock_harmed = True
        self.site.server.unlock_all(is_owner)

    def kill_host(self, node: Node) -> None:
        """Its locks outlive it for a while."""
        host = node.host
        server = host.server
        locks = [(file, file.lock) for file in server.files() if getattr(file.lock, "host", None) is host]
        for each in self.site.nodes:
            if each.host is host:
                self.kill_node(each)
        host.died()
        host.link.lose_what_is_under_way()
        host.lock_link.lose_what_is_under_way()
        for file, owner in locks:
            file.lock = owner

        def end() -> None:
            for file, owner in locks:
                server.unlock(file, owner)

        self.world.after(self._lock_lease, self.until_mended(end))

    def lose_power(self) -> None:
        """Of everything: what was not synced may be gone."""
        for each in self.site.nodes:
            self.kill_host(each)
        for server in dict.fromkeys(each.host.server for each in self.site.nodes):
            server.lose_power()
