"""Who has how much in the journal: by name as far as the bound goes."""

from __future__ import annotations

from pathlib import Path

from tandemmq.broker.admin.journal_figures import OTHERS, OWNERS_MAX, journal_figures
from tandemmq.broker.core.slices import at_once
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.store.store_harness import Term


def test_the_largest_owners_are_named_and_the_rest_is_one(tmp_path: Path) -> None:
    term = Term(str(tmp_path))
    queues = [Destination(DestinationKind.QUEUE, f"Q.{number}") for number in range(OWNERS_MAX + 3)]
    for number, queue in enumerate(queues):
        term.add(queue, b"x" * 100 * (number + 1))
    term.wait_durable(len(queues))
    found = at_once(journal_figures(term.store))
    owned = found["owner_bytes"]
    assert list(owned) == [f"queue://Q.{number}" for number in range(OWNERS_MAX + 2, 2, -1)] + [OTHERS]
    assert owned["queue://Q.12"] > owned["queue://Q.3"] > 400
    assert owned[OTHERS] > 600
    assert sum(owned.values()) == found["live_bytes"]
    assert (found["files"], found["files_without_messages"]) == (1, 0)
    term.close()


def test_an_empty_store_names_nobody(tmp_path: Path) -> None:
    term = Term(str(tmp_path))
    found = at_once(journal_figures(term.store))
    assert found == {"files": 1, "files_without_messages": 1, "live_bytes": 0, "owner_bytes": {OTHERS: 0}}
    term.close()
