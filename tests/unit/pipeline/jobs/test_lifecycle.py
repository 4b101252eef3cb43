"""Times at which each message was stored and acknowledged, from journals written by the test. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from tandemmq.pipeline.columns import ACKS, COLUMNS, MARKS, RECORDS, ddl
from tandemmq.pipeline.engine import F
from tandemmq.pipeline.jobs.lifecycle import believed, lifecycle

# Tests that compute with Spark have mark.service.

START = datetime(2026, 11, 3, 9, tzinfo=UTC)
QUEUE = {"destination_type": "queue", "destination": "orders"}
TOPIC = {"destination_type": "topic", "destination": "prices"}
ONE, TWO = ({**TOPIC, "subscription": f"c:{name}"} for name in ("one", "two"))

Row = dict[str, Any]
Life = tuple[Any, ...]


def second(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def add(message_id: str, at: float | None, **others: Any) -> Row:
    shown = None if at is None else second(at)
    return {"command": "ADD_MESSAGE", **QUEUE, "message_id": message_id, "broker_in": shown, **others}


def copy(message_id: str, at: float, **others: Any) -> Row:
    return add(message_id, at, **others) | {"command": "COPY"}


def ack(message_id: str, **others: Any) -> Row:
    return {"command": "REMOVE_MESSAGE", **QUEUE, "message_id": message_id, **others}


def clock(at: float) -> Row:
    return {"command": "CLOCK", "broker_in": second(at)}


class Journal:
    """Batches of records, in order; each record takes 100 bytes. Each is a store: one query answers for all of them."""

    written: ClassVar[list[Journal]] = []

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.store = str(len(self.written))
        self.written.append(self)
        self._file, self._offset = 1, 0

    def batch(self, *records: Row) -> Journal:
        start = self._offset
        for record in records:
            self._offset += 100
            place = {"store": self.store, "file": self._file, "offset": self._offset, "batch": start}
            self.rows.append({**place, "epoch": 1, "length": 100, **record})
        self._offset += 100
        return self

    def next_file(self) -> Journal:
        self._file, self._offset = self._file + 1, 0
        return self


def found_in(session: Any, journals: Sequence[Journal], **named: Any) -> dict[str, list[Life]]:
    """Return for each store the lives: (message, subscription, added, latest added, acknowledged, latest, state)."""

    def table(name: str, rows: Sequence[Row]) -> Any:
        names = [column for column, _ in COLUMNS[name]]
        return session.createDataFrame([[row.get(column) for column in names] for row in rows], ddl(name))

    rows = [row for journal in journals for row in journal.rows]
    removals = [row for row in rows if row["command"] == "REMOVE_MESSAGE"]
    records = believed(table(RECORDS, rows), **named)
    lives = lifecycle(records, table(MARKS, []), table(ACKS, removals), **named)
    times = [
        ((F.unix_millis(name) - int(START.timestamp() * 1000)) / 1000).alias(name)
        for name in ("added_lo", "added_hi", "ack_lo", "ack_hi")
    ]
    found: dict[str, list[Life]] = {journal.store: [] for journal in journals}
    for store, *life in lives.select("store", "message_id", "subscription", *times, "state").collect():
        found[store].append(tuple(life))
    return {store: sorted(each, key=repr) for store, each in found.items()}


@pytest.fixture
def lives(engine: Any) -> Mapping[str, list[Life]]:
    return found_in(engine, Journal.written)


# (message, subscription, added, added at the latest, acknowledged, at the latest, state), or the state alone.
STORIES: dict[str, tuple[Journal, list[Any]]] = {}


def story(name: str, journal: Journal, *lives: Any) -> None:
    STORIES[name] = journal, list(lives)


story(
    "an acknowledgement lies between the clocks around it",
    Journal().batch(add("a", 1)).batch(add("b", 2)).batch(ack("a")).batch(add("c", 5)).batch(ack("b")),
    ("a", None, 1, 1, 2, 5, "acked"), ("b", None, 2, 2, 5, None, "acked"), ("c", None, 5, 5, None, None, "live"),
)  # fmt: skip
story(
    "clocks count over the border of files",
    Journal().batch(add("a", 1)).next_file().batch(ack("a")).next_file().batch(add("b", 9)),
    ("a", None, 1, 1, 1, 9, "acked"), ("b", None, 9, 9, None, None, "live"),
)  # fmt: skip
story(
    "what stands in the batch of a mark was written then",
    Journal().batch(clock(1), add("a", 1)).batch(clock(700), ack("a")).batch(clock(4000), add("b", 4000)),
    ("a", None, 1, 1, 700, 700, "acked"), ("b", None, 4000, 4000, None, None, "live"),
)  # fmt: skip

TWO_MASTERS = Journal().batch(clock(1), add("a", 1)).batch(clock(3), add("b", 3)).next_file()
TWO_MASTERS.batch({**clock(100), "epoch": 2}, {**add("c", 100), "epoch": 2}).batch({**ack("c"), "epoch": 2})
story(
    "the interval of one master is not that of another",
    TWO_MASTERS.next_file().batch(clock(9000), add("d", 9000)),
    ("a", None, 1, 1, None, None, "live"), ("b", None, 3, 3, None, None, "live"),
    ("c", None, 100, 100, 100, 9000, "acked"), ("d", None, 9000, 9000, None, None, "live"),
)  # fmt: skip

FIRST, SECOND, THIRD = ({"transaction": f"TX:{number}"} for number in (1, 2, 3))
TRANSACTED = (
    Journal().batch(clock(1), add("a", 1)).batch(add("b", 2, **FIRST), ack("a", **FIRST), add("c", 2, **SECOND))
)
TRANSACTED.batch(add("e", 5, **THIRD)).batch(clock(60), {"command": "COMMIT", **FIRST})
story(
    "what a transaction did counts at its commit; not what was rolled back, or is open",
    TRANSACTED.batch({"command": "ROLLBACK", **SECOND}).batch(clock(90), ack("b")).batch(add("d", 95)),
    ("a", None, 1, 1, 60, 60, "acked"), ("b", None, 60, 60, 90, 90, "acked"), ("d", None, 95, 95, None, None, "live"),
)  # fmt: skip
story(
    "a copy is no second message",
    Journal().batch(add("a", 1)).batch(copy("a", 1)).batch(clock(50), copy("b", 2)).batch(clock(60), ack("b")),
    ("a", None, 1, 1, None, None, "live"), ("b", None, 2, 2, 60, 60, "acked"),
)  # fmt: skip
story(
    "an acknowledgement of what is not there has no match",
    Journal().batch(clock(1), ack("lost")).batch(add("a", 2)),
    ("a", None, 2, 2, None, None, "live"), ("lost", None, None, None, 1, 1, "unmatched_ack"),
)  # fmt: skip

AGAIN = Journal().batch(clock(1), add("a", 1)).batch(clock(10), ack("a")).batch(clock(20), add("a", 20))
story(
    "a message that is stored again lives again",
    AGAIN.batch(clock(35), ack("a")).batch(clock(40), ack("a")),
    ("a", None, 1, 1, 10, 10, "acked"), ("a", None, 20, 20, 35, 35, "acked"),
)  # fmt: skip
story(
    "a message that was stored twice waits once",
    Journal().batch(clock(1), add("a", 1)).batch(clock(5), add("a", 5)).batch(clock(9), ack("a")),
    ("a", None, 1, 1, 9, 9, "acked"),
)

KINDS = Journal().batch(clock(1), add("a", 1), add("b", 1), add("c", 1), add("d", 1))
KINDS.batch(clock(2), ack("a", ack_kind="expired"), ack("b", ack_kind="poison"), ack("c", ack_kind="individual"))
story(
    "only what a consumer took is acknowledged",
    KINDS.batch(ack("d", ack_kind="removed")),
    "expired", "poison", "acked", "removed",
)  # fmt: skip
story(
    "what goes to another place in the same batch was taken by no consumer",
    Journal()
    .batch(clock(1), add("a", 1), add("b", 1))
    .batch(clock(2), add("a", 2, destination="ActiveMQ.DLQ"), ack("a"), ack("b")),
    "removed", "live", "acked",
)  # fmt: skip

LETTERS = Journal().batch(clock(1), add("a", 1)).batch(clock(2), add("b", 1.5, destination="prices"))
LETTERS.batch(add("a", 1.2, destination="ActiveMQ.DLQ"), ack("a", ack_kind="poison"))
LETTERS.batch(add("ID:dead-letter-1:1", 1.7, destination="ActiveMQ.DLQ")).batch(clock(3), add("c", 3))
story(
    "a letter came when it was carried, not when its message was sent",
    LETTERS,
    ("ID:dead-letter-1:1", None, 2, 3, None, None, "live"), ("a", None, 1, 1, 2, 3, "poison"),
    ("a", None, 2, 3, None, None, "live"), ("b", None, 1.5, 1.5, None, None, "live"),
    ("c", None, 3, 3, None, None, "live"),
)  # fmt: skip

REMOVED = Journal().batch(clock(1), add("a", 1)).batch(clock(7), {"command": "REMOVE_DESTINATION", **QUEUE})
story(
    "what went with its queue was deleted then",
    REMOVED.batch(clock(9), add("b", 9)),
    ("a", None, 1, 1, 7, 7, "deleted"), ("b", None, 9, 9, None, None, "live"),
)  # fmt: skip

TOPICS = Journal().batch(clock(1), add("before", 1, **TOPIC), {"command": "SUBSCRIPTION", **ONE})
TOPICS.batch({"command": "SUBSCRIPTION", **TWO}).batch(clock(2), add("a", 2, **TOPIC))
story(
    "a topic has a life for each subscription",
    TOPICS.batch(clock(5), ack("a", **ONE)).batch(clock(8), {"command": "UNSUBSCRIPTION", **TWO}),
    ("a", "c:one", 2, 2, 5, 5, "acked"), ("a", "c:two", 2, 2, 8, 8, "deleted"),
)  # fmt: skip

SELECTED = Journal().batch(clock(1), {"command": "SUBSCRIPTION", **ONE})
SELECTED.batch(add("ours", 2, **TOPIC), ack("ours", **ONE)).batch(add("theirs", 3, **TOPIC))
SELECTED.batch(ack("theirs", ack_kind="unmatched", **ONE)).batch(add("a", 4, **TOPIC)).batch(clock(5), ack("a", **ONE))
story("what a selector passed over was never for that subscription", SELECTED, ("a", "c:one", 4, 4, 5, 5, "acked"))

QUICK = Journal().batch(clock(1), {"command": "SUBSCRIPTION", **ONE}, {"command": "SUBSCRIPTION", **TWO})
QUICK.batch(add("a", 2, **TOPIC), ack("a", ack_kind="standard", **ONE), ack("a", ack_kind="unmatched", **TWO))
story("ActiveMQ's consumers may acknowledge in the batch of the message", QUICK, ("a", "c:one", 2, 2, 2, None, "acked"))

COPIED_TOPIC = Journal().batch(clock(1), {"command": "SUBSCRIPTION", **ONE}).batch(clock(2), add("a", 2, **TOPIC))
COPIED_TOPIC.next_file().batch(clock(50), {"command": "SUBSCRIPTION", **TWO})
COPIED_TOPIC.batch(copy("a", 2, **TOPIC), ack("a", **TWO)).batch(clock(70), ack("a", **ONE))
# A compaction writes a removal for each subscription without the message: they are no acknowledgements.
story("a copy says who does not have the message", COPIED_TOPIC, ("a", "c:one", 2, 2, 70, 70, "acked"))
story(
    "a subscription whose first record is not there has its acknowledgements",
    Journal().batch(clock(1), add("a", 1, **TOPIC)).batch(clock(4), ack("a", **ONE)).batch(ack("b", **ONE)),
    ("a", "c:one", 1, 1, 4, 4, "acked"), ("b", "c:one", None, None, 4, 7.001, "unmatched_ack"),
)  # fmt: skip

MOVED_RECORD = Journal().batch(clock(1), add("a", 1, **TOPIC)).batch(clock(4), ack("a", **ONE))
MOVED_RECORD.batch(clock(5), add("b", 5, **TOPIC)).next_file().batch(clock(9), {"command": "SUBSCRIPTION", **ONE})
story(
    "a subscription was there before its record was moved",
    MOVED_RECORD.batch(copy("b", 5, **TOPIC)).batch(clock(12), ack("b", **ONE)),
    ("a", "c:one", 1, 1, 4, 4, "acked"), ("b", "c:one", 5, 5, 12, 12, "acked"),
)  # fmt: skip

ENDED_EARLY = Journal().batch(clock(1), add("a", 1, **TOPIC), add("b", 1, **TOPIC)).batch(clock(4), ack("a", **ONE))
ENDED_EARLY.batch(clock(5), {"command": "UNSUBSCRIPTION", **ONE}).batch(clock(6), add("c", 6, **TOPIC))
story(
    "a subscription whose first record is not there ended before it was made again",
    ENDED_EARLY.batch(clock(7), {"command": "SUBSCRIPTION", **ONE}).batch(clock(8), add("d", 8, **TOPIC)),
    ("a", "c:one", 1, 1, 4, 4, "acked"), ("b", "c:one", 1, 1, 5, 5, "deleted"),
    ("d", "c:one", 8, 8, None, None, "live"),
)  # fmt: skip

FORWARDED = Journal().batch(clock(1), {"command": "SUBSCRIPTION", **ONE}, add("a", 1, **TOPIC), add("b", 1))
FORWARDED.batch(clock(3), ack("a", **ONE)).batch(clock(4), {"command": "UNSUBSCRIPTION", **ONE})
FORWARDED.batch(clock(5), {"command": "SUBSCRIPTION", **ONE}).next_file()
FORWARDED.batch({"command": "REWRITTEN"}, ack("a", ack_kind="standard", **ONE), ack("b", ack_kind="standard"))
story(
    "what a compaction of ActiveMQ forwards is older than where it stands, and has no match where it has none there",
    FORWARDED.next_file().batch(clock(9), add("c", 9)),
    ("a", "c:one", 1, 1, 3, 3, "acked"), ("b", None, 1, 1, 1, 9, "acked"), ("c", None, 9, 9, None, None, "live"),
)  # fmt: skip

DISBELIEVED = Journal().batch(clock(1), add("a", 5000)).batch(add("b", 7000), add("c", 1.5)).batch(clock(3), ack("a"))
story(
    "a sender's clock is believed only where it agrees with the marks",
    DISBELIEVED.batch(add("d", -4000)).batch(clock(5), ack("b"), add("e", 4.5), add("f", None)),
    ("a", None, 1, 1, 3, 3, "acked"), ("b", None, 1, 1.5, 5, 5, "acked"), ("c", None, 1.5, 1.5, None, None, "live"),
    ("d", None, 3, 5, None, None, "live"), ("e", None, 4.5, 4.5, None, None, "live"),
    ("f", None, 5, 5, None, None, "live"),
)  # fmt: skip


def test_each_message_has_the_times_that_its_journal_tells(lives: Mapping[str, list[Life]]) -> None:
    wrong = {}
    for name, (journal, expected) in STORIES.items():
        found = lives[journal.store]
        if ([life[-1] for life in found] if isinstance(expected[0], str) else found) != expected:
            wrong[name] = found
    assert wrong == {}


UNMARKED = Journal().batch(clock(1), add("a", 1)).batch(ack("a")).batch(clock(3), add("b", 3))
UNMARKED.next_file().batch(clock(100), add("c", 100)).batch(ack("b")).batch(ack("c"))
UNMARKED.next_file().batch(clock(9000), add("d", 9000))


def test_without_a_mark_less_than_the_interval_has_passed(engine: Any, lives: Mapping[str, list[Life]]) -> None:
    """Two marks of one file were two seconds apart: so an unmarked batch was written within that."""
    assert lives[UNMARKED.store][1:3] == [
        ("b", None, 3, 3, 100, 102.001, "acked"),
        ("c", None, 100, 100, 100, 102.001, "acked"),
    ]
    assert found_in(engine, [UNMARKED], mark_interval_ms=500)[UNMARKED.store][1][-3:] == (100, 100.501, "acked")
