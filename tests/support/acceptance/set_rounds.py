"""Rounds with failures of a set of brokers. Clients work all the time.

At the start and at the end of each round all others follow one master.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.support.acceptance.broker_process import tandemmq, wait_until
from tests.support.acceptance.set_of_brokers import (
    SETTLED_SECONDS_MAX,
    T_MILLISECONDS,
    MemberProcess,
    SetOfBrokers,
    replaced,
)

T: Final = T_MILLISECONDS / 1_000
#: Share of packets that a bad network loses.
LOSS: Final = 0.15

Round = Callable[[SetOfBrokers, random.Random], None]


def _quorum(whole: SetOfBrokers) -> int:
    return len(whole.members) // 2 + 1


def _minority(whole: SetOfBrokers, dice: random.Random, *first: MemberProcess) -> list[MemberProcess]:
    """Return some members, including ``first``, so that the rest is a quorum."""
    rest = whole.others(*first)
    dice.shuffle(rest)
    return [*first, *rest][: dice.randint(max(1, len(first)), len(whole.members) - _quorum(whole))]


def _moment(dice: random.Random) -> None:
    """Sleep up to twice T, so that an election may be at any step, or not started, or complete."""
    time.sleep(dice.uniform(0, 2 * T))


def kill_of_the_master(whole: SetOfBrokers, dice: random.Random) -> None:
    master, _ = whole.settled()
    master.kill()
    whole.wait_master(whole.others(master))


def kill_of_a_minority(whole: SetOfBrokers, dice: random.Random) -> None:
    master, _ = whole.settled()
    dead = _minority(whole, dice, *([master] if dice.random() < 0.5 else []))
    for member in dead:
        member.kill()
    _moment(dice)
    whole.wait_master(whole.others(*dead))


def kill_of_a_quorum(whole: SetOfBrokers, dice: random.Random) -> None:
    """Kill a quorum. No member serves until they are started again."""
    whole.settled()
    for member in dice.sample(whole.members, _quorum(whole)):
        member.kill()
    _moment(dice)


def kill_of_all(whole: SetOfBrokers, dice: random.Random) -> None:
    whole.settled()
    for member in dice.sample(whole.members, len(whole.members)):
        member.kill()
        time.sleep(dice.uniform(0, 0.05))


def kill_of_one_after_the_other(whole: SetOfBrokers, dice: random.Random) -> None:
    """Kill each new master soon, and start it again when the next one is master."""
    whole.settled()
    for _ in range(3):
        master = whole.wait_master()
        time.sleep(dice.uniform(0, 0.3))
        master.kill()
        _moment(dice)
        master.start()


def end_of_the_master(whole: SetOfBrokers, dice: random.Random) -> None:
    """End the master by SIGTERM, so that it hands over."""
    master, _ = whole.settled()
    assert master.terminate() == 0
    whole.wait_master(whole.others(master))


def sleep_of_the_master(whole: SetOfBrokers, dice: random.Random) -> None:
    master, _ = whole.settled()
    master.kill(signal.SIGSTOP)
    second = whole.wait_master(whole.others(master))
    if dice.random() < 0.5:
        second.kill()
    _moment(dice)
    master.kill(signal.SIGCONT)


def naps_of_anybody(whole: SetOfBrokers, dice: random.Random) -> None:
    whole.settled()
    for _ in range(4):
        member = dice.choice(whole.members)
        member.kill(signal.SIGSTOP)
        time.sleep(dice.uniform(0, 2 * T))
        member.kill(signal.SIGCONT)


# ---- ZooKeeper


def zookeeper_dead(whole: SetOfBrokers, dice: random.Random) -> None:
    """The set elects a master while ZooKeeper is dead."""
    master, _ = whole.settled()
    for server in whole.zookeepers:
        server.kill()
    _moment(dice)
    master.kill()
    whole.wait_master(whole.others(master))
    for server in whole.zookeepers:
        server.start()


def zookeeper_empty(whole: SetOfBrokers, dice: random.Random) -> None:
    master, _ = whole.settled()
    for server in whole.zookeepers:
        server.kill()
        server.empty()
    for server in whole.zookeepers:
        server.start()
    if dice.random() < 0.5:
        master.kill()


def zookeeper_restored(whole: SetOfBrokers, dice: random.Random) -> None:
    """Restore ZooKeeper's data of a few elections before."""
    master, _ = whole.settled()
    backups = []
    for server in whole.zookeepers:
        server.kill()
        backups.append(server.back_up())
    for server in whole.zookeepers:
        server.start()
    master.kill()
    whole.wait_master(whole.others(master))
    for server, backup in zip(whole.zookeepers, backups, strict=True):
        server.kill()
        server.restore(backup)
    for server in whole.zookeepers:
        server.start()


