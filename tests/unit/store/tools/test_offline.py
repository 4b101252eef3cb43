"""A store without an event loop: a command owns a directory for a while, a broker takes over from it."""

# proves: directory-of-a-set-is-refused

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.journal.errors import Deposed
from tandemmq.store.membership import PROMISE_FILE, BelongsToSet, demand_no_set
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.commands import encode_add
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.settings import StoreSettings
from tandemmq.store.tools.check import check
from tandemmq.store.tools.offline import OfflineStore
from tests.support.store.store_harness import Q, Term


def bodies(store: OfflineStore) -> list[bytes]:
    return [paged.message.body for paged in store.messages(store.store.queue(Q))]


def add(store: OfflineStore, number: int, body: bytes = b"") -> None:
    message = Message(Q, f"ID:offline:1:1:{number}", body or b"%d" % number, BodyKind.BYTES, persistent=True)
    store.append(AddMessage(message, (store.store.queue(Q),), encode_add(message, encode_message(message))))


def test_a_broker_finds_the_records_of_a_command(tmp_path: Path) -> None:
    directory = str(tmp_path)
    with Term(directory) as term:
        term.add_durably(3)

    with OfflineStore(directory) as store:
        add(store, 1)
        store.flush()
        assert bodies(store) == [b"body 1", b"body 2", b"body 3", b"1"]

    with Term(directory) as term:
        assert term.bodies() == [b"body 1", b"body 2", b"body 3", b"1"]
    assert check(directory).problems == []


def test_more_than_the_store_takes_at_once_waits(tmp_path: Path) -> None:
    settings = StoreSettings(pending_bytes_max=4096, max_async_jobs=8)
    with OfflineStore(str(tmp_path), settings=settings) as store:
        for number in range(1, 201):
            add(store, number, b"x" * 512)
        store.flush()
        assert len(bodies(store)) == 200
    assert check(str(tmp_path)).messages == 200


def test_a_successor_ends_the_command_and_not_the_store(tmp_path: Path) -> None:
    directory = str(tmp_path)
    store = OfflineStore(directory, broker_name="command")
    add(store, 1)
    store.flush()
    with Term(directory) as term:
        add(store, 2)
        with pytest.raises(Deposed):
            store.flush()
        store.drop()
        assert term.bodies() == [b"1"]
    assert check(directory).problems == []


def test_an_error_of_the_store_ends_a_compaction_that_is_waited_for(tmp_path: Path) -> None:
    directory = str(tmp_path)
    with Term(directory) as term:
        term.add_durably(3)
    store = OfflineStore(directory, broker_name="command")
    with Term(directory):
        with pytest.raises(Deposed):
            store.result(store.store.compact())
        store.drop()
    assert check(directory).problems == []


# ---- Who is no member of a set writes nothing into the directory of one


def test_the_directory_of_a_member_is_refused_with_the_command_that_ends_it(tmp_path: Path) -> None:
    demand_no_set(str(tmp_path))
    (tmp_path / PROMISE_FILE).write_bytes(b"")
    with pytest.raises(BelongsToSet, match=f"tandemmq replication leave {tmp_path}"):
        demand_no_set(str(tmp_path))


def test_a_membership_that_was_ended_is_none(tmp_path: Path) -> None:
    (tmp_path / f"{PROMISE_FILE}.left").write_bytes(b"")
    demand_no_set(str(tmp_path))


def test_an_offline_store_leaves_it_as_it_is(tmp_path: Path) -> None:
    (tmp_path / PROMISE_FILE).write_bytes(b"")
    with pytest.raises(BelongsToSet):
        OfflineStore(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [PROMISE_FILE]
