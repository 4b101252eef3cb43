"""Simulations with faults in sets, whose members have separate disks. Every promise holds, and a seed always gives the
same run.

The number of seeds is 12, or the number in TANDEMMQ_PROVE. The first seed is TANDEMMQ_SEED. To examine a failure, use
``tandemmq simulate --replicated --seed N --trace``.
"""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from tandemmq.broker.replication import election, peers, state
from tandemmq.broker.replication.copy import JournalCopy
from tandemmq.broker.replication.election import Voter
from tandemmq.broker.replication.member import SetAuthority
from tandemmq.broker.replication.promise import PromiseFile
from tandemmq.broker.replication.quorum import Marks, Voters
from tandemmq.broker.replication.state import ElectionTimer
from tandemmq.broker.replication.term import Term
from tandemmq.config.load import load
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter
from tandemmq.simulator.clients import Client
from tandemmq.simulator.parts import parts_of
from tandemmq.simulator.set_simulation import SetSimulation
from tandemmq.store.recovery.follow import Follower
from tests.model.simulator.test_broken_brokers import Break, Broken, first_broken, replaced
from tests.model.simulator.test_seeds import fingerprint_of_twice, no_promise_is_broken, simulate
from tests.support.prove import IS_PROOF, rounds

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.prove,
    pytest.mark.promise("simulator-finds-nothing", "quorum-keeps-confirmed"),
]

SEEDS = rounds(12, 20_000)
SEEDS_MAX = rounds(100, 1_000)
FIRST = int(os.environ.get("TANDEMMQ_SEED", "1"))


@pytest.mark.timeout(0 if IS_PROOF else 1800)
def test_no_promise_of_a_set_is_broken() -> None:
    no_promise_is_broken(SEEDS, "--replicated")


def test_a_seed_of_a_set_is_always_the_same_run() -> None:
    fingerprint_of_twice("--replicated")


# proves: a-promise-outlives-a-name
@pytest.mark.timeout(0 if IS_PROOF else 1800)
def test_a_set_whose_members_all_get_other_names_elects() -> None:
    """``set_checks`` requires a master within 2 T of the moment at which the members can communicate."""
    no_promise_is_broken(rounds(4, 1_000), "--replicated", "--faults", "renamed")


def test_there_are_as_many_members_as_were_asked_for() -> None:
    _, answer = simulate("--replicated", "--seed", str(FIRST), "--brokers", "5", "--faults", "none", "--seconds", "3")
    assert answer["happened"]["brokers"] == {"5": 1}


class Idle(SetSimulation):
    """Without clients. ``woken``: how often the replica of each node had a turn between 10 s and 15 s, and whether it
    followed all the time."""

    def _clients(self) -> list[Client]:
        self.woken: list[tuple[int, bool]] = []
        self.world.after(10.0, self._begin_to_count)
        return []

    def _begin_to_count(self) -> None:
        before = self._counted()
        self.world.after(5.0, lambda: self._end_to_count(before))

    def _end_to_count(self, before: list[tuple[int, bool]]) -> None:
        after = self._counted()
        self.woken = [(then[0] - first[0], then[1] and first[1]) for first, then in zip(before, after, strict=True)]

    def _counted(self) -> list[tuple[int, bool]]:
        counted = []
        for node in self.members:
            assert node.process is not None, "there are no faults"
            assert node.replica is not None, "it runs"
            turns = sum(each.turns for each in node.process.threads if each.name == "tandemmq-replica")
            counted.append((turns, node.replica.status()["role"] == "follower"))
        return counted


def test_who_follows_and_hears_nothing_new_wakes_up_seldom() -> None:
    simulation = Idle(FIRST, parts_of(load(None, {}, ())), (), brokers=3)
    assert not simulation.run().problems
    following = [turns for turns, has_followed in simulation.woken if has_followed]
    assert len(following) == 2
    # What the others ask and answer once a second; not fifty looks at a clock.
    assert max(following) <= 5 * 15


# ---- each rule left out


def who_is_behind_is_not_refused(patch: pytest.MonkeyPatch) -> None:
    refusal = election._refusal
    patch.setattr(
        election, "_refusal", lambda view, own, position, now: refusal(view, own, max(position, view.position), now)
    )


def a_lease_holds_nobody_back(patch: pytest.MonkeyPatch) -> None:
    refusal = election._refusal
    patch.setattr(election, "_refusal", lambda view, own, position, now: refusal(view, own, position, 1e12))

    def stand_soon(self: ElectionTimer, milliseconds: int) -> None:
        self._stand_at = self._now() + 0.3 * self._timeout

    patch.setattr(ElectionTimer, "_hold", stand_soon)


