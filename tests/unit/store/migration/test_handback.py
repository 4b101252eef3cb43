"""Hand-back with crashes: after any interruption the directory opens here, and a second run completes it."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.journal.errors import JournalFailed
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.store.kahadb.minimal import is_minimal
from tandemmq.store.migration.handback import QUARANTINE, content_after_end, hand_back, is_handed_back, rehearse
from tandemmq.store.migration.reading import read_contents
from tandemmq.store.operations import AddSubscription, PrepareTransaction, RemoveMessage
from tandemmq.store.records.commands import (
    encode_add,
    encode_prepare,
    encode_remove,
    encode_rewritten,
    encode_subscription,
)
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import read_headers
from tandemmq.store.writer.journal_end import NoProof
from tests.support.prove import IS_PROOF, SEED
from tests.support.store.cut_off_disk import CutOffDisk
from tests.support.store.store_harness import Q, Term

pytestmark = pytest.mark.promise("back-to-activemq")

T = Destination(DestinationKind.TOPIC, "T.A")
TINY_FILES = StoreSettings(
    journal_max_file_length=4096, checkpoint_interval=3600.0, fence_check_interval=0.05, enable_compaction=False
)
CRASHES_SAMPLED = 8


def contents(directory: Path, scratch: Path) -> dict[str, list[str]]:
    shutil.rmtree(scratch, ignore_errors=True)
    with read_contents(str(directory), str(scratch)) as held:
        found = {
            str(owner.destination): [stored.add.message_id for stored in held.messages(owner.id)]
            for owner in held.owners()
        }
        return found | {key: [] for key, each in held.state.transactions.items() if each.is_prepared}


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """A store with each thing that a hand-back repairs: a zombie's batch, strays among copies, a transaction."""
    directory = tmp_path / "data"
    directory.mkdir()
    messages = [Message(Q, f"ID:x:1:1:{number}", b"body", persistent=True, timestamp=1) for number in range(5)]
    adds = [encode_add(message, encode_message(message)) for message in messages]
    xa = XaTransactionId(7, b"global", b"branch")
    doubt = [encode_remove(Q, messages[2].message_id, xa), encode_prepare(xa)]
    (directory / "db-1.log").write_bytes(encode_batch([*adds[:4], *doubt])[0])
    strays = [encode_rewritten(1), encode_remove(Q, messages[1].message_id), adds[4]]
    (directory / "db-2.log").write_bytes(encode_batch(strays)[0])
    term = Term(str(directory), settings=TINY_FILES)
    subscription = term.store.subscription("c", "s", T)
    term.store.append(AddSubscription(subscription, encode_subscription(T, "c", "s")))
    topical = [term.add(T, owners=(subscription,)) for _ in range(3)]
    term.wait(lambda: topical[-1] in term.durable_operations)
    term.crash()
    Term(str(directory), "b", settings=TINY_FILES).crash()
    files = JournalFiles(str(directory))
    end = read_headers(files).ends[3]
    with open(files.path(3), "r+b") as stream:
        stream.seek(end)
        stream.write(encode_batch([encode_remove(Q, messages[0].message_id)])[0])
    return directory


@pytest.fixture
def compacted(tmp_path: Path) -> Path:
    """A queue whose oldest messages a compaction has copied behind the younger ones, one of them in doubt."""
    directory = tmp_path / "compacted"
    directory.mkdir()
    term = Term(str(directory), settings=replace(TINY_FILES, journal_max_file_length=16 * 1024))
    queue = term.store.queue(Q)
    added = [operation for _ in range(5) for operation in term.add_durably(12, body=b"x" * 900)]
    for number, operation in enumerate(added[:40]):
        if number % 8:
            term.remove(operation, queue)
    xa = XaTransactionId(7, b"global", b"branch")
    held = added[8]
    payload = encode_remove(Q, held.message.message_id, xa)
    remove = RemoveMessage(queue, held.order_key, held.location, held.message.message_id, payload, size=held.size)
    term.store.append(PrepareTransaction(xa, [remove], encode_prepare(xa)))
    term.add_durably(1)
    compaction = term.store.compact()
    term.wait(compaction.done)
    assert compaction.result().messages
    term.close()
    return directory