# ---- disks


def disk_replaced(whole: SetOfBrokers, dice: random.Random) -> None:
    _becomes_another_store(whole, dice, MemberProcess.replace_disk)


def promise_lost(whole: SetOfBrokers, dice: random.Random) -> None:
    _becomes_another_store(whole, dice, MemberProcess.lose_promise)


def _becomes_another_store(whole: SetOfBrokers, dice: random.Random, lose: Callable[[MemberProcess], object]) -> None:
    """A member loses its identity: it starts as a learner, and replaces its former entry."""
    whole.settled()
    member = dice.choice(whole.members)
    lost = member.replication()["store"]
    member.kill()
    lose(member)
    _moment(dice)
    member.start()
    replaced(whole, member, lost)


def disk_restored(whole: SetOfBrokers, dice: random.Random) -> None:
    """Restore a disk from a backup: the others refuse it because they know a later life, until its promise file is
    removed."""
    whole.settled()
    member = dice.choice(whole.members)
    lost = member.replication()["store"]
    member.kill()
    backup = member.back_up()
    member.start()
    whole.settled()
    member.kill()
    whole.wait_master(whole.others(member))
    member.restore(backup)
    member.start()
    wait_until(member.replication, "it answers", SETTLED_SECONDS_MAX)
    time.sleep(2 * T)
    assert not member.replication()["links"], "no member accepts an older life"
    member.kill()
    member.lose_promise()
    member.start()
    replaced(whole, member, lost)


def snapshot_restored(whole: SetOfBrokers, dice: random.Random) -> None:
    """Restore a snapshot of the current life: the member is accepted, and votes again when it has its former data. Only
    the current master knows how much that is. Messages acknowledged since the snapshot fill files that stay; files with
    little content are reclaimed, and no member needs them."""
    master, rest = whole.settled()
    epoch = master.replication()["epoch"]
    member = dice.choice(rest)
    snapshot = member.snapshot()
    brokers = ",".join(f"stomp://{host}:{port}" for host, port in whole.addresses)
    sent = tandemmq("send", "snapshots", "x" * 20_000, "--count", "100", "--url", f"failover:({brokers})")
    assert sent.returncode == 0, sent.stderr
    kept = master.replication()["position"][1:]
    wait_until(lambda: member.replication()["final_here"] >= kept, "it acknowledges more", SETTLED_SECONDS_MAX)
    _moment(dice)
    member.kill()
    member.restore(snapshot)
    found = "this disk has less than it had acknowledged"
    times = member.log.read_text().count(found)
    member.start()

    def is_found() -> bool:
        return member.log.read_text().count(found) > times or master.replication().get("epoch") != epoch

    wait_until(is_found, f"{member.node} says so", SETTLED_SECONDS_MAX)


def disks_rot(whole: SetOfBrokers, dice: random.Random) -> None:
    """Change one byte on some disks, each in a different sealed file. The copies of the others repair it."""
    whole.settled()
    contents = {member: member.content() for member in whole.members}
    files = sorted(set.intersection(*(set(content) for content in contents.values())))[:-1]
    dice.shuffle(files)
    rotten = dict(zip(dice.sample(whole.members, dice.randint(1, len(whole.members))), files, strict=False))
    for member, file in rotten.items():
        good, at = contents[member][file], dice.randrange(len(contents[member][file]))
        print(f"{member.node}: db-{file}.log changes at {at} of {len(good)}", flush=True)
        with open(member.directory / f"db-{file}.log", "r+b") as changed:
            changed.seek(at)
            changed.write(bytes([good[at] ^ 1 << dice.randrange(8)]))
        if dice.random() < 0.5:
            member.kill()
    _moment(dice)
    whole.restart_the_dead()

    def is_repaired() -> bool:
        now = {member: member.content().get(file) for member, file in rotten.items()}
        return all(now[member] in (None, contents[member][file]) for member, file in rotten.items())

    wait_until(is_repaired, "all is repaired, or given up", SETTLED_SECONDS_MAX)


