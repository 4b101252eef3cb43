"""Situations that broke the first design of replication, each played by real replicas in one process.

For situations that need processes see tests/acceptance/test_replicated_stories.py.
"""

# proves: replication-rules
# proves: answer-to-this-question, epoch-above-every-file, founded-by-all, followers-learn-the-end

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.replication import follower as follower_module
from tandemmq.broker.replication.copy import QUARANTINE
from tandemmq.broker.replication.quorum import ChangeRefused
from tandemmq.journal.errors import Deposed
from tandemmq.store.membership import PROMISE_FILE
from tandemmq.store.writer.journal_end import NoProof
from tests.support.crash.unwilling_disk import UnwillingDisk
from tests.support.replication.losing_disk import LosingDisk
from tests.support.replication.small_set import NewSet, SmallNode, SmallSet, T
from tests.support.replication.source_journal import SourceJournal

pytestmark = pytest.mark.promise("quorum-keeps-confirmed", "set-has-one-master")


def write_until_deposed(node: SmallNode) -> int:
    """Write until the master is deposed; return the number of confirmed messages."""
    for number in range(1_000_000):
        try:
            node.write(f"late-{number}")
        except (Deposed, NoProof):
            return number
    raise AssertionError("somebody deposes it")


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_sets_of_each_size_are_founded_and_survive_a_change_of_the_master(make: NewSet, replicas: int) -> None:
    whole = make(replicas)
    first = whole.begun()
    first.stop()
    first.start()
    second = whole.begun("b")
    assert second.content() == ["a", "b"]


def test_an_empty_pair_founds_nothing_before_the_node_with_the_journal_is_there(make: NewSet, tmp_path: Path) -> None:
    SourceJournal(tmp_path / "n2", 1, is_of_set=False).write("m")
    whole = make(left_out=("n2",))
    empty = [node for node in whole.nodes if node.name != "n2"]
    for node in empty:
        node.replica.try_acquire()
    whole.until(lambda: all("there are 2" in node.replica.status()["problem"] for node in empty), "they wait")
    third = whole.add("n2")
    first = whole.elect()
    assert first is third, "the one with the journal founds"
    whole.until_same()
    assert whole.nodes[0].content() == ["m"]


def test_two_journals_found_no_set(make: NewSet, tmp_path: Path) -> None:
    for name in ("n1", "n2"):
        SourceJournal(tmp_path / name, 1, is_of_set=False).write(f"of {name}")
    whole = make()

    def is_refused() -> bool:
        for node in whole.nodes:
            node.replica.try_acquire()
        return any("have a journal each" in node.replica.status()["problem"] for node in whole.nodes)

    whole.until(is_refused, "it says why")
    assert [node.content() for node in whole.nodes] == [[], ["of n1"], ["of n2"]]


def test_a_node_that_connected_during_a_disk_failure_is_met_afterwards(whole: SmallSet) -> None:
    a = whole.elect()
    b, c = whole.others(a)
    c.stop()
    b.stop()
    b.promise_disk = disk = UnwillingDisk("nothing")
    disk.is_unwilling = False
    b.start()
    whole.until(lambda: a.name in b.replica.status()["links"], "b is there")
    disk.is_unwilling = True
    c.start()
    whole.until(lambda: b.replica.state.is_promise_lost, "the life of c cannot be noted")
    assert c.name not in b.replica.status()["links"]
    disk.is_unwilling = False
    whole.until(lambda: c.name in b.replica.status()["links"], "b dials it again")
    assert b.replica.state.promise.lives[c.replica.state.store] == c.replica.state.promise.life


def lose(node: SmallNode) -> None:
    """Replace the disk of the node by an empty one."""
    node.stop()
    for path in node.directory.iterdir():
        if path.is_file():
            path.unlink()
    node.start()


def lose_journal(node: SmallNode) -> None:
    """Remove the journal. The promise file stays, as after a kill."""
    node.kill()
    for path in node.directory.glob("db-*.log"):
        path.unlink()
    node.start()


# proves: founding-ends-before-the-disk-counts, founding-ends-for-the-founder, missing-copy-is-not-whole
@pytest.mark.parametrize("lose", [lose, lose_journal])
@pytest.mark.parametrize("is_master", [False, True])
def test_a_lost_disk_is_no_voice(whole: SmallSet, lose: Callable[[SmallNode], None], is_master: bool) -> None:
    """B's disk is replaced, A pauses: B and C must not elect, for b is on A and B's old disk only."""
    a = whole.elect()
    b, c = whole.others(a)
    c.stop()
    a.write("b")
    whole.until_same(a, b)
    if is_master:
        a, b = b, a
    a.stop()
    lose(b)
    c.start()
    for _ in range(2):
        whole.until(lambda: b.name in c.replica.status()["links"], "they are connected")
        assert not b.replica.state.is_voter
    assert b.replica.state.promise.is_whole is (lose is not lose_journal), "a voter of that store waits for the rest"
    whole.until(lambda: _asks(c), "it stands")
    assert c.replica.state.term is None
    a.start()
    again = whole.begun("d")
    assert again.content() == ["b", "d"]
    assert again is a


