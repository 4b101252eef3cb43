"""Damage in a journal: the affected messages are reported. It is skipped only if the settings declare it, and once."""

# proves: index-batch, index-of-this-epoch, journal-reading

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.index.index import Index
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.journal.scan import Batch, scan
from tandemmq.journal.writer import JournalWriter
from tandemmq.store.damage.report import IDS_LISTED_MAX, JournalLost, StoreCorrupt
from tandemmq.store.damage.salvage import salvage
from tandemmq.store.operations import AddMessage, AddSubscription
from tandemmq.store.records.commands import RemoveMessage as RemoveCommand
from tandemmq.store.records.commands import (
    decode,
    encode_add,
    encode_remove,
    encode_subscription,
    encode_trace,
    encode_update,
)
from tandemmq.store.records.headers import Header, encode_header
from tandemmq.store.records.hints import with_copy_hint, with_user_hint
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.tools.check import check
from tests.support.store.store_harness import KIB, Q, Term

pytestmark = pytest.mark.promise("damage-is-named")

T = Destination(DestinationKind.TOPIC, "T.A")
SETTINGS = StoreSettings(
    journal_max_file_length=8 * KIB,
    checkpoint_interval=3600.0,
    fence_check_interval=0.05,
    disk_reserve=0,
    enable_compaction=False,
)
DECLARED = replace(SETTINGS, ignore_missing_journalfiles=True)
CHECKED = replace(SETTINGS, check_for_corrupt_journal_files=True)


def batches(directory: Path, file: int) -> list[Batch]:
    return list(scan(JournalFiles(str(directory)), file))


def flip(directory: Path, file: int, at: int) -> None:
    path = directory / f"db-{file}.log"
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def journal(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("db-*.log")}


def without_index(directory: Path) -> None:
    shutil.rmtree(directory / "index")


def bodies(directory: Path, settings: StoreSettings = SETTINGS, broker: str = "a") -> list[bytes]:
    term = Term(str(directory), broker, settings)
    try:
        return term.bodies()
    finally:
        term.close()


def is_clean(directory: Path) -> None:
    report = check(str(directory))
    assert report.is_clean, report.problems


def three_files(directory: Path) -> list[AddMessage]:
    """Twelve messages of 1 KiB, about four in a file, each in a separate batch; closed, so that an index knows all."""
    with Term(str(directory), "a", SETTINGS) as term:
        added = [message for n in range(12) for message in term.add_durably(1, body=b"%02d" % n * 700)]
    assert len(journal(directory)) == 3
    return added


def place(message: AddMessage) -> tuple[int, int]:
    """A byte in the middle of its record."""
    return message.location >> 32, (message.location & 0xFFFFFFFF) + message.size // 2


# --- what damaged bytes still show ---------------------------------------------------------------------------------


def some_messages(count: int) -> tuple[bytes, list[str]]:
    """A batch of Adds and a Remove, and their ids."""
    ids = [f"ID:host-1-2:1:1:{number}" for number in range(1, count + 1)]
    payloads = []
    for message_id in ids[:-1]:
        message = Message(Q, message_id, b"x" * 50, BodyKind.BYTES, persistent=True, timestamp=1)
        payloads.append(encode_add(message, encode_message(message)))
    payloads.append(encode_remove(Q, ids[-1]))
    return bytes(encode_batch(payloads)[0]), ids


def test_the_messages_of_a_batch_with_any_damaged_byte_are_named() -> None:
    batch, ids = some_messages(4)
    for at in range(len(batch) - 5):
        for bit in range(8):
            data = bytearray(batch)
            data[at] ^= 1 << bit
            shown = salvage(bytes(data)).message_ids
            assert set(ids[:-1]) <= set(shown), f"bit {bit} of byte {at}: {shown}"


