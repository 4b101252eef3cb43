"""The kinds of faults, and mixtures of them.

nfs-pause    all volume calls of one host hang for a while, then complete; some are answered twice
lock-steal   the server forgets a lock, or grants it twice; the lock file is deleted or replaced
clock-step   a host's wall clock, or the database's, jumps by an hour
disk-full    the volume fills up, or reaches a quota that its free bytes do not show
partition    a host is cut off from volume, database, clients, or several of them
kill         a process is killed, or stopped (SIGSTOP) and continued; a host dies; all lose power at once
disk-error   a call of the disk fails once; a sync loses unsynced data
handover     an operator requests a handover of the master
promotion    a master goes, and up to three promotions after it die, fail, sleep or hang at a step (step_faults)
hang         a host's volume, or its lock server, hangs from a step of a broker's life on (step_faults)
lock-twice   the lock is granted to one more broker, and both can prove that they have it (late_links)
late-link    a broker links its journal file into the gap that another one's reclaiming left (late_links)
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from tandemmq.simulator.faults import Faults
from tandemmq.simulator.late_links import late_link, lock_twice
from tandemmq.simulator.step_faults import hang, promotion

HOUR: Final = 3600.0
#: Part of the calls that are answered twice while a host's volume pauses.
REPEAT_SHARE: Final = 0.2
#: Part of the calls that take seconds, each by itself, while a host's network loses packets.
STALL_SHARE: Final = 0.02


def nfs_pause(faults: Faults) -> None:
    host = faults.some_node().host

    def mend() -> None:
        host.mend()
        host.link.repeat_share = host.link.stall_share = 0.0

    if faults.world.random.random() < 0.4:
        host.link.stall_share = STALL_SHARE
        faults.for_a_while("nfs-pause", f"the volume stalls now and then for {host.name}", mend)
        return
    host.cut()
    host.link.repeat_share = REPEAT_SHARE
    faults.for_a_while("nfs-pause", f"the volume hangs for {host.name}", mend)


def lock_steal(faults: Faults) -> None:
    site = faults.site
    how = faults.world.random.choice(
        ("forgotten", "granted twice", "deleted", "replaced", "row emptied", "row deleted")
    )
    path = f"{site.directory}/lock"
    site.is_lock_harmed = True
    if how == "forgotten":
        site.server.unlock_all(lambda _: True)
    elif how == "granted twice":
        site.server.grants_next_lock = True
        faults.until_mended(lambda: setattr(site.server, "grants_next_lock", False))
    elif how == "row emptied":
        site.database.empty_row()
    elif how == "row deleted":
        site.database.delete_row()
    else:
        try:
            site.server.unlink(path)
        except OSError:
            return  # it was never taken
        if how == "replaced":
            site.server.closed(site.server.open(path, 0o100))
    faults.happened("lock-steal", f"the lock is {how}")


def clock_step(faults: Faults) -> None:
    site = faults.site
    step = faults.world.random.choice((-HOUR, HOUR))
    if faults.world.random.random() < 0.5:
        site.is_lock_harmed = True
        site.database.wall_offset += step
        faults.happened("clock-step", f"the database's clock jumps by {step:+g} s")
    else:
        node = faults.some_node()
        node.host.wall_offset += step
        faults.happened("clock-step", f"the clock of {node.host.name} jumps by {step:+g} s")


def disk_full(faults: Faults) -> None:
    host, chance = faults.some_node().host, faults.world.random
    server = host.server
    if chance.random() < 0.3:
        server.quota = server.used + chance.randint(0, 40_000)
        what, undo = "reaches a quota", lambda: setattr(server, "quota", None)
    else:
        server.filler = max(0, server.free - chance.randint(0, 100_000))
        what, undo = "fills up", lambda: setattr(server, "filler", 0)
    faults.for_a_while("disk-full", f"the volume of {host.name} {what}", undo)


def partition(faults: Faults) -> None:
    node = faults.some_node()
    parts = [part for part in ("volume", "database", "clients") if faults.world.random.random() < 0.6]
    if "volume" in parts:
        node.host.cut()
        faults.lose_locks_later(node)
    if "database" in parts:
        faults.site.database_links[node.name].cut()
    if "clients" in parts:
        node.is_reachable = False

    def mend() -> None:
        node.host.mend()
        faults.site.database_links[node.name].mend()
        node.become_reachable()

    if parts:
        faults.for_a_while("partition", f"{node.name} is cut off from {', '.join(parts)}", mend)


def kill(faults: Faults) -> None:
    how = faults.world.random.choice(("killed", "killed", "stopped", "stopped", "its host", "power"))
    node = faults.some_node()
    if how == "power":
        faults.happened("kill", "everything loses power")
        faults.lose_power()
    elif node.process is None:
        return
    elif how == "killed":
        faults.happened("kill", f"{node.name} is killed")
        faults.kill_node(node)
    elif how == "stopped":
        faults.for_a_while("kill", f"{node.name} is stopped", faults.pause(node))
    else:
        faults.happened("kill", f"{node.host.name} dies")
        faults.kill_host(node)


def disk_error(faults: Faults) -> None:
    host = faults.some_node().host
    chance = faults.world.random
    verb = chance.choice(("fsync", "pwrite", "fsync", "link", "stat", "open", "unlink"))
    host.failing[verb] = chance.choice((errno.EIO, errno.EIO, errno.ESTALE))
    undo = faults.until_mended(host.failing.clear)

    def fails() -> None:
        faults.happened("disk-error", f"a {verb} of {host.name} fails")
        undo()

    host.on_failure = fails


def handover(faults: Faults) -> None:
    node = faults.some_node()
    if node.is_master:
        faults.happened("handover", f"{node.name} gets a request to hand over")
        node.hand_over()


_ALL: Final = (
    *(nfs_pause, lock_steal, clock_step, disk_full, partition, kill),
    *(disk_error, handover, promotion, hang),
)
_OF_LATE_LINKS: Final = (lock_twice, late_link)
KINDS: Final[dict[str, Callable[[Faults], None]]] = {
    kind.__name__.replace("_", "-"): kind for kind in (*_ALL, *_OF_LATE_LINKS)
}

NAMED: Final = ("nfs-pause", "lock-steal", "clock-step", "disk-full", "partition", "kill")
ALL: Final = tuple(KINDS)[: len(_ALL)]
#: Mixture of the worst faults, in proportion to their entries.
STORMS: Final = (
    *("promotion",) * 5,
    *("hang",) * 4,
    *("handover",) * 2,
    *("kill",) * 2,
    "nfs-pause",
    "partition",
    "lock-steal",
    "disk-error",
    "disk-full",
)
#: Mixture for three to five brokers, and a lock that is granted twice.
LATE: Final = ("late-link", "late-link", "lock-twice", "kill", "nfs-pause", "lock-steal", "disk-error", "handover")
MIXTURES: Final[dict[str, tuple[str, ...]]] = {"named": NAMED, "all": ALL, "storms": STORMS, "late": LATE}
MIXED: Final = "mixed"
#: Last digit of the seeds with late links in ``mixed``.
LATE_DIGIT: Final = 7


def mixture_of(seed: int, mixture: str) -> str:
    """Return the name of a seed's mixture: in ``mixed``, every other seed is a storm, one of ten has late links, and
    the others take turns."""
    if mixture != MIXED:
        return mixture
    if seed % 10 == LATE_DIGIT:
        return "late"
    return "storms" if seed % 2 == 0 else "all" if seed % 4 == 1 else "named"