def _asks(node: SmallNode) -> bool:
    """Check whether the node requested votes at least three times; it wants the mastership all the time."""
    node.replica.try_acquire()
    return node.replica.candidate.rounds >= 3


def test_a_node_without_its_promise_file_is_a_learner(whole: SmallSet) -> None:
    a = whole.begun()
    b, c = whole.others(a)
    b.stop()
    (b.directory / PROMISE_FILE).unlink()
    b.start()
    a.write("b")
    whole.until_same()
    assert not b.replica.state.is_voter
    c.stop()
    assert write_until_deposed(a) == 0, "a learner's disk does not count"


# proves: a-promise-outlives-a-name
def test_members_that_return_under_other_names_are_who_they_were(whole: SmallSet) -> None:
    """All nodes return at once, two with exchanged names and addresses: the directory identifies a node."""
    master = whole.begun()
    before = {node: (node.replica.state.store, node.name) for node in whole.nodes}
    for node in whole.nodes:
        node.kill()
    for node, name in zip(whole.nodes, ("n1", "n0", "elsewhere"), strict=True):
        node.name = name
        node.start()
    second = whole.begun("b")
    assert second.content() == ["a", "b"]
    for node in whole.nodes:
        status = node.replica.status()
        assert (status["store"], status["was"]) == before[node]
        assert (status["node"], status["is_voter"]) == (node.name, True)
        assert sorted(status["voters"].values()) == ["elsewhere", "n0", "n1"]
    assert master.replica.status()["was"] != master.name


@pytest.mark.parametrize("is_another_master", [False, True])
def test_a_disk_that_was_restored_within_one_life_is_found(
    whole: SmallSet, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_another_master: bool
) -> None:
    """Lives cannot tell: the one that runs is the next of that of the snapshot. Another master knows what all said."""
    master = whole.begun()
    victim, other = whole.others(master)
    shutil.copytree(victim.directory, tmp_path / "snapshot")
    master.write("b")
    whole.until_same()
    place = master.replica.state.position[1:]
    whole.until(
        lambda: master.replica.state.term.marks.places().get(victim.replica.state.store) == place, "it is on its disk"
    )
    master.begin_file()

    def is_known_to(node: SmallNode) -> bool:
        said = next(each["said"] for each in node.replica.overview()["members"] if each["node"] == victim.name)
        return bool(said and said["final_here"] > list(place))

    whole.until(lambda: is_known_to(master) and is_known_to(other), "it said what is final there")
    victim.kill()
    if is_another_master:
        master.leave()
        whole.elect(master, other)
    shutil.rmtree(victim.directory)
    shutil.copytree(tmp_path / "snapshot", victim.directory)
    victim.start()
    whole.until_same()
    whole.until(lambda: victim.replica.status()["is_whole"], "it is whole again")
    assert "came back with less than its disk had" in caplog.text
    assert "less than it had acknowledged" in caplog.text


# proves: two-voters-of-one-name-are-told-apart
def test_of_two_voters_by_one_name_none_is_removed_by_it(whole: SmallSet) -> None:
    master = whole.begun()
    gone, other = whole.others(master)
    former = other.name
    gone.kill()
    other.kill()
    other.name = gone.name
    other.start()
    whole.until(lambda: other.replica.state.store in master.replica.state.term.live_stores(), "it follows")
    for name, reason in ((gone.name, "2 voters are called"), (former, "is not a voter")):
        with pytest.raises(ChangeRefused, match=reason):
            master.replica.propose(remove=name)
    master.replica.propose(remove=gone.replica.state.store)


