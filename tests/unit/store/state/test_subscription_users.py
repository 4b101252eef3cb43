"""Whose a durable subscription is stands behind its record in the journal, and is known wherever the record is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.migration.transfer import carry_over
from tandemmq.store.operations import AddSubscription
from tandemmq.store.records.commands import decode, encode_subscription
from tandemmq.store.records.hints import user_in, with_user_hint
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.state import keys
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Frozen
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import Seen, read_headers, walk
from tests.support.store.store_harness import Term

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
    """Such a broker followed the journal, and was replaced by one that knows of users."""
    with monkeypatch.context() as before:
        before.setattr("tandemmq.store.writer.batch.user_in", lambda payload: None)
        before.setattr("tandemmq.store.state.replay.user_in", lambda payload: None)
        before.setattr("tandemmq.store.recovery.terms.user_in", lambda payload: None)
        before.setattr(State, "freeze", freeze_as_before)
        with Term(directory, "old") as term:
            term.store.checkpoint()[0].result(30)
    assert users(directory, "old") == USERS


def test_what_names_no_user_is_written_as_a_version_without_users_reads_it() -> None:
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


def test_what_is_no_name_is_no_user() -> None:
    record = encode_subscription(T, "c", "d")
    assert user_in(with_user_hint(record, "ann")) == "ann"
    assert decode(with_user_hint(record, "ann")) == decode(record)
    assert user_in(record + b"\3\xff") is None
