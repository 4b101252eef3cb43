"""Users of connection ids are known to every later master, whatever happened to indexes and journal files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.migration.transfer import carry_over
from tandemmq.store.operations import AddConnection, AddSubscription
from tandemmq.store.records.commands import decode, encode_subscription
from tandemmq.store.records.connection_owners import ConnectionUsers
from tandemmq.store.records.hints import user_in, with_user_hint
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.state import keys
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Frozen
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import Seen, read_headers, walk
from tests.support.store.several_harness import SeveralTerm
from tests.support.store.store_harness import KIB, SMALL, Term

PAIRS = [("ID:a:1", "ann"), ("ID:b:1", "böb"), ("ID:a:2", "ann")]


def know(term: Term, pairs: list[tuple[str, str]] = PAIRS) -> None:
    operations = [AddConnection(*pair) for pair in pairs]
    for operation in operations:
        term.store.append(operation)
    term.wait(lambda: operations[-1] in term.durable_operations)


@pytest.mark.parametrize("end", ["crash", "close", "without an index", "another broker"])
def test_the_next_master_knows_them(tmp_path: Path, end: str) -> None:
    directory = str(tmp_path)
    term = Term(directory)
    know(term)
    if end == "close":
        term.close()
    else:
        term.crash()
    if end == "without an index":
        shutil.rmtree(tmp_path / "index")
    with Term(directory, "b" if end == "another broker" else "a") as term:
        assert term.store.connections() == PAIRS
    assert check(directory).problems == []


def test_several_stores_know_them_too(tmp_path: Path) -> None:
    term = SeveralTerm(str(tmp_path))
    know(term)
    term.crash()
    with SeveralTerm(str(tmp_path)) as term:
        assert term.several.connections() == PAIRS


def test_they_are_shown(tmp_path: Path) -> None:
    with Term(str(tmp_path)) as term:
        know(term, [PAIRS[1]])
    files = JournalFiles(str(tmp_path))
    epoch_history = read_headers(files)
    lines = [item.says for file in files.list() for item in walk(files, epoch_history, file) if isinstance(item, Seen)]
    assert "users of connections: ID:b:1 of böb" in lines


@pytest.mark.parametrize("is_index_lost", [False, True])
def test_they_outlive_the_files_in_which_they_were_met(tmp_path: Path, is_index_lost: bool) -> None:
    """The users also survive the removal of the file whose record repeated them, even if another master wrote that."""
    directory = str(tmp_path)
    settings = replace(SMALL, journal_max_file_length=32 * KIB, checkpoint_interval=0.0, cleanup_interval=0.0)
    term = Term(directory, settings=settings)
    know(term)
    for broker in ("b", "a", "a"):
        first = JournalFiles(directory).list()[0]
        owner = term.store.queue(term.message().destination)
        for _ in range(40):
            for added in term.add_durably(20, body=b"x" * 1000):
                term.remove(added, owner)
            if JournalFiles(directory).list()[0] > first + 3:
                break
        term.wait(lambda first=first: JournalFiles(directory).list()[0] > first + 3)
        term.crash()
        if is_index_lost:
            shutil.rmtree(tmp_path / "index")
        term = Term(directory, broker, settings)
        assert term.store.connections() == PAIRS, broker
    term.close()
    shutil.rmtree(tmp_path / "index")
    with Term(directory, settings=settings) as term:
        assert term.store.connections() == PAIRS
    assert check(directory).problems == []


def test_clients_that_only_connect_still_cause_checkpoints(tmp_path: Path) -> None:
    settings = replace(SMALL, journal_max_file_length=32 * KIB, checkpoint_interval=0.0, cleanup_interval=0.0)
    with Term(str(tmp_path), settings=settings) as term:
        for number in range(60):
            know(term, [(f"ID:{'x' * 400}:{number}:{each}", "ann") for each in range(10)])
        term.wait(lambda: JournalFiles(str(tmp_path)).list()[0] > 1)


def test_a_user_with_many_connections_loses_its_own_first() -> None:
    known = ConnectionUsers(limit=6)
    known.know([("a1", "ann"), ("b1", "bob"), ("a2", "ann")])
    known.know((f"m{number}", "mallory") for number in range(100))
    assert known.pairs() == [("a1", "ann"), ("b1", "bob"), ("a2", "ann"), *((f"m{n}", "mallory") for n in (97, 98, 99))]
    known.know([("c1", "carl")])
    found = [known.user(id) for id in ("a1", "a2", "b1", "c1", "m97", "m98")]
    assert found == ["ann", "ann", "bob", "carl", None, "mallory"]


def test_those_that_were_not_seen_for_longest_are_forgotten() -> None:
    known = ConnectionUsers(limit=2)
    known.know([("1", "ann"), ("2", "ann"), ("1", "ann"), ("3", "ann")])
    assert known.pairs() == [("1", "ann"), ("3", "ann")]


def test_only_what_changes_is_a_revision() -> None:
    known = ConnectionUsers([("1", "ann")])
    before = known.revision
    known.know([("1", "ann")])
    assert known.revision == before
    known.know([("1", "bob")])
    assert known.user("1") == "bob"
    assert known.revision > before


# ---- Whose a durable subscription is stands behind its record in the journal, and is known wherever the record is
# read


T = Destination(DestinationKind.TOPIC, "T.A")
LONG = " OR ".join(f"colour = 'red {number}'" for number in range(200))
USERS = {"hers": "ann", "long": "böb", "nobodys": None}


@pytest.fixture
def directory(tmp_path: Path) -> str:
    directory = str(tmp_path / "data")
    with Term(directory) as term:
        for name, user in USERS.items():
            owner = term.store.subscription("c", name, T)
            payload = encode_subscription(T, "c", name, LONG if name == "long" else None)
            term.store.append(AddSubscription(owner, with_user_hint(payload, user)))
        term.wait_durable(len(USERS))
    return directory


def freeze_as_before(state: State, *args: Any, freeze: Callable[..., Frozen] = State.freeze) -> Frozen:
    frozen = freeze(state, *args)
    return frozen._replace(meta=frozen.meta.replace(b'"users":true,', b""))


def users(directory: str, broker: str = "a") -> dict[str | None, str | None]:
    with Term(directory, broker) as term:
        found = {owner.subscription_name: owner.user for owner in term.owners}
    assert check(directory).problems == []
    return found


@pytest.mark.parametrize("broker", ["a", "without-an-index"])
def test_the_next_master_knows_it(directory: str, broker: str) -> None:
    assert users(directory, broker) == USERS


def test_an_index_of_before_it_was_kept_is_not_believed(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old broker followed the journal, and was replaced by a version that records users."""
    with monkeypatch.context() as before:
        before.setattr("tandemmq.store.writer.batch.user_in", lambda payload: None)
        before.setattr("tandemmq.store.state.replay.user_in", lambda payload: None)
        before.setattr("tandemmq.store.recovery.terms.user_in", lambda payload: None)
        before.setattr(State, "freeze", freeze_as_before)
        with Term(directory, "old") as term:
            term.store.checkpoint()[0].result(30)
    assert users(directory, "old") == USERS


def test_entries_without_a_user_have_the_form_of_a_former_version() -> None:
    record = keys.OwnerRecord(T, "c", "d", 1, 0, 0, 1, keys.Terms(None, False))
    assert keys.owner_value(record).endswith(b"[null,false,null]]")
    assert keys.owner_of(keys.numbered(keys.OWNER, 1), keys.owner_value(record))[1] == record


def test_an_export_takes_it_along(directory: str, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    os.mkdir(target)
    carry_over(directory, target, str(tmp_path / "scratch"), name="export")
    assert users(target) == USERS


def test_it_is_shown(directory: str) -> None:
    files = JournalFiles(directory)
    epoch_history = read_headers(files)
    items = [item for file in files.list() for item in walk(files, epoch_history, file)]
    seen = [item for item in items if isinstance(item, Seen) and item.kind == "subscribe"]
    assert [each.says for each in seen] == ["user ann", f"user böb, selector {LONG}", None]
    assert all(each.moved_from is None for each in seen)


def test_an_invalid_name_is_no_user() -> None:
    record = encode_subscription(T, "c", "d")
    assert user_in(with_user_hint(record, "ann")) == "ann"
    assert decode(with_user_hint(record, "ann")) == decode(record)
    assert user_in(record + b"\3\xff") is None
