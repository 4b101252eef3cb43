"""A set elects, copies, survives and catches up: real replicas over a network in memory."""

# proves: replication-rules
# proves: answer-to-this-question, epoch-above-every-file, founded-by-all, followers-learn-the-end

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.replication.follower import Follower
from tandemmq.broker.replication.member import SetLocker
from tandemmq.broker.replication.messages import Have, Message, Resign
from tandemmq.broker.replication.network import Link
from tandemmq.broker.replication.quorum import ChangeRefused, NotMaster
from tandemmq.journal.errors import Deposed
from tandemmq.journal.scan import scan
from tandemmq.locker.contract import Holder, LockRequest
from tandemmq.store.membership import PROMISE_FILE
from tandemmq.store.writer.journal_end import NoProof
from tests.support.replication.small_set import NewSet, SmallNode, SmallSet


def write_for_ever(node: SmallNode) -> None:
    for number in range(1_000_000):
        node.write(f"lost-{number}")


def test_free_bytes_of_others_are_known_without_writes(whole: SmallSet) -> None:
    master = whole.begun()
    for free in (5, 1 << 30):
        for node in whole.others(master):
            node.free_bytes = free
        term = master.replica.state.term
        assert term is not None
        whole.until(lambda term=term, free=free: term.free_bytes == free, "the master knows")  # type: ignore[misc]


def test_a_node_that_starts_without_the_directory_is_found_by_those_that_know_it(whole: SmallSet) -> None:
    master = whole.elect()
    away = whole.others(master)[0]
    away.kill()
    for node in whole.others(away):
        node.members.cut_off()
    whole.shared.forget_everything()
    whole.shared.is_reachable = False
    master.write("a")
    away.start()
    whole.until_same()


def test_a_disk_is_replaced_by_removing_and_adding(whole: SmallSet) -> None:
    master = whole.begun()
    away, stays = whole.others(master)
    lost = away.replica.state.store
    away.stop()
    for path in away.directory.iterdir():
        path.unlink()
    away.start()
    whole.until_same()
    with pytest.raises(ChangeRefused):
        master.replica.propose(remove="nobody")
    master.replica.propose(remove=lost)
    with pytest.raises(ChangeRefused):
        master.replica.propose(add=away.name)
    master.begin_file()
    master.write("b")
    whole.until(lambda: away.replica.status()["position"] == master.replica.status()["position"], "caught up")
    master.replica.propose(add=away.name)
    master.begin_file()
    master.write("c")
    whole.until(lambda: away.replica.state.is_voter, "it votes")
    stays.stop()
    master.write("d")
    master.stop()
    stays.start()
    second = whole.elect(away, stays)
    second.write("e")
    assert second.content() == list("abcde")


# proves: change-keeps-a-live-quorum
def test_a_change_leaves_a_quorum_that_is_alive_and_caught_up(whole: SmallSet) -> None:
    """If a living voter were removed while another one is dead, the set would stop."""
    master = whole.begun()
    dead, lives = whole.others(master)
    whole.until(lambda: lives.replica.state.store in master.replica.state.term.live_stores(), "it answers")
    dead.kill()
    whole.until(lambda: dead.replica.state.store not in master.replica.state.term.live_stores(), "its link is down")
    with pytest.raises(ChangeRefused, match=f"2 of them must be alive and caught up; these are not: {dead.name}"):
        master.replica.propose(remove=lives.name)
    master.write("b")
    master.replica.propose(remove=dead.name)
    master.begin_file()
    master.write("c")
    assert master.content() == ["a", "b", "c"]


def test_a_node_that_cannot_be_mended_leaves_the_lead_and_keeps_its_vote(whole: SmallSet) -> None:
    """With no sound copy in reach it cannot serve; damage before its newest file says nothing about its position."""
    first = whole.elect()
    first.write("a")
    with pytest.raises(Deposed, match="no member that answers has sound copies of files 1, 3"):
        first.authority.damaged([1, 3])
    first.leave()
    second = whole.elect(*whole.others(first))
    second.write("b")
    assert first.replica.status()["is_whole"]
    whole.others(first, second)[0].kill()
    second.write("c")
    whole.until_same(first, second)