def disk_cloned(whole: SetOfBrokers, dice: random.Random) -> None:
    """Run a disk and its clone: no member accepts either of them, until both have a new identity."""
    cloned = dice.choice(whole.settled()[1])
    others = whole.others(cloned)
    store = str(cloned.replication()["store"])
    cloned.kill()
    clone = whole.add_member(f"clone-{dice.randrange(1 << 32):08x}")
    whole.members.remove(clone)
    shutil.copytree(cloned.directory, clone.directory)
    try:
        cloned.start()
        clone.start()

        def is_reported_by_all() -> bool:
            reports = [str(other.replication().get("twins")) for other in others]
            return all(f"store {store} is used" in each and f"{clone.node} at" in each for each in reports)

        wait_until(is_reported_by_all, "all other members report it", SETTLED_SECONDS_MAX)
        for member in (cloned, clone):
            wait_until(lambda: not member.replication().get("links", True), "no member accepts it", SETTLED_SECONDS_MAX)  # noqa: B023
        whole.settled(others)
    finally:
        clone.stop()
    cloned.kill()
    cloned.lose_promise()
    cloned.start()
    replaced(whole, cloned, store)


def fill_up(volume: Path) -> Path:
    """Fill the volume with a file."""
    filler = volume / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while file.write(b"f" * size) == size:
                    pass
    return filler


def disks_full(whole: SetOfBrokers, dice: random.Random) -> None:
    """Fill the disks of a few members, which may then be killed, and free the space later."""
    master, _ = whole.settled()
    few = _minority(whole, dice, *([master] if dice.random() < 0.5 else []))
    fillers = [fill_up(member.directory.parent) for member in few]
    _moment(dice)
    if dice.random() < 0.3:
        few[0].kill()
    whole.wait_master()
    _moment(dice)
    for filler in fillers:
        filler.unlink()


# ---- names


def all_renamed(whole: SetOfBrokers, dice: random.Random) -> None:
    """Kill all members, and start them with new names, or with the names of others."""
    whole.settled()
    former = [(member.replication()["store"], member.node) for member in whole.members]
    names = [name for _, name in former]
    if dice.random() < 0.5:
        names = [f"host-{dice.randrange(1 << 32):08x}" for _ in names]
    for member in whole.members:
        member.kill()
    for member, name in zip(whole.members, [*names[1:], names[0]], strict=True):
        whole.rename(member, name)
        member.start()

    def can_talk() -> bool:
        return sum(bool(member.replication().get("links")) for member in whole.members) >= _quorum(whole)

    wait_until(can_talk, "a quorum can talk", SETTLED_SECONDS_MAX)
    began = time.monotonic()
    whole.wait_master()
    print(f"{', '.join(names)}: a master {time.monotonic() - began:.2f} s after they can talk, T {T:g} s", flush=True)
    whole.settled()
    found = [member.replication() for member in whole.members]
    assert [(each["store"], each["was"]) for each in found] == former
    assert all(each["is_voter"] for each in found)


# ---- the network


def _hear_no_more(ones: list[MemberProcess], others: list[MemberProcess]) -> None:
    """Drop all packets from ``others`` to ``ones``."""
    for member in ones:
        for other in others:
            assert member.host is not None, "a round for a bridge"
            member.host.drop(other.address)


def _heal(whole: SetOfBrokers) -> None:
    assert whole.bridge is not None, "a round for a bridge"
    whole.bridge.heal()


def master_cut_off(whole: SetOfBrokers, dice: random.Random) -> None:
    """Cut off the master and its clients, with or without a few other members."""
    master, _ = whole.settled()
    few = _minority(whole, dice, master)
    rest = whole.others(*few)
    _hear_no_more(few, rest)
    _hear_no_more(rest, few)
    whole.wait_master(rest)
    _moment(dice)
    _heal(whole)


def cut_in_pieces(whole: SetOfBrokers, dice: random.Random) -> None:
    """Cut all connections, so that there is no quorum."""
    whole.settled()
    for member in whole.members:
        _hear_no_more([member], whole.others(member))
    time.sleep(2 * T)
    _moment(dice)
    _heal(whole)


def one_way(whole: SetOfBrokers, dice: random.Random) -> None:
    """A few members do not receive from the rest, or the rest not from them."""
    master, _ = whole.settled()
    few = _minority(whole, dice, *([master] if dice.random() < 0.5 else []))
    rest = whole.others(*few)
    if dice.random() < 0.5:
        _hear_no_more(few, rest)
    else:
        _hear_no_more(rest, few)
    _moment(dice)
    whole.wait_master()
    _moment(dice)
    _heal(whole)