def nothing_is_synced(patch: pytest.MonkeyPatch) -> None:
    def sync_copy(self: JournalCopy) -> None:
        self._dirty.discard(self._file)
        self.synced = self.position[1:]

    def sync_own(self: JournalWriter) -> None:
        self._is_dirty = False

    patch.setattr(JournalCopy, "sync", sync_copy)
    patch.setattr(JournalWriter, "sync", sync_own)
    patch.setattr(JournalFiles, "sync", lambda self, file: None)


def nothing_is_cut(patch: pytest.MonkeyPatch) -> None:
    begin = JournalCopy.begin

    def begin_with_all(
        self: JournalCopy, common: tuple[int, int], files: Collection[int], lacking: Collection[int]
    ) -> None:
        remove = self._files.remove
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_cut", lambda file, end: None)
            inner.setattr(self._files, "remove", lambda gone: remove([file for file in gone if file <= common[0]]))
            begin(self, common, files, lacking)

    patch.setattr(JournalCopy, "begin", begin_with_all)


def changed(owner: type, name: str, there: str, instead: str) -> Break:
    """A part of a method's source is another."""

    def leave_out(patch: pytest.MonkeyPatch) -> None:
        source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
        assert source.count(there) == 1, f"{name} has {there!r} once"
        made: dict[str, Any] = {}
        changed = f"from __future__ import annotations\n{source.replace(there, instead)}"
        exec(changed, vars(sys.modules[owner.__module__]), made)
        patch.setattr(owner, name, made[name])

    return leave_out


DEFAULT = ("kill", "power", "partition", "links")


def of_set(leave_out: Break, expected: str, seed: int, faults: Sequence[str] = DEFAULT) -> Broken:
    return Broken(leave_out, (), faults, expected, seed)


HARM = "lost|came back|undone|FORK"
TWO = "two masters|still proves"
VOTE = ("vote",)

BROKEN = {
    "receipts wait for nobody": of_set(
        replaced(Term, "_is_reached", lambda self, place, must_be_final: True), HARM, 158
    ),
    "who is behind is not refused": of_set(who_is_behind_is_not_refused, HARM, 66),
    "a lease holds nobody back": of_set(a_lease_holds_nobody_back, TWO, 2),
    "nothing is synced": of_set(nothing_is_synced, f"{HARM}|no quorum of disks", 1, ("power",)),
    "a standby shows all that came": of_set(
        replaced(SetAuthority, "horizon", property(lambda self: self._replica.state.copy.position[1:])),
        "shows data that is not final",
        2,
    ),
    "one is a quorum": of_set(replaced(Voters, "quorum", property(lambda self: 1)), f"{HARM}|{TWO}", 4),
    "promises are not written": of_set(
        replaced(PromiseFile, "write", lambda self, promise: setattr(self, "_promise", promise)),
        "are elected for epoch",
        2,
        VOTE,
    ),
    "who was restored is admitted": of_set(
        replaced(peers, "is_older", lambda life, seen: False), "are elected for epoch", 12, VOTE
    ),
    "another name is another store": of_set(
        changed(PromiseFile, "_read", "if slot is None:", "if slot is None or slot[1].node != node:"),
        "is another store with the same promise file",
        1,
        ("renamed",),
    ),
    "nothing is cut": of_set(nothing_is_cut, "goes on", 39),
    "the first batch need not be final": of_set(
        changed(Marks, "_update", "if final >= first:", "if True:"), "on no quorum", 15, VOTE
    ),
    "bytes of an old epoch are taken": of_set(
        changed(Voter, "promise", 'self._follower.leave("a later epoch is promised", ends_link=False)', "pass"),
        "has promised",
        7,
        ("partition",),
    ),
    "elections take their time": of_set(replaced(state, "WAIT", 4.0), "no node is elected", 119, ("kill",)),
    "files that were given up stay": of_set(
        replaced(Follower, "remove_given_up", lambda self: None), "were consumed", 2, ("kill", "handover")
    ),
    "two changes of voters at a time": of_set(
        replaced(Term, "is_settled", property(lambda self: self._next is None and self._newest_header is self.header)),
        "before the previous one",
        1,
        ("disk-lost",),
    ),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BROKEN)
def test_what_a_set_leaves_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BROKEN[name]
    broken.leave_out(monkeypatch)
    problem = first_broken(broken, SetSimulation, SEEDS_MAX)
    print(f"{name}: {problem}")
    assert problem, f"{name}: {SEEDS_MAX} seeds found nothing"
