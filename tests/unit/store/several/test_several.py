"""Several stores in one broker: each destination in the journal of its store, and transactions over two stores."""

# proves: all-fenced-before-any-is-read, all-read

from __future__ import annotations

import dataclasses
import errno
import os
import time
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.operations import AddSubscription, Atomic, RemoveOwner
from tandemmq.store.records.commands import encode_remove_destination, encode_subscription, encode_unsubscribe
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.several import member
from tandemmq.store.several.filters import FilteredStore
from tandemmq.store.several.layout import has_several, stores_in
from tandemmq.store.several.standbys import DestinationInTwoStores, SeveralStandbys
from tandemmq.store.several.stores import SeveralStores
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store
from tandemmq.store.tools.check_several import check_all
from tandemmq.store.writer.journal_end import NoProof
from tandemmq.store.writer.space import StoreFull
from tests.support.compiled import LOOKS_INTO_A_CLASS
from tests.support.store.several_harness import A2, REST, TOPIC, TWO, A, B, SeveralTerm, standbys
from tests.support.store.store_harness import KIB, RESTLESS, SMALL, Q, Term

pytestmark = pytest.mark.promise("several-stores-are-atomic")

A_DIRECTORY = "queue#3a#2f#2fA.#3e"
B_DIRECTORY = "queue#3a#2f#2fB.#3e"


def test_each_destination_is_in_the_journal_of_its_filter(directory: str) -> None:
    with SeveralTerm(directory) as term:
        for number, destination in enumerate((A, A2, B, REST) * 3):
            term.add(destination, f"{number}".encode())
        term.wait_durable(12)
    assert stores_in(directory) == ["#210", A_DIRECTORY, B_DIRECTORY, "txStore"]
    for name, count in {"#210": 3, A_DIRECTORY: 6, B_DIRECTORY: 3}.items():
        with Term(os.path.join(directory, name), "other") as alone:
            assert sum(owner.count for owner in alone.owners) == count
    with SeveralTerm(directory) as again:
        assert {owner.destination: owner.count for owner in again.owners} == {A: 3, A2: 3, B: 3, REST: 3}
        assert again.bodies(A) == [b"0", b"4", b"8"]
        assert again.bodies(REST) == [b"3", b"7", b"11"]


@LOOKS_INTO_A_CLASS
def test_several_stores_have_the_face_of_one() -> None:
    """The classes for several stores have the public members of those for one, except members of a single store."""
    steps = {"fence", "read", "begin", "state", "state_position", "next_epoch", "records_read"}
    for one, several, alone in (
        (Store, SeveralStores, {"ask", "forget", "rotate", "owner_states", "file_states"}),
        (Standby, SeveralStandbys, steps),
    ):
        public = {name for name in vars(one) if not name.startswith("_")}
        assert public - alone - set(dir(several)) == set()


def test_a_slow_queue_pins_only_its_own_files(directory: str) -> None:
    entries = [FilteredStore(queue="A.>", settings=RESTLESS), FilteredStore(queue="B.>", settings=RESTLESS)]
    term = SeveralTerm(directory, entries, settings=RESTLESS)
    owner = term.store.queue(B)
    slow = []
    for _ in range(20):
        slow += term.add_durably(1, A, b"s" * 100)
        term.take(term.add_durably(20, B, b"f" * 3000), owner)
    fast_files = JournalFiles(os.path.join(directory, B_DIRECTORY))
    term.wait(lambda: len(fast_files.list()) <= 3)
    assert term.store.figures.bytes_written > 15 * 64 * KIB
    assert len(JournalFiles(os.path.join(directory, A_DIRECTORY)).list()) <= 2
    assert len(term.bodies(A)) == 20
    term.close()


def test_all_journals_are_fenced_before_any_is_read(directory: str) -> None:
    SeveralTerm(directory).close()
    seen: list[str] = []

    class Watching:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def link(self, source: str, target: str) -> None:
            os.link(source, target)
            seen.append("fence")

        def pread(self, fd: int, length: int, offset: int) -> bytes:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if seen and path.endswith(".log"):
                seen.append("read")
            return os.pread(fd, length, offset)

    term = SeveralTerm(directory, disk=Watching())  # type: ignore[arg-type]
    assert seen[:4] == ["fence"] * 4
    assert "fence" not in seen[4:]
    assert "read" in seen
    term.close()


