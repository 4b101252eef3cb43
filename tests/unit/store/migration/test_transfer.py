"""Import and export between directories, and the proof that all messages arrived."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemmq.cli import main
from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import encode_batch
from tandemmq.store.kahadb.minimal import is_minimal
from tandemmq.store.migration.contents import Contents, NotTransferable
from tandemmq.store.migration.offline_epoch import OfflineEpoch
from tandemmq.store.migration.proof import Proof, differences, fingerprint, prove, prove_prepared
from tandemmq.store.migration.reading import read_contents
from tandemmq.store.migration.transfer import Transfer, selecting, transfer
from tandemmq.store.operations import AddMessage, AddSubscription
from tandemmq.store.records.commands import encode_add, encode_prepare, encode_remove, encode_subscription
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import read_headers
from tests.support.prove import SEED
from tests.support.store.store_harness import Q, Term

pytestmark = pytest.mark.promise("back-to-activemq")

T = Destination(DestinationKind.TOPIC, "T.A")
OTHER = Destination(DestinationKind.QUEUE, "OTHER.X")
XA = XaTransactionId(7, b"global", b"branch")


@contextmanager
def held(directory: Path) -> Iterator[Contents]:
    with tempfile.TemporaryDirectory() as scratch, read_contents(str(directory), scratch) as contents:
        yield contents


def proof_of(directory: Path) -> Proof:
    with held(directory) as contents:
        return prove(contents, contents.owners()) | prove_prepared(contents)


def copy(source: Path, target: Path, pattern: str | None = None, file_length: int = 64 * 1024) -> Transfer:
    target.mkdir(exist_ok=True)
    with (
        held(source) as contents,
        tempfile.TemporaryDirectory() as scratch,
        OfflineEpoch(str(target), scratch, name="transfer", journal_max_file_length=file_length) as epoch,
    ):
        return transfer(contents, epoch, selects=selecting(pattern))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store with two queues, two subscriptions of one topic that wait for different messages, and many files."""
    directory = tmp_path / "source"
    directory.mkdir()
    term = Term(str(directory))
    subscriptions = {name: term.store.subscription("c", name, T) for name in ("all", "red")}
    for name, owner in subscriptions.items():
        selector = "colour = 'red'" if name == "red" else None
        term.store.append(AddSubscription(owner, encode_subscription(T, "c", name, selector)))
    added = term.add_durably(300, body=b"x" * 700)
    queue = term.store.queue(Q)
    for operation in added[50:120:3]:
        term.remove(operation, queue)
    term.add_durably(20, OTHER)
    topical = [term.add(T, owners=tuple(subscriptions.values())) for _ in range(30)]
    term.wait(lambda: topical[-1] in term.durable_operations)
    for operation in topical[::2]:
        term.remove(operation, subscriptions["red"], "c:red")
    for operation in topical[5:8]:
        term.remove(operation, subscriptions["all"], "c:all")
    message = Message(Q, "ID:x:1:1:1", "Grüße".encode(), BodyKind.TEXT, persistent=True, properties={"colour": "blue"})
    term.do(AddMessage(message, (queue,), encode_add(message, encode_message(message))))
    term.close()
    return directory


