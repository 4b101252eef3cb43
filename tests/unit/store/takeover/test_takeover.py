"""Take-over of a store of ActiveMQ: the cases that only its index can show, and random lives of a model of KahaDB.

For the real ActiveMQ see tests/interop/test_takeover.py. Here each case is built record by record.
"""

# proves: aside-first, minimal-left, takeover-is-finished, number-again-is-looked-up

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from tandemmq.disk import Disk
from tandemmq.index.index import Index
from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.reader import JournalReader
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.kahadb.minimal import is_minimal
from tandemmq.store.records.commands import UPDATE
from tandemmq.store.records.message import HEADER, Message
from tandemmq.store.records.openwire import decode_message
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.index_directory import remove_stale
from tandemmq.store.takeover import activemq_view as view_module
from tandemmq.store.takeover import prepare_takeover, records
from tandemmq.store.takeover.records import added_at
from tandemmq.store.tools.check import check
from tests.support.prove import SEED, rounds
from tests.support.store.foreign_store import HIGH, LOW, ForeignStore, queue, topic
from tests.support.store.store_harness import Term
from tests.support.store.takeover_harness import Held, Taken, replayed, take_over
from tests.support.tree import FRAMES_FILE

pytestmark = pytest.mark.promise("from-activemq")

LIVES = rounds(25, 200, quick=8)

Q, R, T = queue("Q"), queue("R"), topic("T")
LOCAL = LocalTransactionId("ID:host-1:1", 1)


def store_in(tmp_path: Path, **options: object) -> ForeignStore:
    directory = tmp_path / "data"
    directory.mkdir()
    return ForeignStore(directory, **options)  # type: ignore[arg-type]


def alone(directory: Path) -> Held:
    copy = directory.with_name("alone")
    shutil.rmtree(copy, ignore_errors=True)
    return replayed(directory, copy)


def with_messages(held: Held) -> Held:
    return {name: ids for name, ids in held.items() if ids}


def taken_exactly(store: ForeignStore) -> Taken:
    """Check that the content is that of the model, also by the journal alone."""
    taken = take_over(store.directory)
    assert with_messages(taken.held) == store.deliverable()
    assert alone(store.directory) == taken.held
    assert is_minimal(str(store.directory))
    assert check(str(store.directory)).is_clean
    return taken


def with_a_collected_commit(tmp_path: Path) -> tuple[ForeignStore, str]:
    """A store whose index alone knows that a message was committed, and its id."""
    store = store_in(tmp_path, records_per_file=3)
    store.send(Q)
    kept = store.send(Q, transaction=LOCAL)
    dead = store.send(Q)
    store.commit(LOCAL)  # file 2
    store.send(R, message_id="ID:x:1:1:1")
    store.remove(R, "ID:x:1:1:1")
    store.remove(Q, dead)  # file 3
    store.send(Q)
    store.checkpoint()
    store.write()
    store.collect({2})
    return store, kept


def test_a_message_whose_commit_was_collected_is_not_lost(tmp_path: Path) -> None:
    store, kept = with_a_collected_commit(tmp_path)
    assert kept not in alone(store.directory)["Q"]
    taken = taken_exactly(store)
    assert taken.report is not None
    assert taken.report.corrected["messages that had been lost"] == 1


# proves: takeover-copies-are-compared
@pytest.mark.parametrize("ignores_missing", [False, True])
def test_a_message_that_does_not_verify_is_not_copied(tmp_path: Path, ignores_missing: bool) -> None:
    """The copy would have a new checksum, and damaged bytes would be delivered."""
    store, kept = with_a_collected_commit(tmp_path)
    files = JournalFiles(str(store.directory))
    with Index.open(str(tmp_path / "index")) as index:
        follower = Follower(files, index, records_per_checkpoint=100_000)
        follower.advance(is_final=True)
        takeover = prepare_takeover(files, follower, scratch=str(tmp_path / "scratch"), ignores_missing=ignores_missing)
        assert takeover is not None
        (path,) = [path for path in store.directory.glob("db-*.log") if kept.encode() in path.read_bytes()]
        content = path.read_bytes()
        at = content.rindex(kept.encode())
        path.write_bytes(content[:at] + b"i" + content[at + 1 :])
        if not ignores_missing:
            with pytest.raises(JournalCorrupt):
                list(takeover.batches())
        else:
            assert [payload for batch in takeover.batches() for payload in batch if payload[0] == UPDATE] == []


