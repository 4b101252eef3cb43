"""Every byte of a journal file is in one stretch, and every record of a whole batch in one row."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.format import END_RECORD
from tandemmq.journal.writer import JournalWriter
from tandemmq.pipeline import columns
from tandemmq.pipeline.rows import DROPMALFORMED, FAILFAST, Malformed, rows
from tandemmq.pipeline.stores import NoJournal, journal_files
from tandemmq.pipeline.walk import JournalFile, Stretch, walk
from tandemmq.store.records.commands import (
    encode_add,
    encode_commit,
    encode_producer_audit,
    encode_remove,
    encode_subscription,
    encode_trace,
    encode_update,
)
from tandemmq.store.records.marks import encode_clock, encode_gone
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.tools.inspect import Seen, read_headers
from tandemmq.store.tools.inspect import walk as inspect_walk
from tests.support.pipeline.pipeline_journals import FILE_BYTES, QUEUE, add, message, write_foreign, write_store


def at(path: Path, **options: object) -> JournalFile:
    return JournalFile(str(path), "s", int(path.stem[3:]), path.stat().st_size, **options)  # type: ignore[arg-type]


def tiles(file: JournalFile) -> list[Stretch]:
    """The stretches, which must follow each other from 0 to the size of the file."""
    found = list(walk(file))
    edge = 0
    for stretch in found:
        assert (stretch.start, stretch.stop > edge) == (edge, True), found
        edge = stretch.stop
    assert edge == os.path.getsize(file.path)
    return found


def dicts(file: JournalFile, table: str, *arguments: str, payload: bool = False) -> list[dict[str, object]]:
    names = [name for name, _ in columns.COLUMNS[table]]
    return [dict(zip(names, row, strict=True)) for row in rows(file, table, *arguments, payload=payload)]


def test_a_store_of_ours_is_read_as_the_store_itself_reads_it(store: Path) -> None:
    files = journal_files([str(store)], is_tail_wanted=True)
    assert len(files) > 2
    assert [file.state for file in files] == ["closed"] * (len(files) - 1) + ["current"]
    epoch_history = read_headers(JournalFiles(str(store)))
    for file in files:
        tiles(file)
        seen = list(inspect_walk(JournalFiles(str(store)), epoch_history, file.file))
        assert [(item.offset, item.size) for item in seen if isinstance(item, Seen)] == [
            (row["offset"], row["length"]) for row in dicts(file, columns.RECORDS)
        ]
        assert {row["epoch"] for row in dicts(file, columns.RECORDS)} == {3}
    assert sum(len(dicts(file, columns.MESSAGES)) for file in files) == 300
    assert sum(len(dicts(file, columns.ACKS)) for file in files) == 290


def test_the_parts_of_a_file_are_the_file(store: Path) -> None:
    files = journal_files([str(store)], is_tail_wanted=True)
    for file in (files[0], files[-1]):
        assert (file.end is None) == file.is_current
        whole = tiles(file)
        assert len(whole) > 3
        for border in [stretch.start for stretch in whole]:
            first, second = replace(file, stop=border), replace(file, start=border)
            assert [*walk(first), *walk(second)] == whole
            assert [*rows(first, columns.RECORDS), *rows(second, columns.RECORDS)] == [*rows(file, columns.RECORDS)]
        assert list(walk(replace(file, start=whole[1].start, stop=whole[3].start))) == whole[1:3]


def test_a_damaged_batch_is_told_and_what_follows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    write_foreign(path, [[add(number)] for number in range(1, 6)])
    whole = tiles(at(path))
    content = bytearray(path.read_bytes())
    content[whole[1].start + 60] ^= 1  # within a record
    content[whole[3].start] ^= 1  # the mark of a batch
    path.write_bytes(content)
    found = tiles(at(path))
    assert [stretch.status for stretch in found] == ["ok", "bad_sum", "ok", "gap", "ok", "end", "padding"]
    assert (found[1][:2], found[3][:2]) == (whole[1][:2], whole[3][:2])
    assert [row["message_id"] for row in dicts(at(path), columns.RECORDS)] == [
        f"ID:tests-1:1:1:{number}" for number in (1, 3, 5)
    ]
    (text,) = dicts(at(path), columns.FILES)
    assert text["damaged_bytes"] == sum(found[n].stop - found[n].start for n in (1, 3))
    for table in columns.TABLES:
        with pytest.raises(Malformed, match=f"from {whole[1].start} to {whole[1].stop}"):
            list(rows(at(path), table, FAILFAST))


def test_a_torn_tail_ends_where_the_zeros_begin(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    write_foreign(path, [[add(1)], [add(2)]])
    _, second, *_ = tiles(at(path))
    content = bytearray(path.read_bytes())
    torn = second.stop - 100
    content[torn:] = bytes(len(content) - torn)
    path.write_bytes(content)
    assert [(stretch.start, stretch.stop, stretch.status) for stretch in tiles(at(path))] == [
        (0, second.start, "ok"),
        (second.start, len(bytes(content).rstrip(b"\0")), "torn"),
        (len(bytes(content).rstrip(b"\0")), FILE_BYTES, "padding"),
    ]
    # of a file that is being written it is what has not come yet
    assert [stretch.status for stretch in tiles(at(path, is_current=True))] == ["ok", "padding"]


def test_batches_after_a_named_end_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    write_foreign(path, [[add(1)], [add(2)], [encode_trace('TANDEMMQ-NEXT {"file": 2}')]])
    first, second, _, *_ = tiles(at(path))
    found = tiles(at(path, end=first.stop))
    assert [stretch.status for stretch in found] == ["ok", "behind_the_end", "ok", "end", "padding"]
    assert [row["command"] for row in dicts(at(path, end=first.stop), columns.RECORDS)] == ["ADD_MESSAGE", "MARK"]
    assert [stretch.status for stretch in tiles(at(path, end=0))] == ["behind_the_end"] * 2 + ["ok", "end", "padding"]
    assert second.start == first.stop


def test_batches_without_a_checksum_are_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    write_foreign(path, [[add(1)]])
    content = bytearray(path.read_bytes())
    content[20:28] = bytes(8)
    path.write_bytes(content)
    assert [stretch.status for stretch in tiles(at(path))] == ["unsummed", "end", "padding"]
    assert len(dicts(at(path), columns.RECORDS)) == 1


def test_a_record_that_is_no_command_is_not_sound(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    write_foreign(path, [[add(1), b"\x63nonsense", b"\1", b""]])
    found = dicts(at(path), columns.RECORDS)
    assert [(row["command"], row["is_sound"]) for row in found] == [("ADD_MESSAGE", True), *[("UNREADABLE", False)] * 3]
    assert len(dicts(at(path), columns.RECORDS, DROPMALFORMED)) == 1
    with pytest.raises(Malformed, match=r"db-1.log at \d+: a command claims"):
        dicts(at(path), columns.RECORDS, FAILFAST)


def test_each_command_has_its_name_and_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    topic = Destination(DestinationKind.TOPIC, "prices")
    transaction = LocalTransactionId("ID:c:1", 7)
    stored = Message(QUEUE, "ID:tests-1:1:1:5", b"abc", priority=9, timestamp=1_700_000_000_123, persistent=True)
    payloads = [
        encode_trace("hello"),
        encode_update(stored, encode_message(stored)),
        encode_remove(topic, "ID:tests-1:1:1:6", transaction, "client:name"),
        encode_commit(transaction),
        encode_subscription(topic, "client", "name"),
        encode_producer_audit(b"\xac\xed" * 50),
    ]
    write_foreign(path, [payloads])
    found = dicts(at(path), columns.RECORDS)
    expected = ["TRACE", "UPDATE_MESSAGE", "REMOVE_MESSAGE", "COMMIT", "SUBSCRIPTION", "PRODUCER_AUDIT"]
    assert [row["command"] for row in found] == expected
    update, remove = found[1], found[2]
    assert (update["priority"], update["body_bytes"]) == (9, 3)
    assert update["broker_in"] == 1_700_000_000_123_000
    assert (update["destination_type"], update["destination"]) == ("queue", "orders")
    assert (remove["destination_type"], remove["subscription"]) == ("topic", "client:name")
    assert remove["transaction"] == "TX:ID:c:1:7" == found[3]["transaction"]
    (ack,) = dicts(at(path), columns.ACKS)
    assert (ack["offset"], ack["subscription"]) == (remove["offset"], "client:name")


def test_a_clock_shows_its_time_and_other_marks_none(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    near = [encode_trace(f"TANDEMMQ-CLOCK{text}") for text in ("", " ", " 1.5", " -1", " \u0661")]
    write_foreign(path, [[encode_clock(1_700_000_000_123), encode_gone([3]), *near]])
    found = dicts(at(path), columns.RECORDS)
    assert [(row["command"], row["broker_in"]) for row in found] == [
        ("CLOCK", 1_700_000_000_123_000),
        *[("MARK", None)] * 6,
    ]


@pytest.mark.parametrize("size", [0, 10, 100, 127, 128, 5000, 20_000, 70_000])
@pytest.mark.parametrize("kind", [BodyKind.TEXT, BodyKind.BYTES, BodyKind.BLOB])
def test_the_quick_way_to_an_add_finds_what_the_long_one_finds(tmp_path: Path, size: int, kind: BodyKind) -> None:
    path = tmp_path / "db-1.log"
    body = b"\0\0\0" if kind is BodyKind.BLOB else b"b" * size
    stored = Message(QUEUE, "ID:tests-1:1:1:5", body, kind, priority=7, timestamp=1_700_000_000_123, persistent=True)
    if kind is BodyKind.BLOB:
        stored.properties = {"p": "q" * size}
    frame = encode_message(stored)
    transaction = LocalTransactionId("c", 1)
    write_foreign(path, [[encode_add(stored, frame), encode_add(stored, frame, transaction)]], size=200_000)
    quick, long = dicts(at(path, openwire=11), columns.RECORDS)
    assert long.pop("transaction") == transaction.key
    for row in (quick, long):
        del row["offset"], row["length"]
    assert (quick, quick["broker_in"]) == (long | {"transaction": None}, 1_700_000_000_123_000)
    assert [row["broker_in"] for row in dicts(at(path), columns.MESSAGES)] == [quick["broker_in"]] * 2


def test_a_truncated_frame_is_reported_on_the_fast_path_too(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    whole = message(1)
    write_foreign(path, [[encode_add(whole, encode_message(whole)[:200])]])
    (row,) = dicts(at(path, openwire=11), columns.RECORDS)
    assert (row["command"], row["is_sound"]) == ("UNREADABLE", False)
    (row,) = dicts(at(path, openwire=11), columns.MESSAGES)
    assert (row["message_id"], row["body_kind"]) == ("ID:tests-1:1:1:1", None)


def test_a_message_has_all_that_its_sender_said(tmp_path: Path) -> None:
    path = tmp_path / "db-1.log"
    payload = add(
        7,
        "Grüße".encode(),
        properties={"colour": "red", "count": 3, "is_new": True, "nothing": None},
        correlation_id="c-1",
        reply_to=Destination(DestinationKind.TOPIC, "answers"),
        type="order",
        group_id="g",
        group_sequence=2,
        expiration=2**62,
        redelivery_counter=4,
    )
    write_foreign(path, [[payload]])
    (found,) = dicts(at(path), columns.MESSAGES, payload=True)
    expected = {
        "command": "ADD_MESSAGE",
        "message_id": "ID:tests-1:1:1:7",
        "producer_id": "ID:tests-1:1:1",
        "producer_sequence": 7,
        "correlation_id": "c-1",
        "reply_to": "topic://answers",
        "persistent": True,
        "sent": (1_700_000_000_000 + 7) * 1000,
        "expires": None,  # later than the year 9999
        "redeliveries": 4,
        "type": "order",
        "group_id": "g",
        "group_sequence": 2,
        "properties": [("colour", "red"), ("count", "3"), ("is_new", "true"), ("nothing", None)],
        "body_kind": "text",
        "body": "Grüße".encode(),
        "text": "Grüße",
    }
    assert {name: found[name] for name in expected} == expected
    raw = found["raw"]
    assert isinstance(raw, bytes)
    assert raw in payload
    assert dicts(at(path), columns.MESSAGES)[0]["raw"] is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_each_byte_of_a_damaged_file_is_counted_once(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "db-1.log"
    write_foreign(path, [[add(n, b"y" * 40), add(n + 1, END_RECORD * 9)] for n in range(1, 9, 2)], size=2500)
    content = bytearray(path.read_bytes())
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)))):
        content[place] = value
    del content[data.draw(st.integers(1, len(content))) :]
    path.write_bytes(content)
    end = data.draw(st.none() | st.integers(0, 3000))
    file = at(path, end=end, is_current=data.draw(st.booleans()))
    found = tiles(file)
    (text,) = dicts(file, columns.FILES)
    records = dicts(file, columns.RECORDS)
    assert len(records) == text["records"] == sum(len(stretch.records) for stretch in found)
    lengths = sum(row["length"] for row in records)  # type: ignore[misc]
    assert lengths + text["batch_header_bytes"] + text["padding_bytes"] + text["damaged_bytes"] == len(content)
    for table in columns.TABLES:
        dicts(file, table, DROPMALFORMED)


def test_a_read_of_a_file_in_use_is_a_prefix_of_it(tmp_path: Path) -> None:
    directory = tmp_path / "live"
    write_store(directory, 1)
    files = JournalFiles(str(directory))
    end = next(s.start for s in walk(at(directory / "db-1.log", is_current=True)) if s.status == columns.END)
    read: list[list[object]] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            found = tiles(at(directory / "db-1.log", is_current=True))
            assert {stretch.status for stretch in found} <= {columns.OK, columns.END, columns.PADDING}
            read.append([offset for stretch in found for offset, _ in stretch.records])

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        writer = JournalWriter(files, "a", files.opened(1), end, file_length_max=FILE_BYTES)
        for number in range(2, 80):
            writer.append([add(number)])
            writer.sync()
        writer.close()
        is_over.set()
        looking.result()
    whole = [row["offset"] for row in dicts(at(directory / "db-1.log"), columns.RECORDS)]
    assert len(whole) == 80
    assert read
    assert all(found == whole[: len(found)] for found in read)


# ---- which files there are


def test_the_newest_file_of_a_store_is_left_out_unless_it_is_asked_for(store: Path) -> None:
    closed = journal_files([str(store)])
    both = journal_files([str(store)], is_tail_wanted=True)
    assert [file.file for file in both] == [*(file.file for file in closed), len(both)]
    assert [file.file for file in journal_files([str(store)], first=2, last=3)] == [2, 3]
    assert [file.file for file in journal_files([str(store / "db-1.log")])] == [1]
    assert journal_files([str(store / f"db-{len(both)}.log")]) == []
    assert journal_files([f"file://{store}"]) == closed


def test_several_stores_and_their_archives_stand_below_one_path(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_store(tmp_path / "root" / name, 300)
    archive = tmp_path / "root" / "a" / "data-archive"
    archive.mkdir()
    (tmp_path / "root" / "a" / "db-1.log").rename(archive / "db-1.log")
    (archive / "db-1.log.1").write_bytes((archive / "db-1.log").read_bytes())
    (archive / "db-2.log").hardlink_to(tmp_path / "root" / "a" / "db-2.log")  # a crash left it in both
    found = journal_files([str(tmp_path / "root")])
    a, b = str(tmp_path / "root" / "a"), str(tmp_path / "root" / "b")
    assert {file.store for file in found} == {a, b, f"{a}.1"}
    of_a = [file for file in found if file.store == a]
    assert [file.file for file in of_a] == [file.file for file in found if file.store == b]
    assert of_a[0].path == str(archive / "db-1.log")
    assert of_a[0].end is not None, "the journal's headers tell of what is archived"
    assert journal_files([str(archive)])[0].state == "closed"


def test_a_path_without_journals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoJournal, match="no journal files"):
        journal_files([str(tmp_path)])
    with pytest.raises(NoJournal, match="not read through oss://"):
        journal_files(["oss://bucket/store"])