def test_an_import_brings_everything_in_order(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"

    report = copy(source, target)

    there = proof_of(target)
    assert report.source == proof_of(source)
    assert differences(report.source, there) == []
    assert there.keys() == report.source.keys()
    assert {name: sum.count for name, sum in there.items()} == {
        "queue://OTHER.X": 20,
        "queue://Q.A": 300 - 24 + 1,
        "topic://T.A for c:all": 27,
        "topic://T.A for c:red": 15,
    }
    assert len(list(target.glob("db-*.log"))) > 1, "the copy is long enough for a rotation"
    assert check(str(target)).is_clean
    assert check(str(source)).is_clean


def test_a_topic_s_message_is_written_once(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"

    copy(source, target, "topic://T.*")

    with held(target) as contents:
        locations = {entry.location for owner in contents.owners() for _, entry in contents.state.entries(owner.id, 0)}
    # 30 were sent; number 6 was read by both
    assert len(locations) == 29


def test_an_import_that_was_cut_off_is_completed(source: Path, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    copy(source, whole)
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    part.mkdir()
    # The first files of a whole import, the last one torn somewhere behind its header: what a kill leaves.
    ends = read_headers(JournalFiles(str(whole))).ends
    last = chance.choice([file for file, end in sorted(ends.items()) if end > 1000])
    for file in range(1, last + 1):
        shutil.copy(whole / f"db-{file}.log", part)
    os.truncate(part / f"db-{last}.log", chance.randrange(500, ends[last]))
    os.truncate(part / f"db-{last}.log", (whole / f"db-{last}.log").stat().st_size)

    report = copy(source, part)

    assert report.copied + report.skipped == sum(sum_.count for sum_ in report.source.values())
    assert differences(report.source, proof_of(part)) == []
    assert check(str(part)).is_clean


def test_messages_in_the_target_stay_and_come_first(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with Term(str(target), "b") as term:
        late = term.store.subscription("other", "s", T)
        term.store.append(AddSubscription(late, encode_subscription(T, "other", "s")))
        term.sequence = 1000  # other ids than in the source
        mine = [operation.message.body for operation in term.add_durably(3, body=b"mine")]

    report = copy(source, target)

    with held(source) as contents, held(target) as there:
        ids = {
            str(owner): {stored.add.message_id for stored in contents.messages(owner.id)} for owner in contents.owners()
        }
        filtered = prove(there, there.owners(), counts=lambda owner, id: id in ids.get(str(owner), set()))
    assert differences(report.source, filtered) == []
    assert filtered["topic://T.A for other:s"].count == 0, "it never asked for what was sent elsewhere"
    with Term(str(target), "c") as again:
        assert again.bodies()[:3] == mine
    assert check(str(target)).is_clean


def test_another_message_by_the_same_id_is_found_out(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with Term(str(target), "b") as term:
        (mine,) = term.add_durably(1, body=b"mine")

    report = copy(source, target)

    assert mine.message.message_id in {"ID:1-p:1:1:1"}, "the source has one of that id, too"
    (difference,) = differences(report.source, proof_of(target))
    assert difference.startswith("queue://Q.A: 277 in both, but the hashes differ")


def test_a_subscription_of_a_pattern_is_brought_topic_by_topic(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    with Term(str(source)) as term:
        pattern = T._replace(name="T.>")
        for name in ("T.A", "T.B"):
            topic = T._replace(name=name)
            owner = term.store.subscription("c", "wild", topic)
            term.store.append(AddSubscription(owner, encode_subscription(topic, "c", "wild", subscribed=pattern)))
            added = [term.add(topic, owners=(owner,)) for _ in range(5)]
            term.wait(lambda last=added[-1]: last in term.durable_operations)  # type: ignore[misc]

    report = copy(source, target)

    assert differences(report.source, proof_of(target)) == []
    assert {name: sum.count for name, sum in proof_of(target).items()} == {
        "topic://T.A for c:wild": 5,
        "topic://T.B for c:wild": 5,
    }
    assert check(str(target)).is_clean


@pytest.mark.parametrize(("topic", "colour"), [("T.A", "green"), ("T.OTHER", "red")])
def test_a_subscription_on_other_terms_is_not_mixed_up(source: Path, tmp_path: Path, topic: str, colour: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with tempfile.TemporaryDirectory() as scratch, OfflineEpoch(str(target), scratch, name="x") as epoch:
        epoch.write([encode_subscription(T._replace(name=topic), "c", "red", f"colour = '{colour}'")])

    with pytest.raises(NotTransferable, match="c:red: the target has a subscription of that name with other terms"):
        copy(source, target)

    assert {sum_.count for sum_ in proof_of(target).values()} == {0}


def prepared(directory: Path) -> None:
    """Two messages; a transaction that is prepared takes the first and sends a third."""
    directory.mkdir()
    messages = [
        Message(Q, f"ID:x:1:1:{number}", b"body", BodyKind.TEXT, persistent=True, timestamp=1) for number in (1, 2, 3)
    ]
    with tempfile.TemporaryDirectory() as scratch, OfflineEpoch(str(directory), scratch, name="x") as epoch:
        epoch.write([encode_add(message, encode_message(message)) for message in messages[:2]])
        epoch.write(
            [
                encode_remove(Q, messages[0].message_id, XA),
                encode_add(messages[2], encode_message(messages[2]), XA),
                encode_prepare(XA),
            ]
        )


def test_a_prepared_transaction_stays_in_doubt(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    prepared(source)

    report = copy(source, target)

    assert (report.transactions, report.source["queue://Q.A"].count) == (1, 2)
    assert report.source[f"prepared transaction {XA.key}"].count == 2
    assert proof_of(target) == report.source
    assert copy(source, target).transactions == 0


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("Q.A", {"queue://Q.A"}),
        ("queue://*.A", {"queue://Q.A"}),
        (">", {"queue://Q.A", "queue://OTHER.X", "topic://T.A for c:all", "topic://T.A for c:red"}),
        ("topic://>", {"topic://T.A for c:all", "topic://T.A for c:red"}),
        ("OTHER.>", {"queue://OTHER.X"}),
        ("*", set()),
    ],
)
def test_a_pattern_selects_destinations(source: Path, tmp_path: Path, pattern: str, expected: set[str]) -> None:
    report = copy(source, tmp_path / "target", pattern)

    assert report.source.keys() == expected
    assert proof_of(tmp_path / "target").keys() == expected


def test_the_hash_sees_what_a_receiver_sees(tmp_path: Path) -> None:
    plain = {"destination": Q, "message_id": "ID:x:1:1:1", "body": b"body"}
    variants = [
        {}, {"message_id": "ID:x:1:1:2"}, {"destination": OTHER}, {"body": b"bodY"}, {"body_kind": BodyKind.TEXT},
        {"properties": {"a": 1}}, {"properties": {"a": "1"}}, {"properties": {"a": True}}, {"persistent": True},
        {"priority": 5}, {"expiration": 1}, {"timestamp": 1}, {"correlation_id": "c"}, {"reply_to": Q}, {"type": "c"},
        {"group_id": "c"}, {"group_sequence": 1}, {"user_id": "c"}, {"redelivery_counter": 1},
        {"original_destination": Q},
    ]  # fmt: skip
    prints = {hashlib.sha256(fingerprint(Message(**(plain | variant)))).digest() for variant in variants}

    assert len(prints) == len(variants)
    one = Message(**plain, properties={"a": 1, "b": 2})
    other = Message(**plain, properties={"b": 2, "a": 1})
    assert fingerprint(one) == fingerprint(other)
    other.text_view = "x"
    assert fingerprint(one) != fingerprint(other)


def test_a_hash_tells_order(tmp_path: Path) -> None:
    sums = []
    for number, order in enumerate(((1, 2), (2, 1))):
        directory = tmp_path / str(number)
        directory.mkdir()
        with tempfile.TemporaryDirectory() as scratch, OfflineEpoch(str(directory), scratch, name="x") as epoch:
            for sequence in order:
                message = Message(Q, f"ID:x:1:1:{sequence}", b"b", persistent=True)
                epoch.write([encode_add(message, encode_message(message))])
        sums.append(proof_of(directory))

    assert differences(*sums) == ["queue://Q.A: 2 in both, but the hashes differ: another content or order"]


# ---- the commands


def tell(*arguments: object) -> tuple[int, dict[str, Any]]:
    """A command's exit code and its JSON."""
    result = CliRunner().invoke(main, ["store", *map(str, arguments), "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout)


def test_the_commands_carry_a_store_there_and_back(source: Path, tmp_path: Path) -> None:
    imported, exported = tmp_path / "imported", tmp_path / "exported"

    code, report = tell("import", source, "--data", imported)

    assert (code, report["proved"], report["copied"]) == (0, True, 20 + 277 + 27 + 15)
    for line in report["destinations"]:
        assert line["source"] == line["target"]
    before = proof_of(imported)
    again = tell("import", source, "--data", imported)[1]
    assert (again["copied"], again["skipped"]) == (0, report["copied"])
    assert proof_of(imported) == before

    code, back = tell("export", imported, "--to", exported, "--destination", "queue://>")
    assert code == 0
    queues = [line for line in report["destinations"] if line["name"].startswith("queue")]
    assert back["destinations"] == queues
    assert tell("export", imported, "--to", exported)[0] == 2, "only into a fresh directory"
    assert check(str(exported)).is_clean
    assert is_minimal(str(exported)), "ActiveMQ is told the version of the bodies"


def test_an_import_writes_files_as_long_as_the_settings_say(source: Path, tmp_path: Path) -> None:
    settings = tmp_path / "tandemmq.toml"
    settings.write_text('[store]\njournal_max_file_length = "128kb"\n')

    assert tell("import", source, "--data", tmp_path / "target", "--config", settings)[0] == 0

    sizes = [path.stat().st_size for path in (tmp_path / "target").glob("db-*.log")]
    assert len(sizes) > 1
    assert max(sizes) < 160 * 1024


def test_a_dry_run_reports_the_content_and_changes_nothing(source: Path, tmp_path: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in source.rglob("*")}

    code, report = tell("import", source, "--dry-run")

    assert code == 0
    assert {line["name"]: line["messages"] for line in report["destinations"]} == {
        "queue://OTHER.X": 20,
        "queue://Q.A": 277,
        "topic://T.A for c:all": 27,
        "topic://T.A for c:red": 15,
    }
    # 277 + 20 and 27 + 15 entries, the files' holders know of all of them
    assert sum(held["messages"] for file in report["files"] for held in file["holders"].values()) == 277 + 20 + 27 + 15
    assert any(file["keeps_dead_what_is_in"] for file in report["files"])
    assert report["bytes"] == sum(path.stat().st_size for path in source.glob("db-*.log"))
    assert 0 < report["bytes_freed_by_compaction"] < report["bytes"]
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in source.rglob("*")} == before


def test_a_dry_run_reports_all_damage(source: Path) -> None:
    filled = [path for path in sorted(source.glob("db-*.log")) if path.read_bytes()[1500:2000].strip(b"\0")][:2]
    for path in filled:
        content = bytearray(path.read_bytes())
        content[1500] ^= 1
        path.write_bytes(content)

    code, report = tell("import", source, "--dry-run")

    assert code == 1
    assert len(filled) == 2
    assert [text.split(" is corrupt")[0] for text in report["damage"]] == [f"journal file {p.name}" for p in filled]


# proves: contents-are-compared
def test_a_message_damaged_after_the_read_is_not_transferred(source: Path) -> None:
    with held(source) as contents:
        (path,) = [path for path in source.glob("db-*.log") if b"ID:x:1:1:1" in path.read_bytes()]
        path.write_bytes(path.read_bytes().replace("Grüße".encode(), "GRüße".encode()))
        with pytest.raises(JournalCorrupt):
            [list(contents.messages(owner.id)) for owner in contents.owners()]


def test_a_directory_in_use_is_refused_and_may_be_looked_at(source: Path, tmp_path: Path) -> None:
    fresh, used = tmp_path / "fresh", tmp_path / "used"
    used.mkdir()
    with lock_of_another_process(source):
        for command in (("import", source, "--data", fresh), ("export", source, "--to", fresh)):
            code, text = tell(*command)
            assert (code, "in use by" in text["error"]) == (1, True)
        code, report = tell("import", source, "--dry-run")
        assert (code, "in use by" in report["notes"][0]) == (0, True)
    with lock_of_another_process(used):
        code, text = tell("import", source, "--data", used)
        assert (code, "in use by" in text["error"]) == (1, True)
    assert not fresh.exists()
    assert not list(used.glob("db-*.log"))


def test_scheduled_messages_are_named_and_left_aside(source: Path, tmp_path: Path) -> None:
    scheduler = tmp_path / "localhost" / "scheduler"
    scheduler.mkdir(parents=True)
    (scheduler / "scheduleDB.data").write_bytes(b"")
    add = [b"\x0b\x0a" + b"\x0a\x04jobs" + b"\x12\x02" + job for job in (b"j1", b"j2")]
    remove = b"\x0d\x0c" + b"\x0a\x04jobs" + b"\x12\x02j1" + b"\x18\x05"
    (scheduler / "db-1.log").write_bytes(encode_batch([*add, remove])[0])

    assert tell("import", source, "--dry-run")[1]["scheduled"] == {str(scheduler): 1}
    assert tell("import", source, "--data", tmp_path / "target")[1]["notes"] == [f"1 scheduled messages in {scheduler}"]


@contextmanager
def lock_of_another_process(directory: Path) -> Iterator[None]:
    """Hold the lock file as ActiveMQ does."""
    program = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'w')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(directory / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.communicate(b"")