def test_the_epoch_is_one_and_grows(directory: str) -> None:
    alone = Term(directory, "a")
    for _ in range(3):
        alone.close()
        alone = Term(directory, "a")
    epoch = alone.store.epoch
    alone.close()
    for _ in range(3):
        with SeveralTerm(directory) as term:
            assert term.store.epoch == epoch + 1
            assert {store.epoch for store in term.several.members().values()} == {epoch + 1}
            epoch += 1


def test_a_standby_follows_all_of_them_and_new_ones(directory: str) -> None:
    entries = [*TWO, FilteredStore(is_per_destination=True)]
    master = SeveralTerm(directory, entries)
    follower = standbys(directory, entries, "b")
    before = set(os.listdir(directory))
    for destination in (A, B, REST):
        master.add_durably(20, destination)
    for _ in range(3):
        follower.follow()
        master.add_durably(1, A)
        master.add_durably(1, B)
        master.add_durably(1, REST)
    follower.follow()
    assert follower.has_caught_up
    assert follower.messages >= 60
    assert set(os.listdir(directory)) - before == {"queue#3a#2f#2fother"}
    master.crash()
    follower.close()
    with SeveralTerm(directory, entries, "b") as successor:
        assert sum(owner.count for owner in successor.owners) == 69


@pytest.mark.parametrize("fences", [0, 1, 2, 3])
def test_a_promotion_that_dies_between_the_fences_of_two_stores_harms_no_promise(directory: str, fences: int) -> None:
    """The promotion lost the lock when so many of four journals were fenced; the former master is suspended
    meanwhile."""
    sleeper = SeveralTerm(directory)
    kept = [sleeper.add_durably(2, destination) for destination in (A, B, REST)]
    late = standbys(directory, broker="b")
    answers = [True] * fences
    with pytest.raises(NoProof):
        late.promote(
            has_proof=lambda: bool(answers) and answers.pop(),
            call_soon=lambda _: None,
            call_later=lambda _, function: None,
            on_lost=lambda _: None,
        )
    late.close()
    journals = [JournalFiles(os.path.join(directory, name)) for name in stores_in(directory)]
    assert sum(len(journal.list()) == 2 for journal in journals) == fences
    third = SeveralTerm(directory, broker="c")
    sleeper.durable_operations.clear()
    for destination in (A, B, REST):
        sleeper.add(destination)
    sleeper.wait_lost()
    assert sleeper.durable_operations == []
    sleeper.crash()
    for destination, added in zip((A, B, REST), kept, strict=True):
        assert third.bodies(destination) == [operation.message.body for operation in added]
    third.close()


# ---- filters change


def test_a_destination_stays_in_its_store_until_the_store_has_none_of_it(directory: str) -> None:
    with SeveralTerm(directory, TWO) as one:
        added = one.add_durably(5, A)
    narrower = [FilteredStore(queue="A.one"), *TWO]
    two = SeveralTerm(directory, narrower)
    two.add_durably(2, A)
    two.add_durably(2, A2)
    assert len(two.bodies(A)) == 7
    members = two.several.members()
    assert members["queue#3a#2f#2fA.one"].figures.records == 0
    owner = two.store.queue(A)
    two.take(two.page(owner).messages, owner)
    two.close()
    with SeveralTerm(directory, narrower) as three:
        three.add_durably(1, A)
        assert three.several.members()["queue#3a#2f#2fA.one"].figures.records > 0
        assert len(three.bodies(A)) == 1
    assert added


def test_a_single_store_becomes_one_of_several_and_several_stay_so(directory: str) -> None:
    with Term(directory, "a") as alone:
        alone.add_durably(4, A)
        alone.add_durably(4, Q)
    assert not has_several(directory)
    with SeveralTerm(directory) as several:
        assert not any(".aside-" in name for name in os.listdir(f"{directory}/index"))
        assert len(several.bodies(A)) == 4
        several.add_durably(1, A)
        several.add_durably(1, B)
    assert has_several(directory)
    with SeveralTerm(directory, ()) as without:
        assert len(without.bodies(A)) == 5
        assert len(without.bodies(B)) == 1
        without.add_durably(1, REST)
    assert "#210" in stores_in(directory)


def test_a_destination_in_two_stores_is_refused_by_name(tmp_path: Path) -> None:
    directory = str(tmp_path)
    SeveralTerm(directory).close()
    for name in (A_DIRECTORY, B_DIRECTORY):
        with Term(os.path.join(directory, name), "b") as alone:
            alone.add_durably(1, A)
    with pytest.raises(DestinationInTwoStores, match=r"queue://A\.one is in two stores"):
        SeveralTerm(directory)
    assert any("in two stores" in problem for problem in check_all(directory).problems)