def test_of_two_messages_with_one_id_the_living_one_counts(tmp_path: Path) -> None:
    store = store_in(tmp_path, records_per_file=2)
    store.send(Q)
    store.send(Q, message_id="ID:twice:1:1:1")
    store.remove(Q, "ID:twice:1:1:1")  # file 2
    store.send(R)
    store.remove(R, next(iter(store.held[R].messages)))
    store.send(Q)
    store.send(Q, message_id="ID:twice:1:1:1")
    store.send(Q)
    store.checkpoint()
    store.write()
    store.collect({2})
    taken_exactly(store)


def test_a_subscription_whose_record_was_collected_is_not_lost(tmp_path: Path) -> None:
    store = store_in(tmp_path, records_per_file=2)
    store.send(Q)
    store.subscribe(T, "s")
    store.send(T)
    store.send(T)
    store.checkpoint()
    store.write()
    (store.directory / "db-1.log").rename(store.directory / "db-1.log.lost")
    with pytest.raises(JournalLost, match=r"db-1\.log"):
        take_over(store.directory)  # it holds a message of Q as well


# proves: missing-foreign-journal
@pytest.mark.parametrize("state", ["messages", "drained", "torn index"])
def test_a_journal_that_is_gone_is_missed_by_its_index(tmp_path: Path, state: str) -> None:
    store = store_in(tmp_path, records_per_file=2)
    for _ in range(5):
        sent = store.send(Q)
        if state == "drained":
            store.remove(Q, sent)
    store.checkpoint()
    store.write()
    if state == "torn index":
        os.truncate(store.directory / "db.data", 5_000)
    for path in store.directory.glob("db-*.log"):
        path.unlink()
    for _ in range(3):  # each leaves a fence
        with pytest.raises(JournalLost, match=r"all files of this journal are missing.*`tandemmq store afresh"):
            take_over(store.directory)


def test_a_subscription_that_only_the_index_has_is_written_again(tmp_path: Path) -> None:
    store = store_in(tmp_path, records_per_file=2)
    store.subscribe(T, "s")
    store.subscribe(T, "t")
    store.send(T)
    store.send(T)
    store.checkpoint()
    store.write()
    (store.directory / "db-1.log").unlink()  # as ActiveMQ did before 5.9, which pinned no such records
    taken = taken_exactly(store)
    assert taken.report is not None
    assert taken.report.corrected["subscriptions that had been lost"] == 2
    assert taken.report.corrected["messages that had been lost"] == 2