def test_bytes_that_are_cut_show_what_is_whole() -> None:
    batch, ids = some_messages(4)
    assert salvage(batch).removed == [ids[-1]]
    assert salvage(batch[: len(batch) // 2]).added[:1] == [ids[0]]
    assert salvage(b"").message_ids == []
    assert salvage(os.urandom(3000)).added == []


# --- refused -------------------------------------------------------------------------------------------------------


def test_a_refusal_names_file_range_and_ids_and_bounds_what_it_names(tmp_path: Path) -> None:
    term = Term(str(tmp_path), "a", SETTINGS)
    added = [term.add(body=b"x") for _ in range(IDS_LISTED_MAX + 5)]
    term.wait(lambda: added[-1] in term.durable_operations)
    term.add_durably(1)
    term.crash()
    without_index(tmp_path)
    file, at = place(added[3])
    damaged = next(batch for batch in batches(tmp_path, file) if batch.offset < at < batch.end)
    flip(tmp_path, file, at)
    before = journal(tmp_path)
    with pytest.raises(StoreCorrupt) as refusal:
        Term(str(tmp_path), "a", SETTINGS)
    text = str(refusal.value)
    assert f"db-{file}.log is corrupt from offset {damaged.offset} to {damaged.end}" in text
    assert added[0].message.message_id in text
    assert re.search(r"and \d more", text)
    assert {each.message.message_id for each in added} <= set(refusal.value.message_ids)
    assert {name: journal(tmp_path)[name] for name in before} == before


# proves: missing-journal-is-not-empty
@pytest.mark.parametrize("broker", ["a", "b"])  # one that has an index, and one that takes a copy of it
def test_a_journal_of_which_nothing_is_left_is_refused_and_again_at_the_next_start(tmp_path: Path, broker: str) -> None:
    added = three_files(tmp_path)
    for path in tmp_path.glob("db-*.log"):
        path.rename(f"{path}.away")
    for _ in range(4):  # each leaves a fence
        with pytest.raises(
            JournalLost, match=r"files db-1\.log, db-2\.log, db-3\.log are missing: .*store afresh"
        ) as refusal:
            Term(str(tmp_path), broker, SETTINGS)
        assert refusal.value.message_ids == [each.message.message_id for each in added]
    assert any("all files of this journal are missing" in each for each in check(str(tmp_path)).problems)
    for path in tmp_path.glob("*.away"):
        path.rename(str(path).removesuffix(".away"))
    assert len(bodies(tmp_path, broker=broker)) == len(added)


def test_a_standby_waits_while_nothing_of_the_journal_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    three_files(tmp_path)
    for path in tmp_path.glob("db-*.log"):
        path.unlink()
    standby = Standby(str(tmp_path), f"{tmp_path}/index", "a", SETTINGS)
    standby.follow()
    assert not standby.has_caught_up
    standby.close()
    assert "the standby waits: journal files db-1.log, db-2.log, db-3.log are missing" in caplog.text


# proves: fence-alone-is-no-journal
def test_an_index_that_saw_only_a_fence_misses_nothing(tmp_path: Path) -> None:
    died, follows = (Standby(str(tmp_path), f"{tmp_path}/index", broker, SETTINGS) for broker in "ab")
    died.fence(lambda: True)
    follows.follow()
    follows.follower.checkpoint()
    for standby in (died, follows):
        standby.close()
    (tmp_path / "db-1.log").unlink()
    assert bodies(tmp_path, broker="b") == []


def test_a_lost_journal_begins_empty_if_the_loss_was_declared(tmp_path: Path) -> None:
    three_files(tmp_path)
    bodies(tmp_path, broker="b")
    for path in tmp_path.glob("db-*.log"):
        path.unlink()
    with Term(str(tmp_path), "b", DECLARED) as term:
        term.add_durably(1)
    for broker in ("a", "b"):  # the other index is of the journal that was
        assert len(bodies(tmp_path, broker=broker)) == 1
    is_clean(tmp_path)


@pytest.mark.parametrize("file", [1, 2, 3])
def test_a_lost_file_is_refused_without_an_index_too_and_again_at_the_next_start(tmp_path: Path, file: int) -> None:
    three_files(tmp_path)
    without_index(tmp_path)
    (tmp_path / f"db-{file}.log").unlink()
    for _ in range(2):
        with pytest.raises(JournalLost, match=rf"db-{file}\.log is missing"):
            Term(str(tmp_path), "a", SETTINGS)


def test_damage_that_no_start_would_read_is_found_when_all_files_are_to_be_checked(tmp_path: Path) -> None:
    added = three_files(tmp_path)
    flip(tmp_path, *place(added[0]))
    with pytest.raises(StoreCorrupt, match=r"db-1\.log is corrupt") as refusal:
        Term(str(tmp_path), "a", CHECKED)
    assert refusal.value.message_ids == [added[0].message.message_id]


def test_messages_in_damage_found_after_the_start_are_not_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    added = three_files(tmp_path)
    flip(tmp_path, *place(added[5]))
    assert bodies(tmp_path) == [each.message.body for each in added if each is not added[5]]
    assert added[5].message.message_id in caplog.text


def test_a_damaged_header_of_a_file_that_is_not_read_is_refused(tmp_path: Path) -> None:
    """The header states the end of the file before it: without it, a zombie's late writes would count again."""
    three_files(tmp_path)
    flip(tmp_path, 2, 60)
    with pytest.raises(StoreCorrupt, match=r"db-2\.log is corrupt from offset 0"):
        Term(str(tmp_path), "a", SETTINGS)


@pytest.mark.parametrize("has_index", [True, False])
def test_a_file_in_the_place_of_another_is_refused(tmp_path: Path, has_index: bool) -> None:
    added = three_files(tmp_path)
    (tmp_path / "db-1.log").write_bytes((tmp_path / "db-2.log").read_bytes())
    if not has_index:
        without_index(tmp_path)
    with pytest.raises(StoreCorrupt, match=r"db-1\.log is corrupt .* it has the header of db-2\.log"):
        Term(str(tmp_path), "a", SETTINGS)
    expected = [each.message.body for each in added if each.location >> 32 != 1]
    assert bodies(tmp_path, DECLARED) == expected
    without_index(tmp_path)
    assert bodies(tmp_path) == expected
    is_clean(tmp_path)


# --- the end of the journal: torn, or rotten -----------------------------------------------------------------------


def test_a_torn_tail_is_forgotten_with_a_word_on_whom_it_held(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    term = Term(str(tmp_path), "a", SETTINGS)
    term.add_durably(3)
    term.wait(lambda: term.store.figures.checkpoints > 0)
    first = len(term.bodies())
    last = term.add_durably(1)[0]
    term.crash()
    flip(tmp_path, *place(last))
    assert len(bodies(tmp_path)) == first
    assert "torn" in caplog.text
    assert last.message.message_id in caplog.text
    is_clean(tmp_path)


@pytest.mark.parametrize("harm", ["flipped", "cut", "zeros"])
def test_an_index_after_the_end_of_the_journal_proves_a_loss(tmp_path: Path, harm: str) -> None:
    added = three_files(tmp_path)
    last = added[-1]
    file, at = place(last)
    path = tmp_path / f"db-{file}.log"
    if harm == "flipped":
        flip(tmp_path, file, at)
    elif harm == "cut":
        os.truncate(path, at)
    else:
        content = bytearray(path.read_bytes())
        content[(last.location & 0xFFFFFFFF) - 28 :] = bytes(len(content) - (last.location & 0xFFFFFFFF) + 28)
        path.write_bytes(content)
    for _ in range(2):  # what the first refusal left behind does not hide it from the second
        with pytest.raises(StoreCorrupt) as refusal:
            Term(str(tmp_path), "a", SETTINGS)
        assert last.message.message_id in str(refusal.value)
    assert bodies(tmp_path, DECLARED) == [each.message.body for each in added[:-1]]
    assert bodies(tmp_path) == [each.message.body for each in added[:-1]]
    is_clean(tmp_path)


def test_a_neighbours_index_is_as_good_a_witness(tmp_path: Path) -> None:
    added = three_files(tmp_path)
    flip(tmp_path, *place(added[-1]))
    # Its own index is new: a standby that never followed.
    os.rename(tmp_path / "index" / "a", tmp_path / "aside")
    Index.open(str(tmp_path / "index" / "b")).close()
    os.rename(tmp_path / "aside", tmp_path / "index" / "a")
    with pytest.raises(StoreCorrupt) as refusal:
        Term(str(tmp_path), "b", SETTINGS)
    assert added[-1].message.message_id in str(refusal.value)


def test_a_file_cut_short_is_seen_without_any_index(tmp_path: Path) -> None:
    added = three_files(tmp_path)
    without_index(tmp_path)
    batch = batches(tmp_path, 3)[-1]
    os.truncate(tmp_path / "db-3.log", batch.offset)  # at a batch: nothing is torn
    with pytest.raises(StoreCorrupt, match=r"db-3\.log is corrupt .* it was made 8192 bytes long"):
        Term(str(tmp_path), "a", SETTINGS)
    assert bodies(tmp_path, DECLARED) == [each.message.body for each in added[:-1]]


def test_a_journal_from_a_backup_sets_the_newer_index_aside(tmp_path: Path) -> None:
    with Term(str(tmp_path), "a", SETTINGS) as term:
        term.add_durably(2)
        backup = (tmp_path / "db-1.log").read_bytes()
        term.add_durably(2)
    (tmp_path / "db-1.log").write_bytes(backup)
    assert len(bodies(tmp_path)) == 2
    assert any(".aside-" in name for name in os.listdir(tmp_path / "index"))
    is_clean(tmp_path)


@pytest.mark.parametrize("is_cut", [False, True], ids=["lost", "cut within its header"])
def test_the_last_file_lost_before_any_checkpoint_is_named_by_the_file_before(tmp_path: Path, is_cut: bool) -> None:
    term = Term(str(tmp_path), "a", SETTINGS)
    last = 1
    while last == 1:  # the checkpoint that opens an epoch is made long before
        last = term.add_durably(1, body=b"x" * 1000)[0].location >> 32
    term.crash()
    if is_cut:
        os.truncate(tmp_path / f"db-{last}.log", 50)
    else:
        (tmp_path / f"db-{last}.log").unlink()
    for _ in range(2):
        with pytest.raises((JournalLost, StoreCorrupt), match=rf"db-{last}\.log is (missing|corrupt from offset 0)"):
            Term(str(tmp_path), "a", SETTINGS)
    assert bodies(tmp_path, DECLARED)
    is_clean(tmp_path)


# --- stepped over where that was declared ----------------------------------------------------------------------------


@pytest.mark.parametrize("has_index", [True, False])
def test_declared_damage_is_stepped_over_kept_aside_and_known_from_then_on(
    tmp_path: Path, has_index: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    added = three_files(tmp_path)
    file, at = place(added[5])
    damaged = next(batch for batch in batches(tmp_path, file) if batch.offset < at < batch.end)
    flip(tmp_path, file, at)
    if not has_index:
        without_index(tmp_path)
    before = journal(tmp_path)
    expected = [each.message.body for each in added if each is not added[5]]
    assert bodies(tmp_path, replace(DECLARED, check_for_corrupt_journal_files=True)) == expected

    aside = tmp_path / "quarantine" / f"db-{file}.{damaged.offset}-{damaged.end}.bin"
    assert aside.read_bytes() == before[f"db-{file}.log"][damaged.offset : damaged.end]
    report = json.loads(aside.with_suffix(".json").read_text())
    assert (report["file"], report["start"], report["stop"]) == (f"db-{file}.log", damaged.offset, damaged.end)
    message_id = added[5].message.message_id
    assert [each["message_id"] for each in report["lost"]] == ([message_id] if has_index else [])
    assert message_id in report["doubtful"]["stored"] + report["doubtful"]["pieces_of_text"]
    assert message_id in caplog.text
    assert "quarantine" in caplog.text
    assert {name: journal(tmp_path)[name] for name in before} == before, "nothing is written over or deleted"

    # From now on no declaration is necessary, with or without an index.
    assert bodies(tmp_path, CHECKED) == expected
    without_index(tmp_path)
    assert bodies(tmp_path) == expected
    is_clean(tmp_path)


def test_acknowledgements_in_declared_damage_are_said_again(tmp_path: Path) -> None:
    """The index knows them; a later replay of the journal alone must not bring the messages back."""
    term = Term(str(tmp_path), "a", SETTINGS)
    owner = term.store.queue(Q)
    subscriptions = [term.store.subscription("c", name, T) for name in ("s1", "s2")]
    for subscription, name in zip(subscriptions, ("s1", "s2"), strict=True):
        term.store.append(AddSubscription(subscription, encode_subscription(T, "c", name)))
    added = term.add_durably(4, body=b"x" * 500)
    topical = [term.add(T, body=b"t", owners=tuple(subscriptions)) for _ in range(2)]
    term.wait(lambda: topical[-1] in term.durable_operations)
    removals = [term.remove(each, owner) for each in added[:2]] + [term.remove(topical[0], subscriptions[0], "c:s1")]
    term.wait(lambda: removals[-1] in term.durable_operations)
    rest = term.add_durably(8, body=b"y" * 900)
    term.close()

    removing = [
        batch
        for batch in batches(tmp_path, 1)
        if any(isinstance(decode(payload), RemoveCommand) for _, payload in batch.records)
    ]
    for batch in removing:
        flip(tmp_path, 1, batch.offset + 40)
    settings = replace(DECLARED, check_for_corrupt_journal_files=True)
    expected = [each.message.body for each in (*added[2:], *rest)]
    assert bodies(tmp_path, settings) == expected
    without_index(tmp_path)
    with Term(str(tmp_path), "a", SETTINGS) as again:
        assert again.bodies() == expected
        held = {each.subscription_name: each.count for each in again.owners if each.subscription_name}
        assert held == {"s1": 1, "s2": 2}
    is_clean(tmp_path)


def test_a_subscription_with_a_damaged_record_keeps_terms_and_pending(tmp_path: Path) -> None:
    term = Term(str(tmp_path), "a", SETTINGS)
    pattern = T._replace(name="T.>")
    subscription = term.store.subscription("c", "s", T)
    payload = encode_subscription(T, "c", "s", "a = 1", True, subscribed=pattern)
    term.store.append(AddSubscription(subscription, with_user_hint(payload, "ann")))
    term.wait_durable(1)
    topical = [term.add(T, body=b"t%d" % n, owners=(subscription,)) for n in range(3)]
    term.wait(lambda: topical[-1] in term.durable_operations)
    term.add_durably(8, body=b"y" * 900)
    term.close()
    flip(tmp_path, 1, batches(tmp_path, 1)[1].offset + 40)
    for settings in (replace(DECLARED, check_for_corrupt_journal_files=True), SETTINGS):
        with Term(str(tmp_path), "a", settings) as again:
            owner = next(each for each in again.owners if each.subscription_name == "s")
            assert (owner.selector, owner.no_local, owner.pattern, owner.user) == ("a = 1", True, "T.>", "ann")
            assert [paged.message.body for paged in again.page(owner.id).messages] == [b"t0", b"t1", b"t2"]
        without_index(tmp_path)
    assert bodies(tmp_path)
    is_clean(tmp_path)


@pytest.mark.parametrize("file", [1, 2, 3])
def test_a_declared_lost_file_costs_what_stood_in_it_and_nothing_else(tmp_path: Path, file: int) -> None:
    added = three_files(tmp_path)
    (tmp_path / f"db-{file}.log").unlink()
    expected = [each.message.body for each in added if each.location >> 32 != file]
    lost = {each.message.message_id for each in added if each.location >> 32 == file}
    with pytest.raises(JournalLost, match=rf"db-{file}\.log is missing") as refusal:
        Term(str(tmp_path), "a", SETTINGS)
    assert set(refusal.value.message_ids) == lost
    assert bodies(tmp_path, DECLARED) == expected
    report = json.loads((tmp_path / "quarantine" / f"db-{file}.lost.json").read_text())
    assert {each["message_id"] for each in report["lost"]} == lost
    assert bodies(tmp_path) == expected
    without_index(tmp_path)
    assert bodies(tmp_path) == expected
    is_clean(tmp_path)


def test_a_message_whose_copy_is_damaged_is_rescued_from_its_older_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    added = three_files(tmp_path)
    moved = added[4]
    files = JournalFiles(str(tmp_path))
    files.prepare("x", 8 * KIB)
    writer = JournalWriter(files, "x", files.publish("x", 4))
    ends = {3: batches(tmp_path, 3)[-1].end}
    writer.append([encode_header(Header(4, "x", "promotion", ends, (1, 2, 3, 4), length=8 * KIB))])
    copy = encode_update(moved.message, encode_message(moved.message))
    (location,) = writer.append([with_copy_hint(copy, moved.order_key, moved.location)])
    writer.append([encode_trace("more")])
    writer.sync()
    writer.close()
    expected = [each.message.body for each in added]
    assert bodies(tmp_path) == expected, "the index knows the copy now"

    flip(tmp_path, 4, (location & 0xFFFFFFFF) + 40)
    assert bodies(tmp_path, replace(DECLARED, check_for_corrupt_journal_files=True)) == expected
    assert "rescued from older records" in caplog.text
    without_index(tmp_path)
    assert bodies(tmp_path) == expected
    is_clean(tmp_path)


# --- standing by ---------------------------------------------------------------------------------------------------


def test_a_standby_does_not_step_over_damage_in_a_sealed_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    added = three_files(tmp_path)
    without_index(tmp_path)
    flip(tmp_path, *place(added[1]))
    standby = Standby(str(tmp_path), f"{tmp_path}/index", "b", SETTINGS)
    for _ in range(3):
        standby.follow()
    assert not standby.has_caught_up
    assert standby.messages <= 1
    standby.close()
    assert caplog.text.count("the standby waits") == 1
    with pytest.raises(StoreCorrupt):
        Term(str(tmp_path), "b", SETTINGS)


# --- store check ---------------------------------------------------------------------------------------------------


def test_the_checker_carries_on_and_tells_each_damaged_place(tmp_path: Path) -> None:
    added = three_files(tmp_path)
    hurt = [added[1], added[6]]
    for each in hurt:
        flip(tmp_path, *place(each))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    steps: list[tuple[int, int]] = []
    report = check(str(tmp_path), progress=lambda done, total: steps.append((done, total)))
    assert len(report.damages) == 2
    for each in hurt:
        assert any(each.message.message_id in problem and "corrupt" in problem for problem in report.problems)
    assert report.messages == 10
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, "it reads only"


def test_the_checker_tells_a_lost_file_and_a_torn_tail(tmp_path: Path) -> None:
    added = three_files(tmp_path)
    without_index(tmp_path)
    (tmp_path / "db-1.log").unlink()
    flip(tmp_path, *place(added[-1]))
    report = check(str(tmp_path))
    assert any("db-1.log is missing" in problem for problem in report.problems)
    assert any("torn" in note and added[-1].message.message_id in note for note in report.notes)


def change_index(directory: Path, change: Callable[[Follower], None]) -> None:
    files = JournalFiles(str(directory))
    with Index.open(str(directory / "index" / "a")) as index:
        follower = Follower(files, index, records_per_checkpoint=1 << 30, is_trial=True)
        follower.advance(is_final=True)
        change(follower)
        follower.checkpoint()


def test_the_checker_misses_a_pin_that_a_replay_finds(tmp_path: Path) -> None:
    term = Term(str(tmp_path), "a", SETTINGS)
    owner = term.store.queue(Q)
    added = [message for _ in range(9) for message in term.add_durably(1, body=b"x" * 1000)]
    term.remove(added[0], owner)
    file = term.add_durably(1)[0].location >> 32
    assert file != added[0].location >> 32
    term.close()
    is_clean(tmp_path)

    def unpin(follower: Follower) -> None:
        follower.state.files[file].pins.clear()
        follower.state.tail.touched_files.add(file)

    change_index(tmp_path, unpin)
    report = check(str(tmp_path))
    pinned = added[0].location >> 32
    assert any(f"db-{file}.log does not pin db-{pinned}.log" in problem for problem in report.problems), report.problems


def resubscribed(directory: Path, *, keeps: bool) -> tuple[Term, dict[str, bytes]]:
    """A durable subscription whose record was written in each of db-1 to db-4; up to the last it held something. Then
    db-1 goes; if no message of db-2 is kept, so do that and db-3. Also returns the journal of before."""
    term = Term(str(directory), "a", replace(SETTINGS, cleanup_interval=0.0))
    queue, owner = term.store.queue(Q), term.store.subscription("c", "one", T)

    def go_on_to(file: int) -> None:
        while term.add_durably(1, body=b"x" * 1000)[0].location >> 32 < file:
            pass

    def subscribe() -> None:
        term.do(AddSubscription(owner, encode_subscription(T, "c", "one")))

    subscribe()
    pending = [term.add(T, owners=(owner,))]
    go_on_to(2)
    subscribe()
    pending.append(term.add(T, owners=(owner,)))
    go_on_to(3)
    subscribe()
    term.take(pending, owner, "c:one")
    go_on_to(4)
    subscribe()
    go_on_to(5)
    there = journal(directory)
    going = [paged for paged in term.page(queue).messages if not keeps or paged.location >> 32 != 2]
    term.take(going, queue)
    term.wait(term.store.checkpoint()[0].done)
    gone = [1] if keeps else [1, 2, 3]
    term.wait(lambda: not any((directory / f"db-{file}.log").exists() for file in gone))
    return term, there


def test_the_check_knows_that_files_may_be_pinned_indirectly(tmp_path: Path) -> None:
    """The pins of a subscription's newest record depend on how many of the older records were seen."""
    term, _ = resubscribed(tmp_path, keeps=True)
    term.close()
    assert journal(tmp_path).keys() >= {"db-2.log", "db-3.log", "db-4.log"}
    is_clean(tmp_path)

    def unpin(follower: Follower) -> None:
        assert 2 not in follower.state.files[4].pins
        follower.state.files[3].pins.clear()
        follower.state.tail.touched_files.add(3)

    change_index(tmp_path, unpin)
    problems = check(str(tmp_path)).problems
    assert [re.findall(r"db-\d+", problem) for problem in problems] == [["db-3", "db-2"], ["db-4", "db-2"]], problems


def test_the_check_requires_no_pin_of_an_existing_file_that_was_given_up(tmp_path: Path) -> None:
    """A crash came between the record that gives files up and their unlink."""
    term, there = resubscribed(tmp_path, keeps=False)
    term.close()
    for name in ("db-2.log", "db-3.log"):
        (tmp_path / name).write_bytes(there[name])
    is_clean(tmp_path)
    with Term(str(tmp_path), "a", SETTINGS) as term:
        term.wait(lambda: not any((tmp_path / f"db-{file}.log").exists() for file in (2, 3)))
    is_clean(tmp_path)


def test_the_checker_counts_what_each_owner_has_in_each_file(tmp_path: Path) -> None:
    three_files(tmp_path)

    def miscount(follower: Follower) -> None:
        held = follower.state.files[1]
        held.live_bytes += 1
        for holder in held.holders.values():
            holder[1] += 1
            holder[2] = 1
        follower.state.tail.touched_files.add(1)

    change_index(tmp_path, miscount)
    problems = check(str(tmp_path)).problems
    assert any("live bytes in db-1.log" in problem for problem in problems), problems
    assert any(f"{Q} has" in problem and "in db-1.log" in problem for problem in problems), problems
