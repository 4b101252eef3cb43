"""Several stores: what ActiveMQ's mKahaDB wrote opens here, what we wrote opens in mKahaDB."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.store.records.message import BodyKind, Destination
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.several.filters import FilteredStore
from tandemmq.store.several.layout import stores_in
from tandemmq.store.tools.check_several import check_all
from tests.support.interop.java_programs import Release, program
from tests.support.store.several_harness import REST, TWO, A, B, SeveralTerm

pytestmark = [pytest.mark.service, pytest.mark.promise("several-stores-are-atomic")]

ENTRIES = (*TWO, FilteredStore())
STORES = ["#210", "queue#3a#2f#2fA.#3e", "queue#3a#2f#2fB.#3e", "txStore"]

Held = dict[str, list[str]]
MKahaDB = Callable[..., Held]


@pytest.fixture(scope="session")
def mkahadb(
    require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory, release: Release
) -> MKahaDB:
    """`mkahadb("produce" | "consume", directory)`: what Several.java prints."""
    several = program(require_service, tmp_path_factory.mktemp("classes"), "Several", release)

    def drive(verb: str, directory: Path, *options: str) -> Held:
        found: Held = json.loads(several(verb, str(directory), *options).strip() or "{}")
        return found

    return drive


def held(term: SeveralTerm) -> Held:
    found = {}
    for destination in (A, B, REST):
        page = term.page(term.store.queue(destination))
        found[destination.name] = [paged.message.body.decode() for paged in page.messages]
    return found


@pytest.mark.parametrize("ending", ["stopped", "halted"])
def test_stores_of_mkahadb_open_here(mkahadb: MKahaDB, tmp_path: Path, ending: str) -> None:
    mkahadb("produce", tmp_path, *(["halt"] if ending == "halted" else []))
    term = SeveralTerm(str(tmp_path), ENTRIES)
    assert held(term) == {
        "A.one": ["A.one 2"],
        "B.one": ["B.one 0", "B.one 1", "B.one 2", "moved A.one 0", "moved A.one 1"],
        "other": ["other 0", "other 1", "other 2", "told A.one 0", "told A.one 1"],
    }
    term.close()
    assert stores_in(str(tmp_path)) == STORES
    assert check_all(str(tmp_path)).is_clean


def text(term: SeveralTerm, destination: Destination, body: str) -> None:
    message = term.message(destination, body.encode())
    message.body_kind = BodyKind.TEXT
    term.durable_operations.clear()
    term.add_message(message)
    term.wait_durable(1)


class _Stopped(Exception):
    pass


@pytest.mark.parametrize("moment", ["done", "decided", "prepared"])
def test_our_stores_open_in_mkahadb(
    mkahadb: MKahaDB, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule includes a crash in the middle of a transaction over two stores: decided ones are committed there, the
    others are rolled back."""
    directory = tmp_path / "data"
    directory.mkdir()
    term = SeveralTerm(str(directory), ENTRIES)
    for destination in (A, B, REST):
        text(term, destination, f"{destination.name} 0")
    identity = LocalTransactionId("ID:c-1", 1)
    parts = [term.adding(A, b"joint", identity, BodyKind.TEXT), term.adding(B, b"joint", identity, BodyKind.TEXT)]

    def stop(*arguments: object) -> None:
        raise _Stopped

    before = len(term.durable_operations)
    if moment == "done":
        term.committing(parts, identity)
        term.wait_durable(before + 1)
        term.close()
    else:
        monkeypatch.setattr(term.several, "decided" if moment == "decided" else "prepared_everywhere", stop)
        term.committing(parts, identity)
        with pytest.raises(_Stopped):
            term.wait_durable(before + 1)
        term.crash()
    assert check_all(str(directory)).is_clean
    expected = {"A.one": ["A.one 0", "joint"], "B.one": ["B.one 0", "joint"], "other": ["other 0"]}
    if moment == "prepared":
        expected = {"A.one": ["A.one 0"], "B.one": ["B.one 0"], "other": ["other 0"]}
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    assert mkahadb("consume", directory) == expected
    again = SeveralTerm(str(copy), ENTRIES, "b")
    assert held(again) == expected
    again.close()
