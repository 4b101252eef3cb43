"""The records of a journal in words: a message's whole life, damage in its place, and every byte counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import AddMessage, AddSubscription, Atomic, RemoveOwner
from tandemmq.store.records.commands import (
    encode_add,
    encode_commit,
    encode_remove_destination,
    encode_subscription,
    encode_unsubscribe,
)
from tandemmq.store.records.headers import MARK
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.tools.inspect import (
    BEHIND_THE_END,
    DAMAGED,
    TORN,
    Gap,
    Item,
    Seen,
    Summary,
    Trail,
    describe,
    message_of,
    read_headers,
    walk,
)
from tests.support.store.store_harness import KIB, STILL, Q, Term

pytestmark = pytest.mark.promise("bytes-are-explained")

T = Destination(DestinationKind.TOPIC, "PRICES")
FILE_BYTES = 64 * KIB


def everything(directory: str) -> list[Item]:
    files = JournalFiles(directory)
    epoch_history = read_headers(files)
    return [item for file in files.list() for item in walk(files, epoch_history, file)]


def records(directory: str) -> list[Seen]:
    return [item for item in everything(directory) if isinstance(item, Seen)]


def gaps(directory: str) -> list[Gap]:
    return [item for item in everything(directory) if isinstance(item, Gap)]


def summary(directory: str) -> Summary:
    files = JournalFiles(directory)
    epoch_history = read_headers(files)
    counted = Summary()
    for file in files.list():
        counted.file(files.size(file))
        for item in walk(files, epoch_history, file):
            counted.add(item)
    return counted


def life_of(directory: str, message_id: str) -> list[str]:
    trail = Trail(message_id)
    return [seen.kind for seen in records(directory) if trail.concerns(seen)]


def test_records_are_told_with_place_destination_id_and_size(directory: str) -> None:
    with Term(directory, settings=STILL) as term:
        (added,) = term.add_durably(1)

    header = records(directory)[0]
    (seen,) = (each for each in records(directory) if each.kind == "add")

    assert (seen.file << 32 | seen.offset, seen.size) == (added.location, added.size)
    assert (seen.destination, seen.message_id) == ("queue://Q.A", added.message.message_id)
    assert seen.batch < seen.offset
    message = message_of(seen, read_headers(JournalFiles(directory)))
    assert message is not None
    assert message.body == b"body 1"
    assert header.kind == "header"
    assert header.text is not None
    assert json.loads(header.text[len(MARK) :])["holder"] == "a"
    assert header.says == "epoch 1 of a, by promotion; there are db-1.log, written with sync always"


def test_the_life_of_a_message_is_added_copied_and_removed(directory: str) -> None:
    term = Term(directory, settings=STILL)
    (kept,) = term.add_durably(1)
    owner = term.store.queue(Q)
    for _ in range(6):
        term.take(term.add_durably(30, body=b"x" * 2000)[1:], owner)
    term.wait(term.store.compact().done, 20)
    message_id = kept.message.message_id
    copy = next(each for each in records(directory) if each.message_id == message_id)
    assert copy.kind == "copy"
    assert copy.moved_from == (kept.location >> 32, kept.location & 0xFFFFFFFF)
    assert copy.hint_bytes == 21 + 3 + len("ann")

    before = len(term.durable_operations)
    term.remove(kept, owner)
    term.wait_durable(before + 1)
    term.close()
    marks = [each.says for each in records(directory) if each.kind == "mark"]
    assert any(text and text.startswith("gives up db-1.log") for text in marks), marks

    assert life_of(directory, message_id) == ["copy", "remove"], "the file of the original is gone"


def test_the_fate_of_its_transaction_belongs_to_a_messages_life(directory: str) -> None:
    term = Term(directory, settings=STILL)
    transaction = LocalTransactionId("ID:t", 7)
    term.add_durably(1)
    message = term.message()
    term.do(Atomic([_add_in(term, message, transaction)], encode_commit(transaction)))
    term.do(RemoveOwner(term.store.queue(Q), encode_remove_destination(Q)))
    term.close()

    assert life_of(directory, message.message_id) == ["add", "commit", "remove-destination"]
    in_it = [each.transaction for each in records(directory) if each.transaction is not None]
    assert in_it == [transaction.key, transaction.key]


def _add_in(term: Term, message: Message, transaction: LocalTransactionId) -> AddMessage:
    payload = encode_add(message, encode_message(message), transaction)
    return AddMessage(message, (term.store.queue(Q),), payload)


def test_subscriptions_are_told_by_their_key(directory: str) -> None:
    term = Term(directory, settings=STILL)
    owner = term.store.subscription("billing", "three", T)
    begin = AddSubscription(owner, encode_subscription(T, "billing", "three", "price > 3"))
    end = RemoveOwner(owner, encode_unsubscribe(T, "billing", "three"))
    for operation in (begin, end):
        term.store.append(operation)
    term.wait(lambda: end in term.durable_operations)
    term.close()

    seen = [each for each in records(directory) if each.subscription is not None]

    assert [(each.kind, each.subscription) for each in seen] == [
        ("subscribe", "billing:three"),
        ("unsubscribe", "billing:three"),
    ]
    assert seen[0].says == "selector price > 3"


def test_damage_is_shown_in_its_place_with_what_stands_around_it(unchecked: str) -> None:
    term = Term(unchecked, settings=STILL)
    first, second, third = (term.add_durably(1)[0] for _ in range(3))
    term.crash()
    path = JournalFiles(unchecked).path(second.location >> 32)
    with open(path, "r+b") as file:
        file.seek((second.location & 0xFFFFFFFF) + 30)
        file.write(b"\xff")

    found = [item for item in everything(unchecked) if isinstance(item, Gap) or item.kind == "add"]

    assert [item.offset if isinstance(item, Seen) else item.what for item in found] == [
        first.location & 0xFFFFFFFF,
        DAMAGED,
        third.location & 0xFFFFFFFF,
    ]
    damage = found[1]
    assert isinstance(damage, Gap)
    assert damage.start <= second.location & 0xFFFFFFFF < damage.stop
    assert summary(unchecked).dead_bytes == damage.stop - damage.start


def test_a_torn_tail_is_shown_as_one(unchecked: str) -> None:
    term = Term(unchecked, settings=STILL)
    term.add_durably(1)
    (last,) = term.add_durably(1)
    term.crash()
    with open(JournalFiles(unchecked).path(last.location >> 32), "r+b") as file:
        file.truncate((last.location & 0xFFFFFFFF) + 10)

    (gap,) = gaps(unchecked)

    assert gap.what == TORN
    assert len([each for each in records(unchecked) if each.kind == "add"]) == 1


def test_late_records_of_a_deposed_master_are_shown_and_do_not_count(directory: str) -> None:
    zombie = Term(directory, "zombie", replace(STILL, fence_check_interval=60.0))  # it sleeps
    zombie.add_durably(1)
    zombie.wait(lambda: zombie.store.figures.checkpoints > 0)
    with Term(directory, "successor", STILL) as successor:
        late = zombie.add()
        zombie.wait_lost()
        successor.add_durably(1)
    zombie.store.drop()

    adds = [each for each in records(directory) if each.kind == "add"]

    assert [(each.message_id, each.counts) for each in adds if not each.counts] == [(late.message.message_id, False)]
    assert len([each for each in adds if each.counts]) == 2
    (gap,) = gaps(directory)
    assert gap.what == BEHIND_THE_END
    assert summary(directory).dead_bytes == gap.stop - gap.start


def test_every_byte_is_a_records_a_batchs_dead_or_unused(directory: str) -> None:
    with Term(directory, settings=STILL) as term:
        for _ in range(3):
            term.take(term.add_durably(20, body=b"x" * 1000))

    counted = summary(directory)
    files = JournalFiles(directory)

    assert counted.bytes == sum(files.size(file) for file in files.list())
    assert counted.dead_bytes == 0
    unused = sum(_zeros_at_the_end(Path(files.path(file))) for file in files.list())
    assert abs(counted.unused_bytes - unused) <= 16 * counted.files, "prepared zeros, and an end record a file"
    assert sum(counted.shares().values()) == sum(counted.record_bytes.values())
    assert counted.records["remove"] >= 20
    assert counted.shares()["bookkeeping"] < 0.05 * counted.bytes


def _zeros_at_the_end(path: Path) -> int:
    content = path.read_bytes()
    return len(content) - len(content.rstrip(b"\0"))


def test_a_record_that_cannot_be_decoded_says_why() -> None:
    seen = describe(1, 28, 0, b"\x01\x7fgarbage")
    assert seen.kind == "unreadable"
    assert seen.says is not None
    assert "claims" in seen.says
