"""A stream of journals, called as Spark calls it, while its files change."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tandemmq.journal.files import JournalFiles
from tandemmq.journal.writer import JournalWriter
from tandemmq.pipeline.walk import JournalFile
from tests.support.pipeline.growing_store import Driven, GrowingStore, ids_of
from tests.support.pipeline.pipeline_journals import FILE_BYTES, add, write_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from tandemmq.pipeline import listing
from tandemmq.pipeline.advance import DataLost
from tandemmq.pipeline.options import BadOption
from tandemmq.pipeline.rows import Malformed, rows
from tandemmq.pipeline.stores import NoJournal, journal_files

pytestmark = pytest.mark.promise("pipeline-reads-beside")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GrowingStore]:
    made = GrowingStore(tmp_path / "a")
    yield made
    made.close()


def filled(store: GrowingStore, files: int) -> None:
    """Write ``files`` closed files of five messages, and begin another file."""
    for _ in range(files):
        store.add(5)
        store.rotate()


def test_a_tail_is_read_to_its_last_whole_batch_and_over_rotations(store: GrowingStore) -> None:
    stream = Driven(path=str(store.directory), follow="tail")
    got: list[str] = []
    for count in (1, 4, 0, 2):
        store.add(count)
        got += stream.ids()
        assert got == store.ids
        assert stream.offsets[-1]["stores"][str(store.directory)] == {"file": store.file, "offset": store.end}
        if count == 4:
            store.rotate()
            store.add(2)
    path = store.files.path(store.file)
    whole = Path(path).read_bytes()
    store.add(1)
    torn = Path(path).read_bytes()
    Path(path).write_bytes(torn[: store.end - 10] + whole[store.end - 10 :])
    assert stream.ids() == []
    Path(path).write_bytes(torn)
    assert stream.ids() == store.ids[-1:]


def test_a_batch_is_the_same_when_it_is_read_again_after_what_came_later(store: GrowingStore) -> None:
    stream = Driven(path=str(store.directory), follow="tail")
    batches = []
    for number in range(6):
        store.add(number + 1)
        if number % 2:
            store.rotate()
        assert stream.plan()
        batches.append(stream.batch())
    store.archive(1)
    again = Driven(stream.offsets, path=str(store.directory), follow="tail")
    assert [again.batch(number) for number in range(1, 7)] == batches
    assert ids_of(row for batch in batches for row in batch) == store.ids


@pytest.mark.parametrize("table", ["records", "messages", "acks", "batches", "files"])
def test_a_stream_of_closed_files_has_the_rows_of_a_read(store: GrowingStore, table: str) -> None:
    filled(store, 3)
    stream = Driven(path=str(store.directory), table=table, maxFilesPerTrigger="1")
    got = [tuple(row[name] for name in ("store", "file")) for row in stream.read()]
    expected = [(file.end, row) for file in journal_files([str(store.directory)]) for row in rows(file, table)]
    if table == "records":  # without records behind an end: a later header states the end
        expected = [(end, row) for end, row in expected if end is None or row[2] < end]
    assert got == [row[:2] for _, row in expected]
    assert len(stream.offsets) == 4


def test_the_batches_of_a_tail_add_up_to_each_closed_file(store: GrowingStore) -> None:
    stream = Driven(path=str(store.directory), table="batches", follow="tail")
    rows: list[dict[str, Any]] = []
    for _ in range(3):
        for _ in range(2):
            store.add(2)
            rows += stream.read()
        store.rotate()
        rows += stream.read()
    edges = dict.fromkeys((1, 2, 3), 0)
    for row in rows:
        if row["file"] in edges:
            assert row["batch"] == edges[row["file"]]
            edges[row["file"]] += row["length"]
    assert set(edges.values()) == {FILE_BYTES}


def test_bytes_written_after_an_end_later_change_no_batch(store: GrowingStore) -> None:
    store.add(2)
    end = store.end
    store.rotate()
    stream = Driven(path=str(store.directory))
    assert stream.plan()
    before = stream.batch()
    store.write_behind(1, end)
    assert stream.batch() == before
    (closed,) = journal_files([str(store.directory)])
    assert len(list(rows(closed, "records"))) == len(before) + 1, "it is there"


def test_damage_in_a_closed_file_is_told_as_in_a_read(store: GrowingStore) -> None:
    store.add(3)
    tail = Driven(path=str(store.directory), follow="tail")
    assert tail.plan()
    store.rotate()
    content = bytearray(Path(store.files.path(1)).read_bytes())
    content[content.index(b"ID:tests-1:1:1") + 200] ^= 1
    Path(store.files.path(1)).write_bytes(content)
    closed = Driven(path=str(store.directory))
    tail.reader._stores._fresh_until = 0.0
    assert closed.ids() == ids_of(tail.batch()) == store.ids[1:]
    batches = Driven(path=str(store.directory), table="batches").read()
    assert [row["status"] for row in batches] == ["ok", "bad_sum", "ok", "ok", "end", "padding"]
    with pytest.raises(Malformed, match="checksum"):
        Driven(path=str(store.directory), mode="failfast").read()


# ---- start of a stream


def test_latest_begins_with_what_is_written_from_now_on(store: GrowingStore) -> None:
    filled(store, 2)
    store.add(2)
    closed = Driven(path=str(store.directory), startingOffsets="latest")
    tail = Driven(path=str(store.directory), startingOffsets="latest", follow="tail")
    assert closed.ids() == tail.ids() == []
    store.add(1)
    store.rotate()
    assert tail.ids() == store.ids[-1:]
    assert closed.ids() == store.ids[-3:], "the file that was being written, whole"


def test_a_stream_may_begin_where_another_one_stood(store: GrowingStore) -> None:
    filled(store, 1)
    store.add(2)
    first = Driven(path=str(store.directory), follow="tail")
    assert first.ids() == store.ids
    where = json.dumps(first.offsets[-1])
    store.add(2)
    second = Driven(path=str(store.directory), follow="tail", startingOffsets=where)
    assert second.ids() == first.ids() == store.ids[-2:]


def test_a_beginning_that_cannot_be_is_told(store: GrowingStore) -> None:
    filled(store, 1)

    def begin(store_path: str, file: int, offset: int) -> Driven:
        where = {"version": 1, "stores": {store_path: {"file": file, "offset": offset}}}
        return Driven(path=str(store.directory), startingOffsets=json.dumps(where))

    with pytest.raises(BadOption, match=r"no batch of .*db-1\.log begins at 100"):
        begin(str(store.directory), 1, 100)
    with pytest.raises(BadOption, match=f"there is no store /elsewhere, but {store.directory}"):
        begin("/elsewhere", 1, 0)
    with pytest.raises(NoJournal, match="no journal files"):
        Driven(path=str(store.directory / "nothing"))
    assert begin(str(store.directory), 2, 0).ids() == []


def test_files_that_were_gone_before_the_stream_began_are_no_loss(store: GrowingStore) -> None:
    filled(store, 6)
    kept = store.ids[10:15] + store.ids[20:]
    for file in (1, 2, 4):
        store.remove(file)
    stream = Driven(path=str(store.directory), maxFilesPerTrigger="1")
    assert stream.offsets[0]["stores"] == {str(store.directory): {"file": 3, "offset": 0, "passed": [[4, 4]]}}
    assert stream.ids() == kept


# ---- lost data


def test_a_file_that_is_deleted_before_it_was_read_stops_the_stream(store: GrowingStore) -> None:
    filled(store, 4)
    stream = Driven(path=str(store.directory), maxFilesPerTrigger="1")
    assert stream.plan()
    assert stream.batch()
    store.remove(2)
    with pytest.raises(DataLost, match=r"db-2\.log of .* before this stream had read it.*archive_data_logs.*failOnDa"):
        stream.plan()
    going_on = Driven(stream.offsets, path=str(store.directory), failOnDataLoss="false")
    assert going_on.ids() == store.ids[10:]
    assert going_on.offsets[-1]["stores"][str(store.directory)] == {"file": 5, "offset": 0, "skipped": 1}


def test_files_before_a_gap_are_read_first(store: GrowingStore) -> None:
    filled(store, 4)
    stream = Driven(path=str(store.directory))
    store.remove(3)
    assert stream.plan()
    assert ids_of(stream.batch()) == store.ids[:10]
    with pytest.raises(DataLost, match=r"db-3\.log"):
        stream.plan()


def test_a_file_that_is_deleted_after_its_batch_was_planned_stops_the_stream(store: GrowingStore) -> None:
    filled(store, 3)
    stream = Driven(path=str(store.directory))
    assert stream.plan()
    partitions = stream.reader.partitions(*stream.offsets)
    store.remove(2)
    with pytest.raises(DataLost, match=r"db-2\.log was deleted .*archive_data_logs.*failOnDataLoss=false"):
        [row for partition in partitions for row in stream.reader.read(partition)]
    restarted = Driven(stream.offsets, path=str(store.directory))
    with pytest.raises(DataLost, match=r"db-2\.log of .* was deleted"):
        restarted.batch()
    going_on = Driven(stream.offsets, path=str(store.directory), failOnDataLoss="false")
    assert ids_of(going_on.batch()) == store.ids[:5] + store.ids[10:]
    [row for partition in partitions for row in going_on.reader.read(partition)]


def test_a_batch_that_skipped_a_file_is_the_same_without_the_option(store: GrowingStore) -> None:
    filled(store, 4)
    stream = Driven(path=str(store.directory), failOnDataLoss="false")
    store.remove(1)
    assert stream.plan()
    rows = stream.batch()
    assert rows
    assert Driven(stream.offsets, path=str(store.directory)).batch() == rows


def test_a_file_moved_into_the_archive_is_read_there(store: GrowingStore) -> None:
    filled(store, 4)
    stream = Driven(path=str(store.directory), maxFilesPerTrigger="1")
    store.archive(2)
    assert stream.plan()
    assert stream.plan()
    partitions = stream.reader.partitions(stream.offsets[0], stream.offsets[2])
    store.archive(1)
    batches = [batch for partition in partitions for batch in stream.reader.read(partition)]
    got = ids_of(row for batch in batches for row in batch.to_pylist())
    store.archive(3)
    assert got + stream.ids() == store.ids


class Races:
    """Listings of the stores at a bad moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        self._missed: dict[int, int] = {}
        self._acts: dict[int, Callable[[], None]] = {}
        self._real = listing.journal_files
        monkeypatch.setattr(listing, "journal_files", self._look)

    def miss(self, look: int, file: int) -> None:
        """Let the listing number ``look`` miss a file, which moves to the archive during this listing."""
        self._missed[look] = file

    def behind(self, look: int, act: Callable[[], None]) -> None:
        """Call ``act`` after the listing number ``look``."""
        self._acts[look] = act

    def _look(self, *arguments: Any, **named: Any) -> list[JournalFile]:
        self.looks += 1
        found = self._real(*arguments, **named)
        self._acts.get(self.looks, lambda: None)()
        return [file for file in found if file.file != self._missed.get(self.looks)]


