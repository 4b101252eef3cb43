"""Directories that the real ActiveMQ wrote are taken over: the messages that it would deliver are there once, in order.

Each life of ActiveMQ takes a second, so tests share the directories of a few lives; each test takes a copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.kahadb.minimal import is_minimal
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.tools.check import check
from tests.support.interop.scripted import Answers, Script, Step
from tests.support.store.store_harness import Term
from tests.support.store.takeover_harness import Held, replayed, take_over

pytestmark = [pytest.mark.service, pytest.mark.promise("from-activemq")]

SMALL = 16_384
FILL: Step = {"do": "fill", "bytes": 18_000}  # a file and a bit


class Left(NamedTuple):
    """A directory that ActiveMQ left, and ActiveMQ's last report of its content."""

    directory: Path
    answers: Answers


def opens(directory: Path, **options: Any) -> Step:
    return {"do": "open", "directory": str(directory), **options}


def send(to: str, **options: Any) -> Step:
    return {"do": "send", "to": to, **options}


def receive(source: str, **options: Any) -> Step:
    return {"do": "receive", "from": source, **options}


def with_messages(held: Held) -> Held:
    return {name: ids for name, ids in held.items() if ids}


def copy_of(left: Left, tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    shutil.copytree(left.directory, directory)
    return directory


def journal_alone(directory: Path) -> Held:
    copy = directory.with_name("alone")
    try:
        return replayed(directory, copy)
    finally:
        shutil.rmtree(copy)


def taken_exactly(directory: Path, expected: Held) -> dict[str, int]:
    """Take over; what is held is exactly that, and a replay of the journal alone says the same. Returns what was
    corrected."""
    taken = take_over(directory)
    assert with_messages(taken.held) == with_messages(expected)
    assert journal_alone(directory) == taken.held
    assert is_minimal(str(directory))
    assert check(str(directory)).is_clean
    assert taken.report is not None
    return taken.report.corrected


# ---- the defects of KahaDB (kahadb.md 8.1, items 1 to 5)


@pytest.fixture(scope="module")
def defects(script: Script, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Items 1, 2 and 3 in one directory: the files whose records they tell of were collected by ActiveMQ."""
    directory = tmp_path_factory.mktemp("defects")
    begin = opens(directory, fileLength=SMALL, persistRedelivered=True)
    script(
        begin,
        {"do": "subscribe", "topic": "T", "client": "c", "name": "gone"},
        {"do": "subscribe", "topic": "T", "client": "c", "name": "stays"},
        send("queue://keep"),  # pins the first file
        send("queue://deleted", count=3),
        send("topic://T", count=2),
        send("queue://updated"),
        send("queue://acknowledged"),
        FILL,
        receive("queue://updated", redelivered=True),
        FILL,
        {"do": "delete", "queue": "deleted"},
        {"do": "unsubscribe", "client": "c", "name": "gone"},
        FILL,
        receive("queue://updated"),
        FILL,
        send("queue://x"),
        receive("queue://x"),
        {"do": "checkpoint"},  # the ack map is stored, and not again when the next one is added to a set of it
        receive("queue://acknowledged"),
        {"do": "stop"},
    )
    answers = script(
        begin,
        {"do": "fill", "bytes": 40_000},
        {"do": "cleanup", "times": 4},
        {"do": "files"},
        {"do": "dump"},
        {"do": "stop"},
    )
    (files,) = answers.files
    assert files[0] == 1
    assert 2 not in files, "ActiveMQ collected the files between"
    assert with_messages(answers.held).keys() == {"keep", "T for c:stays"}
    return Left(directory, answers)


def test_nothing_comes_back_from_the_dead(defects: Left, tmp_path: Path) -> None:
    directory = copy_of(defects, tmp_path)
    dead = journal_alone(directory)
    assert len(dead["deleted"]) == 3, "item 1: a deleted queue, by the journal alone"
    assert len(dead["T for c:gone"]) == 2, "item 1: a deleted subscription"
    assert len(dead["acknowledged"]) == 1, "item 2: an acknowledged message"
    assert len(dead["updated"]) == 1, "item 3: an updated and acknowledged message"
    corrected = taken_exactly(directory, defects.answers.held)
    assert corrected["destinations that had been deleted"] == 1
    assert corrected["subscriptions that had been deleted"] == 1
    assert corrected["messages that had been removed"] == 2


def test_an_appended_compaction_file_is_read_whole(script: Script, tmp_path: Path) -> None:
    """Item 4: the file that ActiveMQ compacted into becomes its tail; its own rebuild skips what stands there then."""
    directory = tmp_path / "data"
    script(
        opens(directory, fileLength=SMALL, compact=True),
        send("queue://keep"),
        send("queue://a", count=4),
        receive("queue://a"),
        FILL,
        receive("queue://a"),
        FILL,
        receive("queue://a"),
        FILL,
        {"do": "cleanup", "times": 2, "ms": 400},
        {"do": "halt"},
    )
    answers = script(
        opens(directory, fileLength=SMALL),
        send("queue://late", count=5),
        receive("queue://late"),
        receive("queue://a"),
        {"do": "subscribe", "topic": "T", "client": "c", "name": "late"},
        send("topic://T", count=2),
        send("queue://late", count=2, commit=True),
        send("queue://branch", xa="P"),
        receive("queue://late", xa="R"),
        {"do": "prepare", "xa": "P"},
        {"do": "prepare", "xa": "R"},
        {"do": "dump"},
        {"do": "stop"},
    )
    assert len(answers.held["late"]) == 6
    assert len(answers.held["T for c:late"]) == 2
    assert sorted(answers.prepared) == ["P", "R"]
    without_index = tmp_path / "without"
    shutil.copytree(directory, without_index)
    for name in ("db.data", "db.redo", "db.free"):
        (without_index / name).unlink(missing_ok=True)
    taken_exactly(without_index, answers.held)
    taken_exactly(directory, answers.held)
    again = script(opens(directory, fileLength=SMALL), {"do": "dump"}, {"do": "halt"})
    withheld = answers.held["late"][0]  # by the prepared receipt: after a start ActiveMQ does not list it
    answers.held["late"].remove(withheld)
    assert with_messages(again.held) == with_messages(answers.held), "ActiveMQ meets them, too"
    assert sorted(again.prepared) == ["P", "R"]


def test_a_rolled_back_branch_is_not_in_doubt_again(script: Script, tmp_path: Path) -> None:
    """Item 5: ActiveMQ's compaction forwards no rollback."""
    directory = tmp_path / "data"
    answers = script(
        opens(directory, fileLength=SMALL, compact=True),
        send("queue://keep"),
        send("queue://a", count=4),
        send("queue://ghost", xa="G"),
        {"do": "prepare", "xa": "G"},
        send("queue://doubt", xa="P"),
        {"do": "prepare", "xa": "P"},
        FILL,
        receive("queue://a"),
        {"do": "rollback", "xa": "G"},
        {"do": "commit", "xa": "P"},
        FILL,
        receive("queue://a"),
        FILL,
        FILL,
        {"do": "cleanup", "times": 12, "ms": 150},
        {"do": "files"},
        {"do": "dump"},
        {"do": "stop"},
    )
    (files,) = answers.files
    assert 2 not in files
    assert answers.prepared == []
    taken = take_over(directory)
    assert taken.prepared == []
    assert with_messages(taken.held) == with_messages(answers.held)
    assert taken.report is not None
    assert taken.report.corrected["transactions that had been rolled back"] == 1
    assert journal_alone(directory) == taken.held


# ---- all that a store holds


def everything(directory: Path, ending: str) -> Iterator[Step]:
    yield opens(directory, fileLength=65_536, prioritized=True, scheduler=True)
    yield {"do": "subscribe", "topic": "T", "client": "c", "name": "all"}
    yield {"do": "subscribe", "topic": "T", "client": "c", "name": "some", "selector": "JMSPriority > 4"}
    yield {"do": "stay", "topic": "T", "client": "online", "name": "online"}
    for turn in range(2):
        yield send("queue://plain", count=6)
        yield send("queue://prioritized", count=30, priority=[4, 9, 0, 4, 7, 2])
        yield send("topic://T", count=12, priority=[4, 9, 0])
        yield send("queue://committed", count=3, commit=True)
        yield send("queue://committed", count=2, commit=False)
        yield receive("queue://plain", count=2)
        yield receive("queue://prioritized", count=4)
        yield receive("queue://plain", count=1, commit=False)
        yield {"do": "take", "topic": "T", "client": "c", "name": "all", "count": 3}
        yield {"do": "take", "topic": "T", "client": "c", "name": "some", "count": 2, "selector": "JMSPriority > 4"}
        yield {"do": "hear", "name": "online", "count": 5}
        for outcome in ("commit", "rollback"):
            name = f"{outcome}-{turn}"
            yield send("queue://branches", count=2, xa=name)
            yield {"do": "prepare", "xa": name}
            yield {"do": outcome, "xa": name}
        yield send("queue://branches", count=2, xa=f"sent-{turn}")
        yield {"do": "prepare", "xa": f"sent-{turn}"}
        yield receive("queue://plain", count=1, xa=f"received-{turn}")
        yield {"do": "prepare", "xa": f"received-{turn}"}
        yield send("queue://expired", count=2, expires=1)
        yield send("queue://big", count=3, size=30_000)
        yield send("queue://left", count=2, commit="open")
        if turn == 0:
            yield {"do": "checkpoint"}
    yield send("queue://scheduled", count=4, delay=3_600_000)
    yield {"do": "dump"}
    yield {"do": ending}


@pytest.fixture(scope="module", params=["halt", "stop"])
def full(request: pytest.FixtureRequest, script: Script, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """With ``halt``, half of it stands behind the last checkpoint."""
    directory = tmp_path_factory.mktemp("full") / "kahadb"
    return Left(directory, script(*everything(directory, request.param)))


def deliverable(held: Held, expected: Held) -> Held:
    """A subscription has pending what its selector will pass over: such messages are left out."""
    matching = set(expected["T for c:some"])
    return {**held, "T for c:some": [message_id for message_id in held["T for c:some"] if message_id in matching]}


@pytest.mark.parametrize("has_index", [True, False])
def test_all_that_activemq_would_deliver_is_there_in_its_order(full: Left, tmp_path: Path, has_index: bool) -> None:
    directory = copy_of(full, tmp_path)
    if not has_index:
        for name in ("db.data", "db.redo", "db.free"):
            (directory / name).unlink(missing_ok=True)
    taken = take_over(directory)
    expected = full.answers.held
    assert with_messages(deliverable(taken.held, expected)) == with_messages(expected)
    assert journal_alone(directory) == taken.held
    assert taken.selectors == {"all": None, "some": "JMSPriority > 4", "online": None}
    assert len(taken.prepared) == len(full.answers.prepared) == 4
    assert taken.withheld == 2
    assert taken.report is not None
    assert taken.report.has_index == has_index
    assert taken.report.corrected["messages that were at another place"] > 0
    assert sum(jobs.pending for jobs in taken.report.scheduled) == 4
    assert any("4 scheduled jobs in " in line for line in taken.report.lines())
    assert check(str(directory)).is_clean


# ---- there, back and there again


def held_in_term(term: Term) -> Held:
    found: Held = {}
    for owner in term.owners:
        name = owner.destination.name
        if owner.subscription_name is not None:
            name = f"{name} for {owner.client_id}:{owner.subscription_name}"
        found[name] = [paged.message.message_id for paged in term.page(owner.id).messages]
    return with_messages(found)


def test_brokers_take_turns_over_one_directory(defects: Left, script: Script, tmp_path: Path) -> None:
    """ActiveMQ, we, ActiveMQ that collects files of ours, and we again: each goes on where the other stopped."""
    directory = copy_of(defects, tmp_path)
    first = Term(str(directory))
    held = held_in_term(first)
    assert held == with_messages(defects.answers.held)
    first.add_durably(1)
    for _ in range(40):  # files whose acknowledgements concern nothing but themselves
        before = len(first.durable_operations)
        (operation,) = first.add_durably(1, body=b"x" * 4000)
        first.remove(operation, first.store.queue(operation.message.destination))
        first.wait_durable(before + 2)
    first.close()
    ours = set(JournalFiles(str(directory)).list())
    between = script(
        opens(directory, fileLength=SMALL),
        send("queue://back", count=3),
        receive("queue://keep"),
        FILL,
        FILL,
        {"do": "cleanup", "times": 4},
        {"do": "files"},
        {"do": "dump"},
        {"do": "stop"},
    )
    assert len(between.held["back"]) == 3
    assert ours - set(between.files[0]), "ActiveMQ collected some, and told nobody"
    second = Term(str(directory), "b")
    assert held_in_term(second) == with_messages(between.held)
    second.close()
    assert is_minimal(str(directory))
    assert check(str(directory)).is_clean
    third = Term(str(directory))  # whose own index is of long before
    assert held_in_term(third) == with_messages(between.held)
    third.crash()


def test_a_store_of_an_old_openwire_is_read_and_goes_on_in_the_new_one(script: Script, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    answers = script(
        opens(directory, openwire=6),
        {"do": "subscribe", "topic": "T", "client": "c", "name": "s"},
        send("queue://Q", count=5),
        send("topic://T", count=4),
        {"do": "take", "topic": "T", "client": "c", "name": "s", "count": 1},
        {"do": "dump"},
        {"do": "halt"},
    )
    term = Term(str(directory))
    found = {}
    for owner in term.owners:
        name = "T for c:s" if owner.subscription_name else owner.destination.name
        page = term.page(owner.id)
        found[name] = [paged.message.message_id for paged in page.messages]
        assert all(paged.message.body.startswith(b"body ") for paged in page.messages)
    assert with_messages(found) == with_messages(answers.held)
    term.add_durably(3)
    term.close()
    again = Term(str(directory), "other")  # from the journal alone: old bodies and new ones in one store
    assert sum(len(again.page(owner.id).messages) for owner in again.owners) == 5 + 3 + 3
    again.close()
    assert check(str(directory)).is_clean


def test_the_index_is_found_where_its_setting_put_it(script: Script, tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "data", tmp_path / "index"
    answers = script(
        opens(directory, fileLength=SMALL, indexDirectory=str(elsewhere)),
        send("queue://Q", count=5),
        send("queue://doomed", count=2),
        {"do": "delete", "queue": "doomed"},
        FILL,
        FILL,
        FILL,
        {"do": "cleanup", "times": 3},
        {"do": "dump"},
        {"do": "stop"},
    )
    assert (elsewhere / "db.data").exists()
    standby = Standby(str(directory), str(elsewhere), "a", StoreSettings())
    store = standby.promote(
        has_proof=lambda: True,
        call_soon=lambda function: None,
        call_later=lambda _, function: None,
        on_lost=lambda error: None,
    )
    held = {owner.destination.name: owner.count for owner in store.owners() if owner.count}
    store.drop()
    assert held == {name: len(ids) for name, ids in with_messages(answers.held).items()}
    assert is_minimal(str(elsewhere))
    assert not (directory / "db.data").exists()


@pytest.mark.parametrize("ending", ["halt", "stop"])
def test_a_subscription_of_a_pattern_is_taken_over_topic_by_topic(script: Script, tmp_path: Path, ending: str) -> None:
    directory = tmp_path / "data"
    wild: Step = {"topic": "W.>", "client": "c", "name": "wild", "selector": "JMSPriority > 2"}
    answers = script(
        opens(directory, fileLength=SMALL),
        {"do": "subscribe", **wild},
        {"do": "subscribe", "topic": "W.A", "client": "c", "name": "tame"},
        send("topic://W.A", count=3),
        send("topic://W.B", count=2),
        FILL,
        {"do": "checkpoint"},
        send("topic://W.C", count=2),
        {"do": "take", **wild, "count": 1},
        {"do": "dump"},
        {"do": ending},
    )
    expected = with_messages(answers.held)
    assert {name: len(ids) for name, ids in expected.items() if "wild" in name} in (
        {"W.A for c:wild": 2, "W.B for c:wild": 2, "W.C for c:wild": 2},
        {"W.A for c:wild": 3, "W.B for c:wild": 1, "W.C for c:wild": 2},
        {"W.A for c:wild": 3, "W.B for c:wild": 2, "W.C for c:wild": 1},
    )

    taken = take_over(directory)

    assert with_messages(taken.held) == expected
    assert journal_alone(directory) == taken.held
    assert check(str(directory)).is_clean
    owners = Term(str(directory), "later")
    found = [(o.destination.name, o.selector, o.pattern) for o in owners.owners if o.subscription_name == "wild"]
    owners.close()
    assert sorted(found) == [(topic, "JMSPriority > 2", "W.>") for topic in ("W.A", "W.B", "W.C")]