# ---- a store for each destination


def test_a_store_for_each_destination_is_made_when_it_is_first_seen(directory: str) -> None:
    entries = [FilteredStore(is_per_destination=True)]
    term = SeveralTerm(directory, entries)
    owner = term.store.queue(A)
    assert term.store.queue(A) == owner
    operations = [term.add(A, b"%d" % number) for number in range(5)]
    operations += [term.add(B, b"b")]
    end_marker = Atomic(())
    term.store.append(end_marker)
    assert term.store.has_pending
    term.wait(lambda: end_marker in term.durable_operations)
    assert set(operations) < set(term.durable_operations)
    term.wait(lambda: not term.store.has_pending)
    assert term.bodies(A) == [b"0", b"1", b"2", b"3", b"4"]
    assert {"queue#3a#2f#2fA.one", "queue#3a#2f#2fB.one"} < set(stores_in(directory))
    term.close()
    with SeveralTerm(directory, entries) as again:
        assert again.bodies(A) == [b"0", b"1", b"2", b"3", b"4"]
        assert {owner.destination for owner in again.owners} == {A, B}


def test_durable_subscriptions_begin_and_end_while_their_store_is_made(directory: str) -> None:
    term = SeveralTerm(directory, [FilteredStore(is_per_destination=True)])
    first = term.store.subscription("c", "s", TOPIC)
    term.store.append(AddSubscription(first, encode_subscription(TOPIC, "c", "s")))
    term.store.append(RemoveOwner(first, encode_unsubscribe(TOPIC, "c", "s")))
    second = term.store.subscription("c", "s", TOPIC)
    assert second != first
    term.store.append(AddSubscription(second, encode_subscription(TOPIC, "c", "s")))
    term.add(TOPIC, b"hello", (second,))
    term.wait_durable(4)
    assert [message.message.body for message in term.page(second).messages] == [b"hello"]
    term.close()
    with SeveralTerm(directory, [FilteredStore(is_per_destination=True)]) as again:
        assert [(owner.client_id, owner.count) for owner in again.owners] == [("c", 1)]


