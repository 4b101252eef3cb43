"""What goes wrong, when, and for how long: drawn from a seed, done to a running world, and mended in the end.

nfs-pause    all calls of one host to the volume hang for a while, then complete; some are answered twice
lock-steal   the server forgets a lock, or grants it twice; the lock file is deleted or replaced
clock-step   a host's wall clock, or the database's, jumps by an hour
disk-full    the volume fills up, or reaches a quota that its free bytes do not show
partition    a host is cut off from volume, database, clients, or several of them
kill         a process is killed, or stopped (SIGSTOP) and continued; a host dies; all lose power at once
disk-error   a write, or a sync, fails once, and what was not synced is gone
handover     an operator asks the master to hand over
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.simulate.database import Database
from broker.simulate.kernel import World
from broker.simulate.link import Link
from broker.simulate.node import Node
from broker.simulate.server import Server

HOUR: Final = 3600.0
#: A pause lasts so long at most; most are short.
PAUSE_SECONDS_MAX: Final = 30.0
#: A server lets go of a lock so long after its host fell silent.
LOCK_LEASE_SECONDS: Final = (1.0, 10.0)
#: Of its calls, a host whose volume pauses has so many answered twice.
REPEAT_SHARE: Final = 0.2
#: Of the calls of a host whose network loses packets, so many take seconds, each by itself.
STALL_SHARE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Site:
    """All that faults are done to. ``database_links`` by broker."""

    world: World
    server: Server
    nodes: Sequence[Node]
    database: Database
    database_links: dict[str, Link]
    directory: str
    tell: Callable[[str], None]


class Faults:
    """Between now and ``seconds`` from now ``count`` faults of these kinds begin. ``mend`` ends all of them."""

    def __init__(self, site: Site, kinds: Sequence[str], count: int, seconds: float) -> None:
        self._site = site
        self._mending: list[Callable[[], None]] = []
        self._lock_lease = site.world.random.uniform(*LOCK_LEASE_SECONDS)
        chance = site.world.random
        for _ in range(count if kinds else 0):
            kind = chance.choice(kinds)
            site.world.after(seconds * chance.random(), lambda kind=kind: self._begin(kind))  # type: ignore[misc]
        self._is_over = False

    def _begin(self, kind: str) -> None:
        if not self._is_over:
            KINDS[kind](self)

    def mend(self) -> None:
        """Everything works again, from now on."""
        self._is_over = True
        mending, self._mending = self._mending, []
        for mend in mending:
            mend()

    def _for_a_while(self, what: str, mend: Callable[[], None]) -> None:
        """Say it, and undo it in time."""
        chance = self._site.world.random
        seconds = PAUSE_SECONDS_MAX * chance.random() ** 3 + 0.05
        self._site.tell(f"{what} for {seconds:.2f} s")
        self._mending.append(mend)
        self._site.world.after(seconds, mend)

    def _some_node(self) -> Node:
        """A master, more often than not: there is more to break."""
        chance = self._site.world.random
        masters = [node for node in self._site.nodes if node.is_master]
        return chance.choice(masters if masters and chance.random() < 0.7 else self._site.nodes)

    # ---- the kinds

    def nfs_pause(self) -> None:
        host = self._some_node().host

        def mend() -> None:
            host.link.mend()
            host.link.repeat_share = host.link.stall_share = 0.0

        if self._site.world.random.random() < 0.4:
            host.link.stall_share = STALL_SHARE
            self._for_a_while(f"the volume stalls now and then for {host.name}", mend)
            return

        host.link.cut()
        host.link.repeat_share = REPEAT_SHARE
        self._for_a_while(f"the volume hangs for {host.name}", mend)

    def lock_steal(self) -> None:
        site = self._site
        chance = site.world.random
        how = chance.choice(("forgotten", "granted twice", "deleted", "replaced", "row deleted"))
        site.tell(f"the lock is {how}")
        path = f"{site.directory}/lock"
        if how == "forgotten":
            site.server.unlock_all(lambda _: True)
        elif how == "granted twice":
            site.server.grants_next_lock = True
            self._mending.append(lambda: setattr(site.server, "grants_next_lock", False))
        elif how == "row deleted":
            site.database.name, site.database.ends_ms = None, None
        else:
            try:
                site.server.unlink(path)
            except OSError:
                return  # nobody ever took it
            if how == "replaced":
                site.server.closed(site.server.open(path, 0o100))

    def clock_step(self) -> None:
        site = self._site
        step = site.world.random.choice((-HOUR, HOUR))
        if site.world.random.random() < 0.5:
            site.database.wall_offset += step
            site.tell(f"the database's clock jumps by {step:+g} s")
        else:
            node = self._some_node()
            node.host.wall_offset += step
            site.tell(f"the clock of {node.host.name} jumps by {step:+g} s")

    def disk_full(self) -> None:
        server = self._site.server
        if self._site.world.random.random() < 0.3:
            server.quota = server.used + self._site.world.random.randint(0, 40_000)
            self._for_a_while("a quota is reached", lambda: setattr(server, "quota", None))
        else:
            server.filler = max(0, server.free - self._site.world.random.randint(0, 100_000))
            self._for_a_while("the volume fills up", lambda: setattr(server, "filler", 0))

    def partition(self) -> None:
        node = self._some_node()
        chance = self._site.world.random
        parts = [part for part in ("volume", "database", "clients") if chance.random() < 0.6]
        if "volume" in parts:
            node.host.link.cut()
            self._lose_locks_later(node)
        if "database" in parts:
            self._site.database_links[node.name].cut()
        if "clients" in parts:
            node.is_reachable = False

        def mend() -> None:
            node.host.link.mend()
            self._site.database_links[node.name].mend()
            node.become_reachable()

        if parts:
            self._for_a_while(f"{node.name} is cut off from {', '.join(parts)}", mend)

    def _lose_locks_later(self, node: Node) -> None:
        """The server ends the locks of a host that stays silent (NFSv4: its lease)."""

        def end() -> None:
            if node.host.link.is_cut:
                self._site.server.unlock_all(lambda owner: getattr(owner, "host", None) is node.host)

        self._site.world.after(self._lock_lease, end)

    def kill(self) -> None:
        how = self._site.world.random.choice(("killed", "killed", "stopped", "stopped", "its host", "power"))
        node = self._some_node()
        if how == "killed":
            self._site.tell(f"{node.name} is killed")
            node.kill(self._restart_seconds())
        elif how == "stopped":
            self._stop(node)
        elif how == "its host":
            self._site.tell(f"{node.host.name} dies")
            self._kill_host(node)
        else:
            self._site.tell("everything loses power")
            for each in self._site.nodes:
                self._kill_host(each)
            self._site.server.lose_power()

    def _stop(self, node: Node) -> None:
        process = node.process
        if process is not None:
            process.pause()
            self._for_a_while(f"{node.name} is stopped", process.resume)

    def _kill_host(self, node: Node) -> None:
        """Its locks outlive it for a while."""
        host, server = node.host, self._site.server
        locks = [(file, file.lock) for file in server.files() if getattr(file.lock, "host", None) is host]
        for each in self._site.nodes:
            if each.host is host:
                each.kill(self._restart_seconds())
        host.died()
        host.link.lose_what_is_under_way()
        for file, owner in locks:
            file.lock = owner

        def end() -> None:
            for file, owner in locks:
                server.unlock(file, owner)

        self._site.world.after(self._lock_lease, end)
        self._mending.append(end)

    def _restart_seconds(self) -> float:
        return 0.5 + 5.0 * self._site.world.random.random()

    def disk_error(self) -> None:
        node = self._some_node()
        verb = self._site.world.random.choice(("fsync", "pwrite", "fsync", "link", "stat", "open"))
        node.host.failing[verb] = self._site.world.random.choice((errno.EIO, errno.EIO, errno.ESTALE))
        self._site.tell(f"the next {verb} of {node.host.name} fails")
        self._mending.append(lambda: node.host.failing.clear())

    def handover(self) -> None:
        node = self._some_node()
        self._site.tell(f"{node.name} is asked to hand over")
        node.hand_over()


KINDS: Final[dict[str, Callable[[Faults], None]]] = {
    "nfs-pause": Faults.nfs_pause,
    "lock-steal": Faults.lock_steal,
    "clock-step": Faults.clock_step,
    "disk-full": Faults.disk_full,
    "partition": Faults.partition,
    "kill": Faults.kill,
    "disk-error": Faults.disk_error,
    "handover": Faults.handover,
}