def test_a_file_that_moves_during_a_look_is_not_lost(store: GrowingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(store, 2)
    first = Driven(path=str(store.directory))
    races = Races(monkeypatch)
    races.miss(1, 1)  # before the stream continues
    assert first.ids() == store.ids
    again = Driven(first.offsets, path=str(store.directory))
    races.miss(races.looks + 1, 2)  # before a batch is read again
    assert ids_of(again.batch()) == store.ids
    now = Driven([first.offsets[0]], path=str(store.directory))
    for look in (1, 2):
        races.miss(races.looks + look, look)  # before the latest offset is determined
    now.reader.prepareForTriggerAvailableNow()
    assert now.ids() == store.ids


@pytest.mark.parametrize("is_deposed", [False, True])
def test_a_tail_ends_where_its_file_does_though_that_is_closed_during_a_look(
    store: GrowingStore, monkeypatch: pytest.MonkeyPatch, is_deposed: bool
) -> None:
    store.add(2)
    stream = Driven(path=str(store.directory), follow="tail")
    end = store.end

    def close() -> None:
        if is_deposed:
            store.fence()
            store.add(2)
            store.take_over(end)
        else:
            store.rotate()
            store.write_behind(1, end)

    Races(monkeypatch).behind(1, close)
    assert [*stream.ids(), *stream.ids()] == store.ids[:2]


def test_the_end_is_determined_again_if_a_file_is_closed_meanwhile(
    store: GrowingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close() -> None:
        file, end = store.file, store.end
        store.rotate()
        store.write_behind(file, end)

    store.add(2)
    races = Races(monkeypatch)
    races.behind(2, close)
    latest = Driven(path=str(store.directory), follow="tail", startingOffsets="latest")
    assert latest.offsets[0]["stores"] == {str(store.directory): {"file": 2, "offset": store.end}}
    store.add(2)
    now = Driven(path=str(store.directory), follow="tail")
    races.behind(races.looks + 2, close)
    now.reader.prepareForTriggerAvailableNow()
    expected = list(store.ids)
    store.add(1)
    assert now.ids() == expected
    assert latest.ids() == store.ids[2:]


def test_an_end_stated_during_a_listing_is_respected(store: GrowingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(2)
    stream = Driven(path=str(store.directory))
    end = store.end
    store.fence()
    store.add(2)
    Races(monkeypatch).behind(1, lambda: store.take_over(end))
    assert stream.ids() == store.ids[:2]


def test_an_archive_is_read_in_whatever_order_its_files_come(store: GrowingStore) -> None:
    filled(store, 6)
    store.archive(4)
    archive = str(store.directory / "data-archive")
    stream = Driven(path=archive)
    assert stream.offsets[0]["stores"] == {str(store.directory): {"file": 1, "offset": 0}}
    assert stream.ids() == store.ids[15:20]
    assert stream.offsets[-1]["stores"][str(store.directory)] == {"file": 1, "offset": 0, "passed": [[4, 4]]}
    for file in (2, 1, 6):
        store.archive(file)
        assert stream.ids() == store.ids[5 * file - 5 : 5 * file]
    store.archive(3)
    restarted = Driven(stream.offsets, path=archive)
    assert restarted.ids() == store.ids[10:15]
    assert restarted.ids() == []
    latest = Driven(path=archive, startingOffsets="latest")
    store.archive(5)
    assert latest.ids() == store.ids[20:25]


def test_an_older_copy_of_a_store_is_told(store: GrowingStore) -> None:
    filled(store, 3)
    stream = Driven(path=str(store.directory), failOnDataLoss="false")
    assert stream.ids() == store.ids
    for file in (3, 4):
        store.remove(file)
    with pytest.raises(DataLost, match=r"no file behind db-2\.log, and the stream is at db-4\.log.*new checkpoint"):
        stream.plan()


def test_a_file_without_counting_batches_loses_no_messages(store: GrowingStore) -> None:
    filled(store, 2)
    stream = Driven(path=str(store.directory), follow="tail")
    store.add(2)
    assert stream.ids() == store.ids
    store.rotate()
    store.remove(3)
    assert stream.ids() == []
    assert stream.offsets[-1]["stores"][str(store.directory)]["file"] == 4


# ---- masters change


def test_the_file_before_one_that_is_still_empty_is_not_closed(store: GrowingStore) -> None:
    filled(store, 2)
    store.add(2)
    closed, tail = (Driven(path=str(store.directory), follow=follow) for follow in ("closed", "tail"))
    assert closed.ids() == store.ids[:-2]
    assert tail.ids() == store.ids
    store.fence()
    store.add(1)  # by a master that has not checked its fence yet
    assert closed.ids() == []
    store.take_over()
    assert closed.ids() == store.ids[-3:]
    assert tail.ids() == store.ids[-1:]


def test_tail_records_lost_by_a_change_of_masters_are_reported(store: GrowingStore) -> None:
    store.add(2)
    end = store.end
    store.add(2)
    stream = Driven(path=str(store.directory), follow="tail")
    assert stream.ids() == store.ids
    store.fence()
    store.take_over(end)
    store.add(1)
    with pytest.raises(DataLost, match=rf"db-1\.log ends at {end} according .* removed it \(follow=tail\)"):
        stream.plan()
    going_on = Driven(stream.offsets, path=str(store.directory), follow="tail", failOnDataLoss="false")
    assert going_on.ids() == store.ids[-1:]


def test_planned_tail_records_that_are_gone_are_reported(store: GrowingStore) -> None:
    store.add(2)
    end = store.end
    store.add(2)
    stream = Driven(path=str(store.directory), follow="tail")
    assert stream.plan()
    store.fence()
    store.take_over(end)
    again = Driven(stream.offsets, path=str(store.directory), follow="tail")
    with pytest.raises(DataLost, match="removed it"):
        again.batch()
    going_on = Driven(stream.offsets, path=str(store.directory), follow="tail", failOnDataLoss="false")
    assert ids_of(going_on.batch()) == store.ids[:2]


def test_planned_tail_records_lost_by_a_power_loss_are_reported(store: GrowingStore) -> None:
    store.add(2)
    end = store.end
    store.add(2)
    stream = Driven(path=str(store.directory), follow="tail")
    assert stream.plan()
    partitions = stream.reader.partitions(*stream.offsets)
    path = Path(store.files.path(1))
    path.write_bytes(path.read_bytes()[:end].ljust(FILE_BYTES, b"\0"))
    with pytest.raises(DataLost, match=f"is good only up to {end}"):
        stream.batch()
    going_on = Driven(stream.offsets, path=str(store.directory), follow="tail", failOnDataLoss="false")
    (batch,) = [batch for partition in partitions for batch in going_on.reader.read(partition)]
    assert ids_of(batch.to_pylist()) == store.ids[:2]


def test_files_of_activemq_are_closed_when_the_next_one_holds_something(tmp_path: Path) -> None:
    write_foreign(tmp_path / "db-1.log", [[add(1)], [add(2)]])
    stream = Driven(path=str(tmp_path), follow="closed")
    assert stream.ids() == []
    write_foreign(tmp_path / "db-2.log", [])
    assert stream.ids() == []
    write_foreign(tmp_path / "db-2.log", [[add(3)]])
    assert stream.ids() == ["ID:tests-1:1:1:1", "ID:tests-1:1:1:2"]


def test_tail_records_overwritten_by_activemq_are_reported(tmp_path: Path) -> None:
    write_foreign(tmp_path / "db-1.log", [[add(1)], [add(2)]])
    stream = Driven(path=str(tmp_path), follow="tail")
    assert stream.ids() == ["ID:tests-1:1:1:1", "ID:tests-1:1:1:2"]
    write_foreign(tmp_path / "db-1.log", [[add(1)], [add(3, b"y" * 600)], [add(4)]])  # 2 was never synced
    write_foreign(tmp_path / "db-2.log", [[add(5)]])
    with pytest.raises(DataLost, match=r"db-1\.log has no batch that begins or ends at .* removed the data there"):
        stream.plan()
    going_on = Driven(stream.offsets, path=str(tmp_path), follow="tail", failOnDataLoss="false")
    assert going_on.ids() == ["ID:tests-1:1:1:4", "ID:tests-1:1:1:5"]


# ---- several stores, and limits of a batch


def test_a_store_that_appears_later_joins_at_its_beginning(tmp_path: Path) -> None:
    first = GrowingStore(tmp_path / "a")
    filled(first, 1)
    stream = Driven(path=str(tmp_path), startingOffsets="latest")
    assert stream.ids() == []
    second = GrowingStore(tmp_path / "deeper" / "b", 100)
    filled(second, 2)
    assert stream.ids() == second.ids
    filled(first, 1)
    filled(second, 1)
    assert sorted(stream.ids()) == sorted(first.ids[-5:] + second.ids[-5:])
    assert list(stream.offsets[-1]["stores"]) == [str(first.directory), str(second.directory)]
    first.close()
    second.close()


def test_a_limit_of_files_serves_every_store(tmp_path: Path) -> None:
    stores = [GrowingStore(tmp_path / name, 100 * number) for number, name in enumerate("abc")]
    for store in stores:
        filled(store, 4)
    stream = Driven(path=str(tmp_path), maxFilesPerTrigger="2")
    got: list[str] = []
    while stream.plan():
        rows = stream.batch()
        assert 1 <= len({(row["store"], row["file"]) for row in rows}) <= 2
        got += ids_of(rows)
        left = [5 - offset["file"] for offset in stream.offsets[-1]["stores"].values()]
        assert max(left) - min(left) <= 1
    assert sorted(got) == sorted(message_id for store in stores for message_id in store.ids)
    for store in stores:
        store.close()


@pytest.mark.parametrize("follow", ["closed", "tail"])
def test_a_limit_of_bytes_takes_a_file_or_a_few_batches(store: GrowingStore, follow: str) -> None:
    for _ in range(3):
        for _ in range(10):
            store.add(1, b"x" * 1000)
        store.rotate()
    for _ in range(10):
        store.add(1, b"x" * 1000)
    stream = Driven(path=str(store.directory), maxBytesPerTrigger="4000", follow=follow)
    got: list[str] = []
    counts = []
    while stream.plan():
        got += ids_of(stream.batch())
        counts.append(len(got) - sum(counts))
    assert got == store.ids[: 30 if follow == "closed" else 40]
    assert counts[:3] == [10, 10, 10]
    assert all(1 <= count <= 4 for count in counts[3:])


def test_available_now_ends_with_what_was_there(store: GrowingStore, tmp_path: Path) -> None:
    filled(store, 2)
    store.add(3)
    for follow in ("closed", "tail"):
        expected = store.ids if follow == "tail" else store.ids[: 5 * (store.file - 1)]
        stream = Driven(path=str(store.directory.parent), follow=follow, maxFilesPerTrigger="1")
        stream.reader.prepareForTriggerAvailableNow()
        expected = list(expected)
        got: list[str] = []
        while stream.plan():
            got += ids_of(stream.batch())
            if follow == "tail":
                store.add(2)
                store.rotate()
                store.archive(store.file - 1)
        assert got == expected
        if follow == "closed":
            assert stream.reader.reportLatestOffset() == stream.offsets[-1]


@pytest.mark.parametrize("is_moved", [False, True])
def test_available_now_ends_within_a_file_that_goes_on_growing(store: GrowingStore, is_moved: bool) -> None:
    store.add(6, b"x" * 1000)
    expected = list(store.ids)
    stream = Driven(path=str(store.directory), follow="tail", maxBytesPerTrigger="2500")
    stream.reader.prepareForTriggerAvailableNow()
    got: list[str] = []
    while stream.plan():
        got += ids_of(stream.batch())
        store.add(1, b"x" * 1000)
        if is_moved and store.file == 1:
            store.rotate()
            store.archive(1)
    assert got == expected


def test_the_latest_offset_is_told_ahead_of_what_was_read(store: GrowingStore) -> None:
    filled(store, 3)
    stream = Driven(path=str(store.directory), maxFilesPerTrigger="1")
    assert stream.reader.reportLatestOffset() is None
    assert stream.plan()
    latest = stream.reader.reportLatestOffset()
    assert latest is not None
    assert [offsets["stores"][str(store.directory)]["file"] for offsets in (stream.offsets[-1], latest)] == [2, 4]
    assert stream.reader.latestOffset(stream.offsets[0], stream.reader.getDefaultReadLimit()) == stream.offsets[1]


def test_frequent_requests_are_answered_from_memory(store: GrowingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(store, 2)
    now, looks = [100.0], []
    real = listing.journal_files

    def counted(*arguments: Any, **named: Any) -> Any:
        looks.append(now[0])
        now[0] += 0.5  # a slow share
        return real(*arguments, **named)

    monkeypatch.setattr(listing, "journal_files", counted)
    stores = listing.Stores([str(store.directory)], clock=lambda: now[0])
    for _ in range(1000):
        stores.lately()
        now[0] += 0.01
    assert 1 < len(looks) <= 5


def test_a_reader_holds_no_file(store: GrowingStore) -> None:
    def opened() -> set[str]:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return {os.readlink(link) for link in links if os.path.exists(link)}

    filled(store, 2)
    before = opened()
    stream = Driven(path=str(store.directory), follow="tail")
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.ids() == store.ids
    partial = stream.reader.read(stream.reader.partitions(stream.offsets[0], stream.offsets[-1])[0])
    next(partial)
    del partial
    assert opened() <= before


# ---- random histories


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    acts=st.lists(
        st.sampled_from(["add", "add", "rotate", "rotate", "archive", "poll", "restart", "join", "fail over"])
    ),
    follow=st.sampled_from(["closed", "tail"]),
    limit=st.sampled_from([{}, {"maxFilesPerTrigger": "1"}, {"maxBytesPerTrigger": "500"}]),
    data=st.data(),
)
def test_each_message_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, acts: list[str], follow: str, limit: dict[str, str], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("stores")
    stores = [GrowingStore(root / "0")]
    stream = Driven(path=str(root), follow=follow, **limit)
    batches: list[list[str]] = []

    def ids(rows: list[dict[str, Any]]) -> list[str]:
        return [f"{row['store']} {row['message_id']}" for row in rows if row["message_id"]]

    for act in acts:
        store = stores[data.draw(st.integers(0, len(stores) - 1))]
        note(f"{act} {store.directory.name}")
        match act:
            case "add":
                store.add(2)
            case "rotate":
                store.rotate()
            case "archive":
                closed = [number for number in store.files.list() if number < store.file]
                if closed:
                    store.archive(data.draw(st.sampled_from(closed)))
            case "join":
                if len(stores) < 3:
                    stores.append(GrowingStore(root / str(len(stores))))
            case "fail over":
                store.fence()
                store.take_over()
                store.files = JournalFiles(str(store.directory))
                store.close()
                store._writer = JournalWriter(store.files, "a", store.files.opened(store.file), store.end)
            case "poll":
                if stream.plan():
                    batches.append(ids(stream.batch()))
            case "restart":
                stream = Driven(stream.offsets, path=str(root), follow=follow, **limit)
                if batches:  # the last batch may come again
                    assert ids(stream.batch()) == batches[-1]
    if follow == "closed":
        for store in stores:
            store.rotate()
    while stream.plan():
        batches.append(ids(stream.batch()))
    got = [found for batch in batches for found in batch]
    for store in stores:
        mine = f"{store.directory} "
        assert [found.removeprefix(mine) for found in got if found.startswith(mine)] == store.ids
        store.close()