def test_entries_after_the_last_update_are_taken_from_the_journal(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    first = [store.send(Q) for _ in range(4)]
    open_then = XaTransactionId(1, b"g", b"b")
    store.send(Q, transaction=open_then)
    store.remove(Q, first[0], transaction=open_then)
    store.send(R, transaction=LOCAL)
    store.checkpoint()
    store.prepare(open_then)
    store.commit(LOCAL)
    store.remove(Q, first[1])
    store.send(Q)
    store.delete(R)
    store.send(R)
    store.write()
    taken = taken_exactly(store)
    assert (taken.prepared, taken.withheld) == ([open_then.key], 1)


def test_a_damaged_index_is_set_aside_and_the_journal_believed(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for _ in range(7):
        store.send(Q)
    store.checkpoint()
    data = bytearray((store.directory / "db.data").read_bytes())
    data[4096 * 3] = 0  # a page that something refers to is free
    (store.directory / "db.data").write_bytes(data)
    store.write()
    taken = taken_exactly(store)
    assert taken.report is not None
    assert not taken.report.has_index
    assert "is free" in (taken.report.index_damage or "")
    (aside,) = taken.report.set_aside
    assert Path(aside).read_bytes() == data


def test_a_redo_without_its_index_is_set_aside_too(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.send(Q)
    store.checkpoint()
    store.write()
    take_over(store.directory, stop_before_finish=True)
    (store.directory / "db.redo").write_bytes(b"of the index that is gone")
    (store.directory / "db.data").rename(store.directory / "db.data.aside-1")  # and the broker died
    taken = taken_exactly(store)
    assert taken.report is not None
    (aside,) = taken.report.set_aside
    assert Path(aside).read_bytes() == b"of the index that is gone"
    assert not (store.directory / "db.redo").exists()


def test_a_second_promotion_has_nothing_to_take_over(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    store.send(Q)
    store.checkpoint()
    store.write()
    first = taken_exactly(store)
    again = take_over(store.directory, "b")
    assert again.report is None
    assert again.held == first.held


def test_a_store_of_ours_gets_a_minimal_index(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    assert take_over(directory).report is not None
    assert is_minimal(str(directory))
    assert take_over(directory).report is None


def test_a_broker_that_becomes_master_ends_the_take_over_before_it_serves(tmp_path: Path) -> None:
    with Term(str(tmp_path)):
        assert is_minimal(str(tmp_path))


def test_a_take_over_that_crashed_between_its_batches_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 300)
    store = store_in(tmp_path, records_per_file=3, prioritized=frozenset((Q,)))
    store.subscribe(T, "s")
    dead = [store.send(Q, 7), store.send(T)]
    store.remove(Q, dead[0])  # file 2
    store.remove(T, dead[1], "c:s")
    store.delete(R)
    for priority in (4, 9, 0, 7, 4):
        store.send(Q, priority)
    store.checkpoint()
    store.write()
    store.collect({2})
    expected = store.deliverable()
    for crashed_at in range(8):
        directory = tmp_path / f"crashed-{crashed_at}"
        shutil.copytree(store.directory, directory)
        take_over(directory, batches_max=crashed_at, stop_before_finish=True)
        take_over(directory, "b", batches_max=crashed_at + 1, stop_before_finish=True)
        taken = take_over(directory, "c")
        assert with_messages(taken.held) == expected, crashed_at
        assert alone(directory) == taken.held, crashed_at


def fields_of(message: Message) -> list[object]:
    """Return all fields except ``broker_sequence``."""
    return [getattr(message, name) for name in (*HEADER, "body", "properties") if name != "broker_sequence"]


@pytest.mark.parametrize("has_index", [True, False])
def test_bodies_of_an_old_version_are_read_and_copied_in_ours(tmp_path: Path, has_index: bool) -> None:
    frame = bytes.fromhex(json.loads(FRAMES_FILE.read_text())["ActiveMQTextMessage-properties v6"])
    store = store_in(tmp_path, prioritized=frozenset((Q,)), frame=frame, openwire=6)
    for priority in (4, 9, 0, 4, 7, 2):
        store.send(Q, priority)
    store.checkpoint()
    store.write()
    if not has_index:
        (store.directory / "db.data").unlink()
    taken = taken_exactly(store)
    assert taken.report is not None
    assert taken.report.openwire_version == 6
    files = JournalFiles(str(store.directory))
    follower = Follower(files, Index.open(str(tmp_path / "index")), records_per_checkpoint=1000)
    follower.advance(is_final=True)
    reader = JournalReader(files)
    versions = set()
    for owner in follower.state.owners:
        for _, entry in follower.state.entries(owner, 0):
            version = follower.epoch_history.version_at(entry.location >> 32)
            versions.add(version)
            message = decode_message(added_at(reader, entry.location, entry.size).message, version)
            assert fields_of(message) == fields_of(decode_message(frame, 6))
    assert versions == {6, 11}, "some stand where they stood"
    reader.close()
    follower.index.close()


def test_an_index_that_errs_about_the_version_is_not_believed(tmp_path: Path) -> None:
    store = store_in(tmp_path, openwire=6)  # and bodies of version 11
    store.send(Q)
    store.checkpoint()
    store.write()
    taken = taken_exactly(store)
    assert taken.report is not None
    assert taken.report.openwire_version == 11


# ---- random lives


def random_life(chance: random.Random, store: ForeignStore) -> None:
    """Some hundred commands, a checkpoint among them, and files that go because nothing in them lives; or the index
    goes, and all files stay."""
    queues, topics = [Q, R, queue("S")], [T, topic("U")]
    transactions: list[LocalTransactionId | XaTransactionId] = []
    commands = chance.randrange(10, 150)
    checkpoint_at = chance.randrange(commands)
    for number in range(commands):
        destination = chance.choice(queues + topics)
        held = store.held.get(destination)
        priority = chance.choice((0, 4, 4, 4, 9))
        transaction = chance.choice(transactions) if transactions and chance.random() < 0.3 else None
        if transaction is not None and transaction.key in store.prepared:
            transaction = None
        match chance.randrange(14):
            case 0:
                destination = chance.choice(topics)
                store.subscribe(destination, f"{destination.name}{chance.randrange(3)}")
            case 1 if held is not None and held.pending:
                store.unsubscribe(destination, chance.choice(sorted(held.pending)).removeprefix("c:"))
            case 2 if held is not None and not destination.is_topic and chance.random() < 0.4:
                store.delete(destination)
            case 3:
                number_ = len(transactions)
                transactions.append(
                    LocalTransactionId("ID:host-1:1", number_)
                    if chance.random() < 0.5
                    else XaTransactionId(1, bytes([number_]), b"b")
                )
            case 4 if transactions:
                ending = transactions.pop(chance.randrange(len(transactions)))
                (store.commit if chance.random() < 0.6 else store.rollback)(ending)
            case 5 if transactions and isinstance(transactions[-1], XaTransactionId):
                if transactions[-1].key in store.open:
                    store.prepare(transactions[-1])
            case 6 | 7 | 8 if held is not None and held.messages:
                message_id = chance.choice(list(held.messages))
                if not destination.is_topic:
                    store.remove(destination, message_id, None, transaction)
                else:
                    keys = sorted(key for key, ids in held.pending.items() if message_id in ids)
                    store.remove(destination, message_id, chance.choice(keys), transaction)
            case 9 if held is not None and held.messages:
                message_id = chance.choice(list(held.messages))  # no client of ActiveMQ gives it another priority
                store.update(destination, message_id, {HIGH: 9, LOW: 0}.get(held.messages[message_id].rank, 4))
            case _:
                store.send(destination, priority, transaction)
        if number == checkpoint_at:
            store.checkpoint()
    store.write()
    if chance.random() < 0.2:
        (store.directory / "db.data").unlink()
    else:
        store.collect({file for file in store.files if chance.random() < 0.8})


def run_random_life(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    store = store_in(
        tmp_path, records_per_file=chance.randrange(2, 12), prioritized=frozenset(chance.sample([Q, R, T], 2))
    )
    random_life(chance, store)
    while chance.random() < 0.3:  # brokers that died on the way
        take_over(store.directory, "z", batches_max=chance.randrange(6), stop_before_finish=True)
    taken = taken_exactly(store)
    subscribed = {name.partition(" for ")[2] for name in taken.held if " for " in name}
    assert subscribed == store.subscriptions()
    assert set(taken.prepared) == store.prepared.keys()


@pytest.mark.prove
def test_random_lives_are_taken_over_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"TANDEMMQ_SEED={SEED}")
    monkeypatch.setattr(records, "BATCH_BYTES_MAX", 300)
    monkeypatch.setattr(view_module, "OPERATIONS_MAX", 20)  # so that the temporary index is written in the middle
    for life in range(LIVES):
        print(f"life {life}")
        directory = tmp_path / str(life)
        directory.mkdir()
        run_random_life(SEED + life, directory)
        shutil.rmtree(directory)


class Killed:
    """The system's disk, of a process that is killed when it is about to remove a directory that holds an index."""

    def __init__(self) -> None:
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if not callable(real):
            return real

        def call(*arguments: Any, **keywords: Any) -> Any:
            if name == "unlink" and os.path.exists(f"{os.path.dirname(arguments[0])}/db.free"):
                self.is_dead = True
            if self.is_dead and name != "close":
                raise OSError(errno.EIO, "killed")
            return real(*arguments, **keywords)

        return call


def test_the_rest_of_a_killed_take_over_is_ignored(tmp_path: Path) -> None:
    """The temporary index contains facts that are not in the journal yet: a neighbour that began with it would never
    write them."""
    store, _ = with_a_collected_commit(tmp_path)
    directory = str(store.directory)
    disk = Killed()
    with pytest.raises(OSError, match="killed"):
        Term(directory, "a", disk=cast(Disk, disk))
    assert disk.is_dead
    assert check(directory).is_clean
    Term(directory, "b").close()
    assert with_messages(alone(store.directory)) == store.deliverable()
    assert check(directory).is_clean
    left = f"{directory}/index/.takeover/a"
    assert os.path.exists(left)
    os.utime(f"{left}/db.data", (0, 0))
    assert remove_stale(f"{directory}/index", f"{directory}/index/b") == [left]