@pytest.mark.prove
@pytest.mark.parametrize("before", ["spoilt", "compacted"])
def test_each_crash_leaves_a_directory_that_opens_and_can_be_handed_back(
    request: pytest.FixtureRequest, before: str, tmp_path: Path
) -> None:
    given: Path = request.getfixturevalue(before)
    mine = contents(given, tmp_path / "scratch")
    assert [len(ids) for ids in mine.values()] == ([4, 3, 0] if before == "spoilt" else [26, 0])
    whole = CutOffDisk()
    shutil.copytree(given, tmp_path / "whole")
    report = hand_back(str(tmp_path / "whole"), str(tmp_path / "work"), disk=whole)
    assert (report.is_ready, bool(report.reordered)) == (True, before == "compacted")
    print(f"TANDEMMQ_SEED={SEED}, {whole.count} calls")
    assert whole.count > 50
    calls = list(range(1, whole.count + 1))
    if not IS_PROOF:
        calls = random.Random(SEED).sample(calls, CRASHES_SAMPLED)
    for at in calls:
        directory, work = tmp_path / f"cut-{at}", tmp_path / f"work-{at}"
        shutil.copytree(given, directory)
        with pytest.raises((OSError, JournalFailed), match="cut off at call"):
            hand_back(str(directory), str(work / "1"), disk=CutOffDisk(at))
        assert contents(directory, tmp_path / "scratch") == mine, f"call {at}"
        assert hand_back(str(directory), str(work / "2")).is_ready, f"call {at}"
        assert contents(directory, tmp_path / "scratch") == mine, f"call {at}"
        assert is_handed_back(JournalFiles(str(directory)))
        assert check(str(directory)).is_clean, f"call {at}"
        assert rehearse(str(directory), str(work / "3")).was_done


def test_a_dry_run_says_it_and_does_nothing(spoilt: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in spoilt.rglob("*") if path.is_file()}

    report = rehearse(str(spoilt), str(tmp_path / "work"))

    assert [text.split(":")[0] for text in report.ended] == ["db-2.log", "db-3.log"]
    assert (report.removed, report.copied, report.transactions) == (0, 0, 1)
    assert (report.order, report.problems, report.was_done) == ([], [], False)
    assert {path: path.read_bytes() for path in spoilt.rglob("*") if path.is_file()} == before


def test_a_renamed_index_stays(spoilt: Path, tmp_path: Path) -> None:
    (spoilt / "db.data").write_bytes(b"an index of ActiveMQ's that says something else")
    (spoilt / "db.redo").write_bytes(b"redo")
    before = {file: (spoilt / f"db-{file}.log").read_bytes() for file in (2, 3)}

    report = hand_back(str(spoilt), str(tmp_path / "work"))

    assert report.is_ready
    assert {Path(path).read_bytes() for path in report.set_aside} == {
        b"an index of ActiveMQ's that says something else",
        b"redo",
    }
    assert is_minimal(str(spoilt))
    for file, content in before.items():
        assert (spoilt / QUARANTINE / f"db-{file}.log.1").read_bytes() == content
        assert (spoilt / f"db-{file}.log").stat().st_size >= len(content), "no file gets shorter"
    files = JournalFiles(str(spoilt))
    ends = read_headers(files).ends
    assert [content_after_end(files, file, end) for file, end in ends.items()] == [None] * len(ends)


def test_records_after_a_handback_are_handed_back_again(spoilt: Path, tmp_path: Path) -> None:
    assert hand_back(str(spoilt), str(tmp_path / "work")).is_ready
    with Term(str(spoilt), "c", settings=TINY_FILES) as term:
        term.add_durably(1)

    report = hand_back(str(spoilt), str(tmp_path / "again"))

    assert (report.was_done, report.is_ready) == (False, True)
    assert check(str(spoilt)).is_clean


def test_a_zombie_that_wakes_after_a_handback_is_found(spoilt: Path, tmp_path: Path) -> None:
    assert hand_back(str(spoilt), str(tmp_path / "work")).is_ready
    files = JournalFiles(str(spoilt))
    end = read_headers(files).ends[4]
    with open(files.path(4), "r+b") as stream:
        stream.seek(end)
        stream.write(encode_batch([encode_remove(Q, "ID:x:1:1:0")])[0])

    report = hand_back(str(spoilt), str(tmp_path / "again"))

    assert [text.split(":")[0] for text in report.ended] == ["db-4.log"]
    assert report.is_ready
    assert hand_back(str(spoilt), str(tmp_path / "third")).was_done


def test_a_lock_that_is_lost_ends_it(spoilt: Path, tmp_path: Path) -> None:
    mine = contents(spoilt, tmp_path / "scratch")
    answers = iter([True, False])

    with pytest.raises(NoProof):
        hand_back(str(spoilt), str(tmp_path / "work"), has_proof=lambda: next(answers))

    assert contents(spoilt, tmp_path / "scratch") == mine
    assert hand_back(str(spoilt), str(tmp_path / "again")).is_ready


def test_a_damaged_file_is_not_handed_back(spoilt: Path, tmp_path: Path) -> None:
    content = bytearray((spoilt / "db-1.log").read_bytes())
    content[100] ^= 1
    (spoilt / "db-1.log").write_bytes(content)

    with pytest.raises(Exception, match=r"db-1\.log is corrupt"):
        hand_back(str(spoilt), str(tmp_path / "work"))
    assert not is_handed_back(JournalFiles(str(spoilt)))