def not_reached_by_all(whole: SetOfBrokers, dice: random.Random) -> None:
    """Two members cannot reach each other; both reach all others."""
    master, rest = whole.settled()
    other = dice.choice(rest)
    _hear_no_more([master], [other])
    _hear_no_more([other], [master])
    time.sleep(2 * T)
    _moment(dice)
    _heal(whole)


def cannot_be_dialed(whole: SetOfBrokers, dice: random.Random) -> None:
    """A few members can connect to the others, but the others cannot connect to them."""
    master, _ = whole.settled()
    for member in _minority(whole, dice, *([master] if dice.random() < 0.5 else [])):
        for other in whole.others(member):
            assert member.host is not None, "a round for a bridge"
            member.host.drop_dials(other.address)
    time.sleep(2 * T)
    _moment(dice)
    _heal(whole)


def flapping(whole: SetOfBrokers, dice: random.Random) -> None:
    """Cut and restore links repeatedly."""
    whole.settled()
    for _ in range(5):
        one, other = dice.sample(whole.members, 2)
        _hear_no_more([one], [other])
        time.sleep(dice.uniform(0, T))
        if dice.random() < 0.5:
            _heal(whole)
    _heal(whole)


def bad_network(whole: SetOfBrokers, dice: random.Random) -> None:
    """Lose packets on all hosts, so that retransmitted data comes late."""
    master, _ = whole.settled()
    for member in whole.members:
        assert member.host is not None, "a round for a bridge"
        member.host.lose(LOSS)
    time.sleep(2 * T)
    if dice.random() < 0.5:
        master.kill()
    _moment(dice)
    _heal(whole)


def zookeeper_out_of_reach(whole: SetOfBrokers, dice: random.Random) -> None:
    """Cut the connection to ZooKeeper, of the master or of all members."""
    master, _ = whole.settled()
    assert whole.bridge is not None, "a round for a bridge"
    for member in [master] if dice.random() < 0.5 else whole.members:
        for server in whole.zookeepers:
            assert member.host is not None, "a round for a bridge"
            member.host.drop_port(whole.bridge.address, server.port)
    time.sleep(3 * T)
    assert (master.status() or {}).get("role") == "master", "it stays master without ZooKeeper"
    if dice.random() < 0.5:
        master.kill()
        whole.wait_master(whole.others(master))
    _heal(whole)


ANYWHERE: dict[str, tuple[Round, int]] = {
    "kill of the master": (kill_of_the_master, 3),
    "kill of a minority": (kill_of_a_minority, 2),
    "kill of a quorum": (kill_of_a_quorum, 1),
    "kill of all": (kill_of_all, 1),
    "kill of one after the other": (kill_of_one_after_the_other, 2),
    "end of the master": (end_of_the_master, 1),
    "sleep of the master": (sleep_of_the_master, 2),
    "naps of anybody": (naps_of_anybody, 1),
    "ZooKeeper dead": (zookeeper_dead, 1),
    "ZooKeeper empty": (zookeeper_empty, 1),
    "ZooKeeper restored": (zookeeper_restored, 1),
    "disk replaced": (disk_replaced, 1),
    "promise lost": (promise_lost, 1),
    "disk restored": (disk_restored, 1),
    "snapshot restored": (snapshot_restored, 1),
    "disk cloned": (disk_cloned, 1),
    "disks rot": (disks_rot, 1),
    "all renamed": (all_renamed, 1),
}
#: Rounds for nodes with separate volumes.
ON_VOLUMES: dict[str, tuple[Round, int]] = {"disks full": (disks_full, 2)}
ON_A_BRIDGE: dict[str, tuple[Round, int]] = {
    "master cut off": (master_cut_off, 3),
    "cut in pieces": (cut_in_pieces, 1),
    "one way": (one_way, 2),
    "not reached by all": (not_reached_by_all, 2),
    "cannot be dialed": (cannot_be_dialed, 1),
    "flapping": (flapping, 2),
    "bad network": (bad_network, 1),
    "ZooKeeper out of reach": (zookeeper_out_of_reach, 1),
}


class Played:
    """The rounds that were played."""

    def __init__(self) -> None:
        self.rounds: Counter[str] = Counter()

    def play(self, whole: SetOfBrokers, kinds: dict[str, tuple[Round, int]], name: str, dice: random.Random) -> None:
        """Play one round, until one member is master and all others follow."""
        try:
            kinds[name][0](whole, dice)
            whole.restart_the_dead()
            whole.settled()
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}\n{whole.report()}") from error
        self.rounds[name] += 1