def test_a_directory_from_a_backup_is_refused_until_its_promise_file_is_gone(whole: SmallSet, tmp_path: Path) -> None:
    """Since the backup it may have promised, and reported records that it now lacks."""
    master = whole.begun()
    away, stays = whole.others(master)
    away.stop()
    shutil.copytree(away.directory, tmp_path / "backup")
    away.start()
    master.write("b")
    whole.until_same()
    away.stop()
    for _ in range(3):
        shutil.rmtree(away.directory)
        shutil.copytree(tmp_path / "backup", away.directory)
        away.start()
        whole.until(lambda: whole.switch.refused[away.name] >= 3, "it asked to be let in")
        assert away.replica.status()["links"] == []
        away.stop()
        whole.switch.refused.clear()
    master.write("c")
    (away.directory / PROMISE_FILE).unlink()
    away.start()
    whole.until_same()
    assert not away.replica.state.is_voter
    assert stays.replica.state.is_voter


def test_a_file_removed_between_follow_and_begin_is_requested_again(whole: SmallSet) -> None:
    """The follower's standby removes what was given up; the master counted on it, and would send nothing."""
    master = whole.elect()
    for number in range(30):
        master.write(f"{number}-" + "y" * 5_000)
    whole.until_same()
    away = whole.others(master)[0]
    away.stop()
    whole.switch.slow[master.name, away.name] = 0.3  # BEGIN comes after the file went
    away.start()
    term = master.replica.state.term
    assert term is not None
    whole.until(lambda: term.stream(away.replica.state.store), "it asked")
    whole.switch.cut.add((away.name, master.name))  # its requests before BEGIN do not arrive
    away.files.remove([away.files.list()[1]])
    assert not away.replica.status()["master"], "no BEGIN has come yet"
    whole.threads.sleep(0.5)
    whole.switch.heal()
    whole.until(lambda: away.replica.status()["master"] and away.replica.status()["is_whole"], "it follows, whole")
    whole.until_same()


def test_a_handover_names_who_is_next(whole: SmallSet) -> None:
    master = whole.begun()
    wanted, other = whole.others(master)
    whole.until(lambda: len(master.replica.status()["followers"]) == 2, "both follow")
    for refused in ("nobody", master.name):
        with pytest.raises(ChangeRefused, match="is not a follower"):
            master.replica.choose_successor(refused)
    with pytest.raises(NotMaster):
        other.replica.choose_successor(wanted.name)
    whole.until(lambda: all(each["is_live"] for each in master.replica.status()["followers"].values()), "live")
    master.replica.choose_successor(wanted.name)
    for node in (wanted, other):
        node.replica.try_acquire()
    master.leave()
    assert whole.elect(wanted, other) is wanted


def test_each_node_knows_the_latest_status_of_the_others(whole: SmallSet) -> None:
    master = whole.begun()
    asked, other = whole.others(master)

    def said() -> dict[str, Any]:
        return {each["node"]: each["said"] or {} for each in asked.replica.overview()["members"]}

    whole.until(lambda: said()[other.name].get("position") == list(master.replica.state.position), "the other is known")
    whole.until(lambda: said()[master.name].get("role") == "master", "the master is known")
    lags = master.replica.status
    whole.until(lambda: {each["lag_bytes"] for each in lags()["followers"].values()} == {0}, "nobody is behind")
    other.stop()
    master.write("b" * 1_000)
    whole.until(lambda: asked.replica.status()["final"] == master.replica.status()["position"][1:], "it is final")
    members = asked.replica.overview()["members"]
    assert [each["is_linked"] for each in members if each["node"] == other.name] == [False]


def test_a_follower_that_is_behind_has_its_bytes_counted(whole: SmallSet) -> None:
    master = whole.elect()
    place = master.replica.status()["position"][1:]
    for number in range(40):
        master.write(f"{number}-" + "x" * 5_000)
    term = master.replica.state.term
    assert term is not None
    files = master.files.list()
    assert len(files) > 3
    sizes = {file: sum(batch.end for batch in list(scan(master.files, file))[-1:]) for file in files}
    expected = sum(sizes[file] for file in files if file >= place[0]) - place[1]
    assert term.journal.lag(tuple(place)) == expected
    assert term.journal.lag(term.marks.written) == 0


