"""Terms of a durable subscription survive the term in which it began: selector and noLocal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tandemmq.index.index import Index
from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import AddSubscription, Owner, RemoveOwner
from tandemmq.store.records.commands import encode_subscription, encode_unsubscribe
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.state import keys
from tandemmq.store.state.keys import OwnerRecord, Terms
from tests.support.store.store_harness import Term

T = Destination(DestinationKind.TOPIC, "T.A")
SHORT = "colour = 'r\u00f6t'"
# Longer than what the index keeps.
LONG = " OR ".join(f"colour = '{number}'" for number in range(300))

Asked = dict[str | None, tuple[str | None, bool]]
ASKED: Asked = {"all": (None, False), "short": (SHORT, False), "others": (SHORT, True), "long": (LONG, True)}


def subscribe(term: Term, name: str, terms: tuple[str | None, bool]) -> int:
    owner = term.store.subscription("c", name, T)
    term.do(AddSubscription(owner, encode_subscription(T, "c", name, *terms)))
    return owner


def asked(owners: list[Owner]) -> Asked:
    return {o.subscription_name: (o.selector, o.no_local) for o in owners if o.subscription_name is not None}


def begun(directory: str) -> Term:
    term = Term(directory)
    for name, terms in ASKED.items():
        subscribe(term, name, terms)
    return term


@pytest.mark.parametrize(("end", "broker"), [("crash", "a"), ("crash", "b"), ("close", "without an index")])
def test_terms_are_read_from_the_journal(directory: str, end: str, broker: str) -> None:
    """The journal is read after a crash, by another broker, and without an index."""
    getattr(begun(directory), end)()
    if end == "close":
        shutil.rmtree(Path(directory) / "index")
    with Term(directory, broker) as again:
        assert asked(again.owners) == ASKED


def test_terms_are_kept_by_the_index_but_for_long_ones(directory: str) -> None:
    term = begun(directory)
    term.add_durably(1)  # something for the last checkpoint to do
    term.close()
    with Index.open(f"{directory}/index/a") as index:
        follower = Follower(JournalFiles(directory), index, records_per_checkpoint=1000)
        kept = {owner.subscription_name: owner.terms for owner in follower.state.owners.values()}
    expected = {name: Terms(*terms) for name, terms in ASKED.items()}
    assert kept == {**expected, "long": None, None: None}, "and a queue, which has none"


def test_terms_come_back_from_the_index_and_the_records(directory: str) -> None:
    term = begun(directory)
    for _ in range(2):
        term.add_durably(1)
        term.close()
        term = Term(directory)
        assert asked(term.owners) == ASKED
    term.close()


def test_the_newest_record_counts(directory: str) -> None:
    term = begun(directory)
    subscribe(term, "short", (None, True))
    term.close()
    with Term(directory) as again:
        assert asked(again.owners) == {**ASKED, "short": (None, True)}


def test_an_index_of_before_knows_no_terms() -> None:
    value = json.dumps([1, "T.A", "c", "s", 5, 0, 0, 7]).encode()
    _, record = keys.owner_of(keys.numbered(keys.OWNER, 9), value)
    assert record == OwnerRecord(T, "c", "s", 5, 0, 0, 7, None)


U = Destination(DestinationKind.TOPIC, "T.B")
PATTERN = Destination(DestinationKind.TOPIC, "T.>")


@pytest.mark.parametrize("ending", ["crash", "close"])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_subscription_of_a_pattern_holds_what_each_topic_got(directory: str, ending: str, has_index: bool) -> None:
    term = Term(directory)
    owners = {}
    for topic in (T, U):
        owners[topic] = owner = term.store.subscription("c", "s", topic)
        payload = encode_subscription(topic, "c", "s", "a = 1", subscribed=PATTERN)
        term.store.append(AddSubscription(owner, payload))
    assert owners[T] != owners[U]
    added = [term.add(topic, owners=(owners[topic],)) for topic in (T, U, U)]
    term.wait_durable(5)
    term.remove(added[1], owners[U], "c:s")
    term.wait_durable(6)
    getattr(term, ending)()
    if not has_index:
        shutil.rmtree(Path(directory) / "index")
    again = Term(directory)
    assert sorted((o.destination.name, o.count, o.selector, o.pattern) for o in again.owners) == [
        ("T.A", 1, "a = 1", "T.>"),
        ("T.B", 1, "a = 1", "T.>"),
    ]
    assert again.store.subscription("c", "s", U) == next(o.id for o in again.owners if o.destination == U)
    again.do(RemoveOwner(again.store.subscription("c", "s", T), encode_unsubscribe(T, "c", "s")))
    again.crash()
    with Term(directory) as third:
        assert [(o.destination.name, o.count) for o in third.owners] == [("T.B", 1)]
