"""An index older than the outcome of a transaction: files that are away for a moment, ids that are used again."""

# proves: id-used-again-is-another, id-prepared-again-is-another

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.operations import AddMessage, Atomic, EndTransaction, PrepareTransaction
from tandemmq.store.records.commands import encode_add, encode_commit, encode_prepare, encode_rollback
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.standby import Standby
from tests.support.store.store_harness import Q, Term
from tests.unit.store.maintenance.test_compaction import OFF, XID, fill_sparsely, removes_prepared


def added(term: Term, body: bytes) -> AddMessage:
    message = term.message(body=body)
    return AddMessage(message, (term.store.queue(Q),), encode_add(message, encode_message(message), XID))


@pytest.mark.parametrize("is_standby", [False, True], ids=["a start that is refused", "a standby that follows"])
def test_what_is_committed_while_its_file_is_away_is_there_when_the_file_is_back(
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