@pytest.mark.parametrize("starts_anew", [False, True], ids=["it goes on", "it starts anew"])
def test_a_follower_without_a_vote_returns_to_no_older_epoch(make: NewSet, starts_anew: bool) -> None:
    """C wins an epoch by {C, D, E} and sleeps; A wins the next by {A, D, E}; b is on A, B and D, and B was asked for
    no promise. C wakes, A and D die: B, C and E are a quorum, and only B has b."""
    whole = make(5)
    e = whole.begun("0")
    a, b, c, d = whole.others(e)
    join = whole.switch.join
    join({a.name, b.name}, {c.name, d.name, e.name})
    e.leave()
    whole.until(c.replica.try_acquire, "C is elected")
    epoch = c.epoch
    join({a.name, d.name, e.name})
    assert whole.elect(a).epoch > epoch
    join({a.name, d.name, e.name}, {a.name, b.name})
    whole.until(lambda: b.replica.status()["epoch"] == a.epoch, "B follows A")
    join({a.name, b.name, d.name})
    a.write("b")
    whole.until(lambda: b.content() == ["0", "b"], "B has it")
    assert e.content() == ["0"]
    promise = b.replica.state.promise
    assert (promise.epoch, promise.candidate) == (a.epoch, None), "to follow is to promise, to nobody in particular"

    if starts_anew:
        b.stop()
        b.start()
    for node in (a, d):
        node.kill()
    whole.switch.heal()
    with pytest.raises((Deposed, NoProof)):
        c.serve()
    c.leave()
    assert whole.elect(b, c, e) is b
    b.write("c")
    whole.until_same(b, c, e)
    assert c.content() == ["0", "b", "c"]


def synced_everywhere(whole: SmallSet) -> SmallNode:
    """A master that wrote "0"; each disk has it."""
    master = whole.elect()
    master.write("0")
    master.begin_file()
    place = master.replica.state.position[1:]
    whole.until(lambda: all(each.replica.state.copy.synced == place for each in whole.others(master)), "all sync")
    return master


def with_two_unsynced(whole: SmallSet, monkeypatch: pytest.MonkeyPatch) -> SmallNode:
    """A master whose "0" is on all disks. "1" and "2" are in all memories only, until ``monkeypatch`` is undone."""
    master = synced_everywhere(whole)
    monkeypatch.setattr(follower_module, "SYNC_SECONDS", float("inf"))
    master.write("1")
    master.write("2")
    whole.until_same()
    return master


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}], ids=["the first", "the second", "both"])
@pytest.mark.parametrize("is_master", [False, True], ids=["of a follower", "of the master"])
def test_a_power_loss_of_a_minority_loses_nothing_that_is_in_the_memory_of_a_quorum(
    make: NewSet, monkeypatch: pytest.MonkeyPatch, is_master: bool, lost: set[int]
) -> None:
    """Two batches were confirmed and synced nowhere; one of them may be on the disk without the other."""
    whole = make(sync="quorum_mem", disk=LosingDisk)
    a = with_two_unsynced(whole, monkeypatch)
    victim = a if is_master else whole.others(a)[0]
    path = Path(victim.files.path(victim.files.list()[-1]))
    assert victim.disk.unsynced(path) == 2
    victim.lose_power(lambda number: number in lost)
    monkeypatch.undo()
    whole.switch.isolate(victim.name)
    victim.start()
    whole.until(lambda: victim.replica.state.position.file, "it has read what is there")
    assert victim.content() == {(0,): ["0"], (1,): ["0", "1"], (0, 1): ["0"]}[tuple(sorted(lost))]
    assert victim.replica.state.position.end < whole.others(victim)[0].replica.state.position.end
    whole.switch.heal()
    master = whole.elect(*whole.others(victim)) if is_master else a
    master.write("3")
    whole.until_same()
    assert victim.content() == ["0", "1", "2", "3"]