def test_each_store_reclaims_what_ended_in_it(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemmq.store.maintenance.upkeep.RECLAIM_ENTRIES", 3)
    monkeypatch.setattr("tandemmq.store.state.state.RECLAIMED_MAX", 0)
    term = SeveralTerm(directory)
    for destination in (A, A2, B):
        term.add_durably(10, destination)
    for destination in (A, B):
        term.do(RemoveOwner(term.store.queue(destination), encode_remove_destination(destination)))
    for done in term.store.checkpoint():
        term.wait(done.done)
    term.add_durably(1, A)
    term.crash()
    again = SeveralTerm(directory)
    assert {owner.destination: owner.count for owner in again.owners} == {A: 1, A2: 10}
    stores = list(again.store.members().values())
    assert sum(store.ask(lambda state: len(state.ended)).result() for store in stores) == 2
    monkeypatch.setattr("tandemmq.store.state.state.RECLAIMED_MAX", 6)
    again.wait(lambda: not any(store.ask(lambda state: state.ended).result() for store in stores))
    assert len(again.bodies(A)) == 1
    again.close()


def test_destinations_whose_directories_would_have_one_name_share_a_store(directory: str) -> None:
    tail = "x" * 70
    one = Destination(DestinationKind.QUEUE, f"one{tail}")
    two = Destination(DestinationKind.QUEUE, f"two{tail}")
    with SeveralTerm(directory, [FilteredStore(is_per_destination=True)]) as term:
        term.add_durably(2, one, b"1")
        term.add_durably(2, two, b"2")
    with SeveralTerm(directory, [FilteredStore(is_per_destination=True)]) as again:
        assert again.bodies(one) == [b"1", b"1"]
        assert again.bodies(two) == [b"2", b"2"]
        assert "x" * 64 in stores_in(directory)


def test_a_zombies_new_store_serves_nobody(directory: str) -> None:
    entries = [FilteredStore(is_per_destination=True)]
    zombie = SeveralTerm(directory, entries)
    with SeveralTerm(directory, entries, "b"):
        zombie.add(A)
        zombie.wait_lost()
        assert zombie.durable_operations == []
        zombie.crash()


# ---- room, failures, the end


def test_producers_wait_while_too_much_waits_for_a_new_store(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "WAITING_OPERATIONS_MAX", 5)
    term = SeveralTerm(directory, [FilteredStore(is_per_destination=True)])
    for _ in range(10):
        term.add(A)
    assert term.store.is_congested
    term.wait_durable(10)
    assert not term.store.is_congested
    assert term.drained_count > 0
    term.close()


def test_a_full_new_store_refuses_messages_except_those_accepted_before(directory: str) -> None:
    full = dataclasses.replace(SMALL, disk_reserve=1 << 60)
    term = SeveralTerm(directory, [FilteredStore(is_per_destination=True, settings=full)])
    term.add(A, b"taken")
    term.wait_durable(1)
    assert term.several.is_full
    assert "producers are refused" in term.several.full_reason
    with pytest.raises(StoreFull):
        term.add(A, b"refused")
    assert term.bodies(A) == [b"taken"]
    term.close()


def test_a_store_that_fails_ends_all_of_them(directory: str) -> None:
    class Failing:
        is_failing = False

        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fdatasync(self, fd: int) -> None:
            if self.is_failing and B_DIRECTORY in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            os.fdatasync(fd)

    disk = Failing()
    term = SeveralTerm(directory, disk=disk)  # type: ignore[arg-type]
    term.add_durably(1, A)
    disk.is_failing = True
    identity = LocalTransactionId("ID:c-1", 1)
    atomic = term.committing([term.adding(A, b"x", identity), term.adding(B, b"y", identity)], identity)
    assert "sync" in str(term.wait_lost())
    term.add(A)
    term.end_turn()
    time.sleep(0.1)
    while not term.loop.empty():
        term.loop.get()()
    assert atomic not in term.durable_operations
    assert len(term.durable_operations) == 1
    term.crash()
    with SeveralTerm(directory) as again:
        assert len(again.bodies(A)) == 1
        assert again.bodies(B) == []


def test_a_store_may_be_dropped_while_another_is_made(directory: str) -> None:
    entries = [FilteredStore(is_per_destination=True)]
    for number in range(4):
        term = SeveralTerm(directory, entries)
        added = term.add(Destination(DestinationKind.QUEUE, f"new {number}"))
        term.end_turn()
        if number % 2:
            time.sleep(0.005 * number)
            while not term.loop.empty():
                term.loop.get()()
                term.end_turn()
        (term.close if number % 4 < 2 else term.crash)()
        while not term.loop.empty():
            term.loop.get()()
        assert added is not None
    assert not [path for path in Path(directory).glob("*/index/*") if path.name != "a"], "an index was still held"
    SeveralTerm(directory, entries).close()


def test_indexes_may_go_elsewhere(directory: str, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "indexes")
    with SeveralTerm(directory, index_directory=elsewhere) as term:
        term.add_durably(1, A)
    assert not os.path.exists(os.path.join(directory, A_DIRECTORY, "index"))
    assert os.path.exists(os.path.join(elsewhere, A_DIRECTORY, "a", "db.data"))
    assert check_all(directory, elsewhere).is_clean


# proves: store-without-its-journal
@pytest.mark.parametrize("name", [A_DIRECTORY, "#210"])
@pytest.mark.parametrize("index_directory", [None, "indexes"])
def test_a_store_whose_journal_is_gone_is_missed(tmp_path: Path, name: str, index_directory: str | None) -> None:
    """The rule includes a store that no filter names any more."""
    elsewhere = index_directory and str(tmp_path / index_directory)
    directory = tmp_path / "data"
    directory.mkdir()
    with SeveralTerm(str(directory), index_directory=elsewhere) as term:
        term.add_durably(1, A)
        term.add_durably(1, REST)
    for path in (directory / name).glob("db-*.log"):
        path.unlink()
    entries = [FilteredStore(queue="B.>"), FilteredStore()]
    with pytest.raises(JournalLost, match=rf"begin a new journal: `tandemmq store afresh {directory}/{name}`"):
        SeveralTerm(str(directory), entries, index_directory=elsewhere)


def test_several_stores_know_their_indexes_again(directory: str) -> None:
    """Each store keeps its number, whichever of them have an index."""
    entries = [FilteredStore(is_per_destination=True)]
    with SeveralTerm(directory, entries) as term:
        for number in range(6):
            term.add_durably(3, Destination(DestinationKind.QUEUE, f"q{number}"))
    for name in ("a", "b", "a"):
        with SeveralTerm(directory, entries, name) as again:
            assert again.store.records_replayed < 3 * 8
            again.add_durably(1, A)
    assert not [str(path) for path in Path(directory).glob("**/*.aside-*")]
