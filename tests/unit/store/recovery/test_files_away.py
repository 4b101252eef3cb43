"""An index older than the outcome of a transaction: files that are missing for a moment, and ids that return."""

# proves: id-used-again-is-another, id-prepared-again-is-another, passed-file-that-is-back-is-read
# proves: passed-file-was-not-given-up

from __future__ import annotations

import os
import shutil
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.authority import SharedVolume
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.operations import AddMessage, Atomic, EndTransaction, PrepareTransaction
from tandemmq.store.records.commands import encode_add, encode_commit, encode_prepare, encode_rollback
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.standby import Standby
from tests.support.store.standbys import standby_of
from tests.support.store.store_harness import STILL, Q, Term
from tests.unit.store.maintenance.test_compaction import OFF, XID, fill_sparsely, removes_prepared


# proves: gone-files-fit
def test_an_index_keeps_which_files_went_however_many(directory: str) -> None:
    """A drained backlog of 20 GiB gives up 640 files at once: their list is longer than the root of an index."""
    gone, away = set(range(100_000, 102_000)), set(range(200_000, 200_900))
    with Term(directory) as term:
        term.add_durably(1)
        for given_up, passed in ((gone, away), (gone - {100_007}, away), (set(), set())):
            standby = standby_of(directory)
            standby.follow()
            standby.state.given_up.update(given_up)
            standby.state.missed.update(passed)
            standby.follower.checkpoint()
            standby.close()
            again = standby_of(directory)
            assert (again.state.given_up, again.state.missed) == (given_up, passed)
            again.close()


def added(term: Term, body: bytes) -> AddMessage:
    message = term.message(body=body)
    return AddMessage(message, (term.store.queue(Q),), encode_add(message, encode_message(message), XID))


@pytest.mark.parametrize("is_standby", [False, True], ids=["a start that is refused", "a standby that follows"])
def test_messages_committed_while_a_file_is_away_are_there_afterwards(
    directory: str, tmp_path: Path, is_standby: bool
) -> None:
    other = Q._replace(name="other")
    with Term(directory, "old", settings=OFF) as term:
        term.do(PrepareTransaction(XID, [added(term, b"prepared")], encode_prepare(XID)))
    with Term(directory, settings=OFF) as term:
        fill_sparsely(term, 2, other)
        term.do(EndTransaction(XID, True, encode_commit(XID)))
        fill_sparsely(term, 6, other)
    path, away = JournalFiles(directory).path(1), tmp_path / "away"
    os.rename(path, away)
    if is_standby:
        standby = Standby(directory, f"{directory}/index", "old", OFF)
        for _ in range(10):
            standby.follow()
        standby.follower.checkpoint()
        standby.close()
    else:
        with pytest.raises(JournalLost):
            Term(directory, "old", settings=OFF)
    os.rename(away, path)
    with Term(directory, "old", settings=OFF) as term:
        assert term.bodies() == [b"prepared"]


def test_a_removal_that_is_prepared_withholds_its_message_though_a_former_transactions_id_is_used_again(
    directory: str,
) -> None:
    with Term(directory, "old", settings=OFF) as term:
        term.add_durably(1)
        dense = fill_sparsely(term, 2)
        removes_prepared(term, XID)
    with Term(directory, settings=replace(OFF, cleanup_interval=3600.0)) as term:
        term.store.checkpoint()[0].result(20)
        dense += fill_sparsely(term, 2)
        term.do(EndTransaction(XID, False, encode_rollback(XID)))
        dense += fill_sparsely(term, 2)
        removes_prepared(term, XID._replace(branch=b"another"))
        term.do(Atomic([added(term, b"second")], encode_commit(XID)))
        term.take(dense)
    with Term(directory, settings=OFF) as term:
        term.store.checkpoint()[0].result(20)
    found = []
    for broker in ("a", "old"):
        with Term(directory, broker, settings=OFF) as term:
            found.append((term.bodies(), [each.transaction for each in term.store.prepared()]))
    assert found[0] == found[1]
    assert found[0][0] == [b"second"]


class Mending(SharedVolume):
    """The other copy of a file that is away is where it was put."""

    __slots__ = ("away", "path")

    def mend(self, file: int) -> Future[bool]:  # type: ignore[override]
        if os.path.exists(self.away):
            os.rename(self.away, self.path)
        found: Future[bool] = Future()
        found.set_result(True)
        return found


@pytest.mark.parametrize(
    "case", ["it follows on", "it starts again", "it starts again while it is away", "it is mended"]
)
def test_a_file_that_was_away_when_a_standby_read_past_it_is_read(directory: str, tmp_path: Path, case: str) -> None:
    """The broker has no earlier index. A promotion while the file is away is refused, however often it is tried."""
    master = Term(directory, "a", STILL)
    first = master.position.file
    while master.position.file < first + 3:
        master.add_durably(10, body=b"x" * 2_000)
    expected = master.bodies()
    master.crash()
    shutil.rmtree(f"{directory}/index")
    path, away = JournalFiles(directory).path(first + 1), str(tmp_path / "away")
    os.rename(path, away)
    authority = Mending()
    authority.path, authority.away = path, away if case == "it is mended" else ""

    def stands_by() -> Standby:
        standby = Standby(directory, f"{directory}/index", "b", STILL, authority=authority)
        standby.follow()
        standby.follower.checkpoint()
        return standby

    standby = stands_by()
    if case == "it starts again while it is away":
        for _ in range(2):
            with pytest.raises(JournalLost, match=f"db-{first + 1}.log is missing"):
                Term.of(standby)
            standby.close()
            standby = stands_by()
    if case != "it is mended":
        os.rename(away, path)
    if case.startswith("it starts"):
        standby.close()
        standby = stands_by()
    with Term.of(standby) as promoted:
        assert promoted.bodies() == expected