def test_a_master_that_no_quorum_answers_counts_it_once(whole: SmallSet) -> None:
    first = whole.begun()
    whole.switch.isolate(first.name)
    whole.until(lambda: first.replica.status()["quorum_losses"], "it has noticed")
    with pytest.raises((NoProof, Deposed)):
        write_for_ever(first)
    whole.switch.heal()
    first.leave()
    whole.begun("b")
    assert first.replica.status()["quorum_losses"] == 1
    assert [node.replica.status()["quorum_losses"] for node in whole.others(first)] == [0, 0]


def heard(node: SmallNode, kind: type[Any]) -> list[Any]:
    """The messages of a kind that this node receives from now on, each with the store that it is from."""
    found: list[Any] = []
    replica = node.replica
    before = replica.received

    def received(link: Link, message: Message) -> None:
        if isinstance(message, kind):
            found.append((link.member.store, message))
        before(link, message)

    replica.received = received  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("sync", ["quorum_disk", "quorum_mem"])
def test_a_follower_reports_its_place_only_when_it_moved(make: NewSet, sync: str) -> None:
    whole = make(sync=sync)
    master = whole.elect()
    whole.until(lambda: len(master.replica.status()["followers"]) == 2, "both follow")
    said = heard(master, Have)
    for number in range(20):
        master.write(f"m{number}")
    written = master.replica.state.term.marks.written  # type: ignore[union-attr]
    whole.until(
        lambda: {each["have"] == list(written) for each in master.replica.status()["followers"].values()} == {True},
        "it is on all disks",
    )
    places = [(store, (have.file, have.end), have.on) for store, have in said]
    assert len(places) == len(set(places)), "nothing is said twice"
    for on in {on for _, _, on in places}:
        for store in {store for store, _, _ in places}:
            own = [place for each, place, where in places if (each, where) == (store, on)]
            assert own == sorted(own)


def test_a_resignation_names_the_next_candidate(whole: SmallSet) -> None:
    master = whole.elect()
    followers = whole.others(master)
    whole.until(lambda: len(master.replica.status()["followers"]) == 2, "both follow")
    resigned = [heard(node, Resign) for node in followers]
    master.write("a")
    master.leave()
    whole.until(lambda: all(resigned), "both are told")
    ((_, first),), ((_, second),) = resigned
    assert first == second
    assert first.to in [node.replica.state.store for node in followers]
    assert whole.elect(*followers).replica.state.store == first.to


def test_a_node_that_is_far_behind_delays_its_standby(whole: SmallSet, monkeypatch: pytest.MonkeyPatch) -> None:
    master = whole.elect()
    away = whole.others(master)[0]
    away.stop()
    for number in range(60):
        master.write(f"{number}-" + "y" * 3_000)
    seen: list[tuple[tuple[int, int], tuple[int, int]]] = []
    see = Follower._see_final

    def see_final(follower: Follower, place: tuple[int, int]) -> None:
        see(follower, place)
        if follower._state is away.replica.state and follower.master is not None:
            seen.append((follower.final, follower.master.end))

    monkeypatch.setattr(Follower, "_see_final", see_final)
    away.start()
    written = master.replica.state.term.marks.written  # type: ignore[union-attr]
    whole.until(lambda: away.replica.final >= written, "all is final")
    assert len(seen) > 2
    assert all(final == (0, 0) or final >= end for final, end in seen)


def test_a_mastership_released_in_order_is_not_lost(whole: SmallSet) -> None:
    """A handover closes the store, which ends the term: others lead before the lock thread was asked to release."""
    master = whole.elect()
    locker = SetLocker(LockRequest("", Holder("set")), master.replica)
    assert master.writer is not None
    master.writer.close()
    master.writer = None
    master.authority.end()
    whole.elect(*whole.others(master))
    assert locker.keep_alive()
    locker.release()
    assert not locker.keep_alive()


def test_a_mastership_that_another_took_is_lost(whole: SmallSet) -> None:
    master = whole.elect()
    locker = SetLocker(LockRequest("", Holder("set")), master.replica)
    assert locker.keep_alive()
    term = master.replica.state.term
    assert term is not None
    term.depose()
    assert not locker.keep_alive()
    master.leave()
    assert not locker.keep_alive()
