"""Faults of a set: of its members, their disks, the network between them, and the directory.

kill               a process is killed, or stopped (SIGSTOP) and continued
power              one host dies with its unsynced data, or all of them at once
disk-error         a sync, write, link, stat or open of one host fails, and unsynced data is gone
disk-full          a disk fills up, or reaches a quota
disk-hang          all calls of one disk hang for a while
partition          a host, or a pair of hosts, is cut off: both ways, or one way only
links              connections are reset, ways become slow
directory          ZooKeeper is out of reach of one host, or gone; it comes back empty, or in a former state
rot                a disk changes a byte of a sealed file that all others have
handover           an operator requests a handover of the master
renamed            all members come back with their disks, other names and other addresses
disk-lost          a host comes back with an empty disk; the operator removes the old store and adds the new one
promise-restored   a promise file is put back from an old copy; the operator takes it away after a while
vote               a node that voted is killed and comes back, perhaps with an old promise file, where its vote counts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, cast

from tandemmq.simulator.faults import Begin, Faults, Site
from tandemmq.simulator.kinds import disk_error, disk_full, handover
from tandemmq.simulator.member_directory import Registry
from tandemmq.simulator.member_network import Wires
from tandemmq.simulator.node import Node
from tandemmq.simulator.set_node import SetNode
from tandemmq.simulator.set_votes import SecondVote

#: Longest delay of a slow way.
SLOW_SECONDS_MAX: Final = 0.5


@dataclass(slots=True)
class SetSite(Site):
    """Site of a set. ``lost``: nodes whose votes are lost, each with its former store, until the operator has repaired
    that."""

    _: KW_ONLY
    wires: Wires
    registry: Registry
    lost: dict[str, str | None] = field(default_factory=dict)
    restored: dict[str, float] = field(default_factory=dict)  # name -> when its old promise file was put back
    #: Called with the elected node, and with a function that tells whether a node voted for it.
    on_elected: Callable[[SetNode, Callable[[SetNode], bool]], None] | None = None

    @property
    def members(self) -> list[SetNode]:
        return [cast("SetNode", node) for node in self.nodes]

    @property
    def may_lose_a_vote(self) -> bool:
        """Return whether a quorum of disks survives even then."""
        return len(self.lost) < (len(self.nodes) - 1) // 2


def _site(faults: Faults) -> SetSite:
    return cast("SetSite", faults.site)


def _node(faults: Faults) -> SetNode:
    return cast("SetNode", faults.some_node())


def kill(faults: Faults) -> None:
    node = _node(faults)
    if node.process is None:
        return
    if faults.world.random.random() < 0.5:
        faults.happened("kill", f"{node.name} is killed")
        faults.kill_node(node)
    else:
        faults.for_a_while("kill", f"{node.name} is stopped", faults.pause(node))


def power(faults: Faults) -> None:
    if faults.world.random.random() < 0.3:
        faults.happened("power", "everything loses power")
        for node in faults.site.nodes:
            _as_member(node).kill_with_host(faults.restart_seconds())
    else:
        power_of_one(faults)


def power_of_one(faults: Faults) -> None:
    node = _node(faults)
    if node.options.is_memory and not _all_follow(_site(faults)):
        return  # a quorum could lack updates that are only in memories
    faults.happened("power", f"{node.host.name} loses power")
    node.kill_with_host(faults.restart_seconds())


def _all_follow(site: SetSite) -> bool:
    """Return whether a node leads, and all others have the same content."""
    terms = [node.replica.state.term for node in map(_as_member, site.nodes) if node.replica is not None]
    leading = [term for term in terms if term is not None and term.has_lease]
    if len(leading) != 1 or len(terms) < len(site.nodes) or site.wires.cut or site.mending:
        return False
    streams = leading[0].streams.values()
    return len(streams) == len(site.nodes) - 1 and all(stream.is_live for stream in streams)


def _as_member(node: Node) -> SetNode:
    return cast("SetNode", node)


def disk_hang(faults: Faults) -> None:
    host = _node(faults).host
    host.cut()
    faults.for_a_while("disk-hang", f"the disk of {host.name} hangs", host.mend)


def partition(faults: Faults) -> None:
    site, chance = _site(faults), faults.world.random
    node = _node(faults)
    here = node.host.name
    others = [each.host.name for each in site.nodes if each is not node]
    if chance.random() < 0.3:
        others = [chance.choice(others)]
    how = chance.choice(("both ways", "both ways", "outwards", "inwards"))
    ways = [(here, other) for other in others if how != "inwards"]
    ways += [(other, here) for other in others if how != "outwards"]
    ways = [way for way in ways if way not in site.wires.cut]
    site.wires.cut.update(ways)
    is_cut_from_clients = how == "both ways" and chance.random() < 0.5
    if is_cut_from_clients:
        node.is_reachable = False
    if is_without_directory := chance.random() < 0.5:
        site.registry.unreachable.add(here)

    def mend() -> None:
        site.wires.cut.difference_update(ways)
        site.wires.resume()
        if is_cut_from_clients:
            node.become_reachable()
        if is_without_directory:
            site.registry.unreachable.discard(here)

    faults.for_a_while("partition", f"{here} is cut off from {', '.join(others)}, {how}", mend)


def links(faults: Faults) -> None:
    site, chance = _site(faults), faults.world.random
    if chance.random() < 0.5:
        for _ in range(chance.randint(1, 6)):
            faults.world.after(chance.random(), site.wires.break_some)
        faults.happened("links", "connections are reset")
        return
    hosts = [each.host.name for each in site.nodes]
    ways = [(source, target) for source in hosts for target in hosts if source != target and chance.random() < 0.3]
    for way in ways:
        site.wires.slow[way] = SLOW_SECONDS_MAX * chance.random()

    def mend() -> None:
        for way in ways:
            site.wires.slow.pop(way, None)

    faults.for_a_while("links", f"{len(ways)} ways are slow", mend)


def directory(faults: Faults) -> None:
    site, chance = _site(faults), faults.world.random
    registry = site.registry
    how = chance.choice(("out of reach", "gone", "emptied", "restored"))
    if how == "out of reach":
        name = _node(faults).host.name
        registry.unreachable.add(name)
        mend = lambda: registry.unreachable.discard(name)  # noqa: E731
        faults.for_a_while("directory", f"the directory is out of reach of {name}", mend)
        return
    then = dict(registry.entries())
    if how == "emptied":
        then = {}
    if how == "gone":
        registry.is_down = True
        faults.for_a_while("directory", "the directory is gone", lambda: registry.restart(registry.entries()))
    else:
        # The restored state is as old as the moment at which it was chosen.
        faults.happened("directory", f"the directory is to be {how}")
        faults.world.after(0.0 if how == "emptied" else 5 * chance.random(), lambda: registry.restart(then))


def renamed(faults: Faults) -> None:
    faults.happened("renamed", "all members get other names")
    for node in _site(faults).members:
        node.rename(faults.restart_seconds())


def rot(faults: Faults) -> None:
    site, node, chance = _site(faults), _node(faults), faults.world.random
    copies = [each.journal for each in site.members]
    mine = node.journal
    common = sorted(set.intersection(*({*files} for files in copies)))[:-1]
    if site.lost or not common:
        return
    name = chance.choice(common)
    file = mine[name]
    used = len(file.data.rstrip(b"\0"))
    at = chance.randrange(max(1, used))
    # No part of it is damaged elsewhere, or not on a disk yet.
    if file.unstable or any(files[name].data[:used] != file.data[:used] for files in copies):
        return
    faults.happened("rot", f"a byte of {name} of {node.host.name} changes")
    node.rotten.append((name, file, at, file.data[at]))
    file.data[at] ^= 1 << chance.randrange(8)
    file.version += 1


def disk_lost(faults: Faults) -> None:
    site, node = _site(faults), _node(faults)
    if node.name in site.lost or not site.may_lose_a_vote or node.replica is None:
        return
    site.lost[node.name] = node.replica.state.store
    faults.happened("disk-lost", f"the disk of {node.host.name} is lost")
    node.lose_disk(faults.restart_seconds())


def promise_restored(faults: Faults) -> None:
    site, node = _site(faults), _node(faults)
    if node.name in site.lost or not site.may_lose_a_vote or not node.has_old_promises or node.replica is None:
        return
    site.lost[node.name] = node.replica.state.store
    site.restored[node.name] = faults.world.now
    faults.happened("promise-restored", f"an old promise file of {node.name} is put back")
    node.restore_promise(faults.restart_seconds())


def vote(faults: Faults) -> None:
    site, chance = _site(faults), faults.world.random
    master = next((node for node in site.members if node.is_master), None)
    others = [node for node in site.members if node is not master]
    if master is None or site.on_elected is not None or site.lost:
        return
    chance.shuffle(others)
    voter, *rest = others
    restores = not voter.options.is_memory and chance.random() < 0.5
    SecondVote(faults, site, master, voter, rest[: (len(site.members) - 1) // 2], restores=restores)


_ALL: Final = (
    *(kill, power, disk_error, disk_full, disk_hang, partition, links, directory, handover),
    *(renamed, rot, disk_lost, promise_restored, vote),
)
SET_KINDS: Final[dict[str, Callable[[Faults], None]]] = {kind.__name__.replace("_", "-"): kind for kind in _ALL}
#: Faults of a set whose receipts do not wait for disks: at most one host may lose unsynced data.
SET_KINDS_OF_MEMORY: Final[Begin] = {**SET_KINDS, "power": power_of_one}
OF_MEMORY: Final = ("kill", "kill", "partition", "partition", "links", "directory", "handover", "renamed", "vote")
SET_MIXTURE: Final = ("kill", "kill", "power", "partition", "partition", *SET_KINDS)
