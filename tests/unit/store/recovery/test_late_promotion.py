"""Promotions that are suspended at the worst moment: another broker comes first, and no record is taken for damage."""

# proves: journal-reading, promotion

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.errors import Deposed, JournalCorrupt, JournalMissing
from tandemmq.journal.files import JournalFiles
from tandemmq.journal.scan import scan
from tandemmq.store.records.commands import encode_add, encode_rollback, encode_trace
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.header_reader import HeaderReader
from tandemmq.store.recovery.promotion import Promotion
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store
from tandemmq.store.takeover.take_over import Takeover, prepare_takeover
from tandemmq.store.tools.inspect import read_headers
from tests.support.store.standbys import begin, standby_of
from tests.support.store.store_harness import KIB, SMALL, Q, Term

pytestmark = [pytest.mark.fence, pytest.mark.promise("one-master-counts")]


@pytest.mark.parametrize("sleeps_again", [False, True])
def test_a_broker_suspended_between_fence_and_header_is_deposed_without_damage(
    directory: str, sleeps_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Term(directory, "a")
    first.add_durably(10)
    first.crash()
    late = standby_of(directory, "late")
    late.fence(lambda: True)
    successor = standby_of(directory, "b")
    successor.fence(lambda: True)
    late.read()
    with monkeypatch.context() as patch:
        if sleeps_again:  # between its look and its header, so that the header is written all the same
            patch.setattr(Promotion, "_check_fence", lambda self: None)
        with pytest.raises(Deposed):
            begin(late)
    late.close()
    successor.close()  # it came to nothing, too
    with Term(directory, "c") as third:
        assert len(third.bodies()) == 10


@pytest.mark.parametrize("when", ["before it reads", "before its header"])
def test_a_file_of_a_late_linker_is_not_the_fence_of_a_master_that_slept(directory: str, when: str) -> None:
    """The master's own file was reclaimed, and so was its successor's first; another broker linked a file into the
    gap."""
    Term(directory, "a").crash()
    linker = JournalFiles(directory)
    linker.prepare("z", 64 * KIB)
    late = standby_of(directory, "late")
    late.fence(lambda: True)
    if when == "before its header":
        late.read()
    with Term(directory, "b") as successor:
        while os.path.exists(f"{directory}/db-3.log"):
            successor.take(successor.add_durably(20, body=bytes(4 * KIB)))
            successor.store.checkpoint()
            successor.step()
        linker.publish("z", 2)
        if when == "before it reads":
            late.read()
        with pytest.raises(Deposed, match="another file has its name"):
            begin(late)
        late.close()
        assert len(successor.add_durably(10)) == 10
    with Term(directory, "c") as third:
        assert len(third.bodies()) == 10


# proves: hole-is-given-up, headers-name-no-holes
@pytest.mark.parametrize("rotates", [False, True])
def test_a_file_of_a_late_linker_is_no_file_that_a_header_names(directory: str, rotates: bool) -> None:
    """The file is in the place of a file that was given up. A broker that read the place long ago would miss its
    content."""
    linker = JournalFiles(directory)
    linker.prepare("z", 64 * KIB)
    first = Term(directory, "a")

    def go_on_to(file: int, term: Term) -> None:
        while term.position.file < file:
            term.take(term.add_durably(10, body=bytes(4 * KIB)))

    go_on_to(3, first)
    first.add_durably(1)  # holds db-3, whose header names the end of db-2
    go_on_to(4, first)
    first.store.checkpoint()
    first.wait(lambda: not os.path.exists(linker.path(2)))
    go_on_to(5, first)
    third = standby_of(directory, "c")
    third.follow()
    first.crash()
    linker.publish("z", 2)
    second = Term(directory, "b", replace(SMALL, cleanup_interval=math.inf))
    if rotates:
        go_on_to(8, second)
    second.crash()
    assert os.path.exists(linker.path(2)), "nobody gave it up"
    third.fence(lambda: True)
    third.read()
    begin(third)
    assert third.messages == 1
    third.close()


# proves: end-of-the-file-that-was-read
def test_an_end_that_was_read_is_that_of_a_file_and_not_of_its_name(tmp_path: Path) -> None:
    """No header names it any more, and another broker linked a file late in the place of the one that was read."""
    directory = str(tmp_path / "data")
    os.mkdir(directory)
    files = JournalFiles(directory)
    files.prepare("z", 64 * KIB)
    first = Term(directory, "a")

    def go_on_to(file: int) -> None:
        while first.position.file < file:
            first.take(first.add_durably(10, body=bytes(4 * KIB)))

    def reclaim(file: int) -> None:
        first.store.checkpoint()
        first.wait(lambda: not os.path.exists(files.path(file)))

    go_on_to(2)
    kept = first.add_durably(1)
    go_on_to(5)
    reclaim(3)
    late = Standby(directory, str(tmp_path / "index"), "c", SMALL)
    late.follow()
    first.take(kept)
    reclaim(2)
    go_on_to(7)
    late.follow()
    first.crash()
    files.publish("z", 2)
    late.fence(lambda: True)
    late.read()
    begin(late)
    late.close()
    assert read_headers(files).ends[2] == 0
    Term(directory, "d").close()


# proves: header-of-the-file-that-is-there
def test_a_header_is_that_of_a_file_and_not_of_its_name(tmp_path: Path) -> None:
    files = JournalFiles(str(tmp_path))
    files.prepare("z", 64 * KIB)
    first = Term(str(tmp_path), "a")
    while first.position.file < 4:
        first.add_durably(10, body=bytes(4 * KIB))
    first.crash()
    reader = HeaderReader(files)
    assert reader.refresh() == [1, 2, 3, 4]
    files.remove([2])
    files.publish("z", 2)
    assert reader.refresh() == [1, 3, 4]
    assert 2 not in reader.epoch_history.headers


@pytest.mark.parametrize("has_successor", [True, False])
def test_a_file_that_others_remove_while_a_take_over_is_prepared_is_no_damage(
    directory: str, has_successor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[int] = []

    def miss_one(files: JournalFiles, follower: Follower, **named: Any) -> Takeover | None:
        prepared.append(1)
        if len(prepared) == 1:
            if has_successor:
                Promotion(files, broker="b", max_file_length=1 << 16, sync="always").fence(lambda: True)
            raise JournalMissing(1, 0)
        return prepare_takeover(files, follower, **named)

    monkeypatch.setattr("tandemmq.store.standby.prepare_takeover", miss_one)
    if has_successor:
        late = standby_of(directory, "late")
        late.fence(lambda: True)
        late.read()
        with pytest.raises(Deposed):
            begin(late)
        late.close()
    else:
        Term(directory, "a").close()
    assert len(prepared) == (1 if has_successor else 2)


def test_a_file_that_others_remove_while_a_promotion_reads_is_no_damage(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Term(directory, "a")
    first.add_durably(10)
    first.crash()
    advance = Follower.advance
    missed: list[int] = []

    def miss_one(self: Follower, *, is_final: bool = False) -> dict[int, int]:
        if is_final and not missed:
            missed.append(1)
            raise JournalMissing(1, 0)
        return advance(self, is_final=is_final)

    monkeypatch.setattr(Follower, "advance", miss_one)
    with Term(directory, "b") as term:
        assert missed
        assert len(term.bodies()) == 10


class SleepingDisk:
    """Disk of the system; the first process that links through it is suspended before, once."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def link(self, source: str, target: str, /) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        os.link(source, target)


def test_a_broker_suspended_before_its_link_of_a_free_name_is_deposed_at_once(directory: str) -> None:
    """Other brokers fenced, wrote further files and reclaimed the first: the link succeeds, but fences off no
    broker."""
    first = Term(directory, "a")
    first.crash()
    files = JournalFiles(directory)

    def others_rule() -> None:
        for file in (2, 3, 4):
            files.prepare("b", 4096)
            files.publish("b", file)
        files.remove([1, 2, 3])

    late = standby_of(directory, "late", disk=SleepingDisk(others_rule))
    with pytest.raises(Deposed, match=r"db-4\.log exists"):
        late.fence(lambda: True)
    late.close()
    with Term(directory, "c") as third:
        third.add_durably(1)


def test_a_broker_suspended_until_its_fence_is_gone_is_deposed(directory: str) -> None:
    """A successor fenced, went on, and reclaimed all up to its own first file: the name after ours is free again."""
    first = Term(directory, "a")
    first.crash()
    files = JournalFiles(directory)
    late = standby_of(directory, "late")
    late.fence(lambda: True)
    for file in (3, 4):
        files.prepare("b", 4096)
        files.publish("b", file)
    files.remove([1, 2, 3])
    late.read()  # what is there is no damage to one who came late
    with pytest.raises(Deposed, match="its name is gone"):
        begin(late)
    late.close()
    Term(directory, "c").close()


def test_apparent_damage_for_a_deposed_broker_is_the_work_of_its_successor(tmp_path: Path) -> None:
    first = Term(str(tmp_path), "a")
    first.add_durably(10)
    first.add_durably(10)
    first.crash()
    # Its first checkpoint may stand before or behind the batches: without it the journal is read from its beginning.
    shutil.rmtree(tmp_path / "index" / "a")
    late = standby_of(str(tmp_path), "late")
    late.fence(lambda: True)
    successor = standby_of(str(tmp_path), "b")
    successor.fence(lambda: True)
    content = (tmp_path / "db-1.log").read_bytes()
    at = content.index(b"body 1")
    (tmp_path / "db-1.log").write_bytes(content[:at] + b"x" + content[at + 1 :])
    with pytest.raises(Deposed):
        late.read()
    late.close()
    with pytest.raises(JournalCorrupt):
        successor.read()
    successor.close()


def test_the_number_of_an_epoch_is_never_given_twice(directory: str) -> None:
    """The number is that of the first file, which link(2) gives to one broker, or above every number that was ever
    written."""
    first = Term(directory, "a")
    while first.position.file < 4:
        first.add_durably(10, body=b"x" * 2000)
    first.crash()
    second = Term(directory, "b")
    assert second.store.epoch == 5
    second.crash()
    third = standby_of(directory, "c")
    third.fence(lambda: True)
    third.read()
    begin(third, epoch=50).drop()
    with Term(directory, "from the journal alone") as fourth:
        assert fourth.store.epoch == 51


class FarAhead(Standby):
    """Authority whose epoch is far above the number of its first file, as after a journal that was shortened."""

    def begin(self, **options: Any) -> Store:
        return super().begin(**{**options, "epoch": 50})


def test_an_epoch_that_only_an_index_remembers_is_not_given_again(tmp_path: Path) -> None:
    """Ids of messages contain the epoch; the journal lost the file in which it began."""
    with Term(str(tmp_path), "a") as first:
        first.add_durably(5)
    with Term.of(FarAhead(str(tmp_path), f"{tmp_path}/index", "a", SMALL)) as second:
        second.add_durably(5)
    (tmp_path / "db-2.log").unlink()
    with Term(str(tmp_path), "a", replace(SMALL, ignore_missing_journalfiles=True)) as third:
        assert third.store.epoch == 51


def test_a_promotion_with_long_records_may_take_more_files(directory: str) -> None:
    first = Term(directory, "a")
    first.add_durably(5)
    first.crash()
    second = standby_of(directory, "b")
    second.fence(lambda: True)
    second.read()
    remarks = [[encode_trace("x" * 40_000)] for _ in range(5)]
    second._promotion.begin(second.follower, records=remarks).writer.close()
    second.close()
    files = JournalFiles(directory)
    told = read_headers(files)
    assert len(files.list()) > 3
    assert sorted(told.ends) == files.list()[:-1]
    for file, end in told.ends.items():
        batches = list(scan(files, file, 0, end))
        assert batches[-1].end == end
    with Term(directory, "c") as third:
        assert len(third.bodies()) == 5


def test_a_transaction_that_cannot_end_is_rolled_back_with_a_message(directory: str) -> None:
    """The transaction was not prepared, and its client has disconnected."""
    first = Term(directory, "a", replace(SMALL, fence_check_interval=3600.0))
    first.add_durably(1)
    message = first.message()
    transaction = XaTransactionId(5, b"branch", b"global")
    writer = first.store._storage._end.writer
    writer.append([encode_add(message, encode_message(message), transaction)])
    writer.sync()
    first.crash()
    second = Term(directory, "b")
    assert second.store.ask(lambda state: list(state.transactions)).result(10) == []
    second.crash()
    files = JournalFiles(directory)
    ends = read_headers(files).ends
    records = [payload for batch in scan(files, 2, 0, ends.get(2)) for _, payload in batch.records]
    assert encode_rollback(transaction) in records
    with Term(directory, "from the journal alone") as third:
        assert len(third.bodies()) == 1


class Removing:
    """The system's disk. A deposed master removes a file at the moment of the request for the length of that file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.is_armed = False
        self.has_removed = False

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def stat(self, path: str) -> os.stat_result:
        if self.is_armed and path == self._path and not self.has_removed:
            self.has_removed = True
            os.unlink(path)
        return os.stat(path)


def test_a_file_removed_while_its_length_is_read_is_no_damage(directory: str) -> None:
    """An index covers it, so it is not read; whom the fence deposed had given it up, and removes it only now."""
    first = Term(directory, "a")
    for operation in first.add_durably(100, body=b"x" * 1024):
        first.remove(operation, first.store.queue(Q))
    kept = f"{directory}/kept"
    os.link(f"{directory}/db-1.log", kept)
    first.wait_durable(200)
    first.add_durably(10)
    first.store.checkpoint()
    first.wait(lambda: not os.path.exists(f"{directory}/db-1.log"))
    first.add_durably(1)
    (covering,) = first.store.checkpoint()  # also the record that it was given up
    first.wait(covering.done)
    first.crash()
    os.rename(kept, f"{directory}/db-1.log")  # the removal comes later
    disk = Removing(f"{directory}/db-1.log")
    late = standby_of(directory, "a", disk=disk)
    disk.is_armed = True
    with Term.of(late) as second:
        assert disk.has_removed
        assert len(second.bodies()) == 11