def test_a_node_after_a_power_loss_counts_as_far_as_its_disk(make: NewSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch was only in memory; the batch behind it is on the disk. The master never returns: the
    third node, which has both, is elected with the vote of the one that lost power."""
    whole = make(sync="quorum_mem", disk=LosingDisk)
    a = with_two_unsynced(whole, monkeypatch)
    b, c = whole.others(a)
    b.lose_power(lambda number: number == 0)
    a.kill()
    monkeypatch.undo()
    b.start()
    assert whole.elect(b, c) is c
    c.write("3")
    whole.until_same(b, c)
    assert b.content() == ["0", "1", "2", "3"]


def test_one_unconfirmed_batch_ahead_and_gone_blocks_nobody(whole: SmallSet) -> None:
    """A is listed in the directory and cannot be reached: B and C elect all the same, and A cuts its batch later."""
    a = whole.begun()
    whole.switch.isolate(a.name)
    assert write_until_deposed(a) == 0
    assert len(a.content()) == 2
    second = whole.elect(*whole.others(a))
    second.write("b")
    whole.switch.heal()
    a.leave()
    whole.until_same()
    assert a.content() == ["a", "b"]
    assert list((a.directory / QUARANTINE).iterdir())


def test_without_a_directory_a_master_goes_on_and_another_is_elected(whole: SmallSet) -> None:
    """All sessions end at once, the servers lose their entries, and then the nodes cannot reach the servers."""
    a = whole.begun()
    whole.shared.forget_everything()
    for node in whole.nodes:
        node.members.lose_session()
        node.members.cut_off()
    epoch = a.epoch
    a.write("b")
    assert a.epoch == epoch
    a.stop()
    later = whole.elect(*whole.others(a))
    later.write("c")
    assert later.content() == ["a", "b", "c"]


class FailingOnce:
    """The real disk, whose next sync fails when ``fails`` is set."""

    fails = False

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def fdatasync(self, fd: int, /) -> None:
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "the disk is broken")


def test_a_follower_whose_disk_fails_once_follows_again(make: NewSet) -> None:
    whole = make(disk=FailingOnce)
    a = whole.begun()
    disk = whole.others(a)[0].disk
    disk.fails = True
    a.write("b")
    whole.until(lambda: not disk.fails, "it failed")
    a.write("c")
    whole.until_same()


# ---- nodes that may lead


def nobody_is_elected(whole: SmallSet, *nodes: SmallNode) -> bool:
    """Check that for a while no node is elected, although all are candidates."""
    until = whole.threads.monotonic() + 4 * T
    while whole.threads.monotonic() < until:
        if any(node.replica.try_acquire() for node in nodes):
            return False
        whole.threads.sleep(0.02)
    return True


def test_a_node_that_lost_its_promise_elects_nobody(whole: SmallSet) -> None:
    """b is on A and B. B loses its promise; A is away. C, which lacks b, must not lead by B's vote."""
    a = whole.elect()
    b, c = whole.others(a)
    a.write("before")
    whole.switch.isolate(c.name)
    a.write("b")
    b.stop()
    (b.directory / PROMISE_FILE).unlink()
    whole.switch.isolate(a.name)
    whole.switch.cut -= {pair for pair in whole.switch.cut if a.name not in pair}
    b.start()
    assert nobody_is_elected(whole, b, c)
    a.leave()
    whole.switch.heal()
    again = whole.elect(a, c)
    again.write("after")
    whole.until_same()
    assert again.content() == ["before", "b", "after"]


@pytest.mark.parametrize("is_both_ways", [True, False])
def test_a_node_that_does_not_hear_the_master_disturbs_no_other(whole: SmallSet, is_both_ways: bool) -> None:
    """C reaches B, and A reaches B. C would be a candidate with as much as B. B refuses: its master has a quorum."""
    a = whole.elect()
    b, c = whole.others(a)
    a.write("before")
    whole.until_same()
    epoch = a.epoch
    whole.switch.cut.add((a.name, c.name))
    if is_both_ways:
        whole.switch.cut.add((c.name, a.name))
    number, before = 0, c.replica.candidate.rounds

    def has_asked() -> bool:
        nonlocal number
        number += 1
        a.write(f"m{number}")
        assert not c.replica.try_acquire()
        return c.replica.candidate.rounds >= before + 3

    whole.until(has_asked, "it asked three times")
    assert (a.epoch, a.replica.state.leads) == (epoch, True)
    leaders = [node.replica.leader() for node in (a, b, c)]
    assert [leader and leader.node for leader in leaders] == [a.name, a.name, None]
    whole.switch.heal()
    whole.until_same()
    a.write("after")


def test_of_equals_the_heavier_leads_and_no_weight_blocks(whole: SmallSet) -> None:
    first = whole.begun()
    light, heavy = whole.others(first)
    heavy.stop()
    heavy.weight = 10
    heavy.start()
    whole.until(lambda: heavy.replica.status()["master"], "it follows")
    for node in (light, heavy):
        node.replica.try_acquire()  # from now on each would be master
    first.stop()
    second = whole.elect(light, heavy)
    assert second is heavy
    second.write("b")
    whole.until_same(light, heavy)
    # The heavier one is there, and is not wanted: the lighter one leads.
    heavy.leave()
    whole.elect(light).write("c")


def test_the_journal_and_no_configuration_determines_the_voters(whole: SmallSet) -> None:
    """Two nodes come, and all are told of five: they found no second set, and a voter with them is no quorum."""
    whole.begun()
    whole.replicas = 5
    learners = [whole.add("n3"), whole.add("n4")]
    for node in whole.others(*learners):
        node.stop()
        node.start()
    master = whole.elect()
    master.write("b")
    whole.until_same()
    assert [node.replica.state.is_voter for node in whole.nodes] == [True] * 3 + [False] * 2
    second, third = whole.others(master, *learners)
    for node in (second, master):  # in this order: the second and the third are a quorum
        whole.switch.isolate(node.name)
    assert nobody_is_elected(whole, third, *learners)
    master.leave()
    whole.switch.heal()
    whole.elect(master, third).write("c")
    whole.until_same()
    assert second.content() == ["a", "b", "c"]
