"""Rights of groups on destinations, and refusals in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tandemmq.broker.core.access import Operation, is_admin
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.engine.clients import DENIED_AGAIN_MS, DENIED_LINES_MAX, Denials
from tandemmq.broker.engine.clients import DENIED_REMEMBERED_MAX as DENIALS_MAX
from tandemmq.broker.security import rights
from tandemmq.broker.security.rights import Grant, Rights
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.security.test_branches import BILLS, SecuredHarness

pytestmark = pytest.mark.promise("rights")

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC
READ, READ_ALL, WRITE, CREATE, REMOVE, NETWORK = Operation
SHOP = Principal("shop", frozenset({"shops"}))
ADMIN = Principal("root", frozenset({"admins"}))
ANYBODY = Principal("x")

RIGHTS = Rights(
    [
        Grant(QUEUE, ">", *[frozenset({"admins"})] * 3),
        Grant(QUEUE, "ORDERS.>", frozenset(), frozenset({"shops"})),
        Grant(QUEUE, "ORDERS.NEW", frozenset({"shops"})),
        Grant(TOPIC, "NEWS.*", frozenset({"*"})),
    ]
)


def may(who: Principal, operation: Operation, kind: DestinationKind, name: str) -> bool:
    try:
        RIGHTS.check(who, operation, Destination(kind, name))
    except ClientError as error:
        return (error.kind, error.is_fatal) != (ErrorKind.SECURITY, False)
    return True


@pytest.mark.parametrize(
    ("who", "operation", "kind", "name", "expected"),
    [
        (SHOP, WRITE, QUEUE, "ORDERS.A", True),
        (SHOP, READ, QUEUE, "ORDERS.A", False),
        (SHOP, READ, QUEUE, "ORDERS.NEW", True),  # rights add up
        (SHOP, WRITE, QUEUE, "ORDERS.NEW", True),
        (SHOP, CREATE, QUEUE, "ORDERS.NEW", False),
        (ADMIN, CREATE, QUEUE, "ORDERS.NEW", True),  # what a more specific entry does not take away
        (ADMIN, REMOVE, QUEUE, "X", True),
        (SHOP, WRITE, QUEUE, "X", False),
        (ADMIN, WRITE, TOPIC, "NEWS.A", False),
        (ANYBODY, READ, TOPIC, "NEWS.A", True),
        (ANYBODY, READ, TOPIC, "NEWS.A.B", False),
        (ANYBODY, READ, TOPIC, "ActiveMQ.Advisory.TempQueue", True),
        (ANYBODY, CREATE, TOPIC, "ActiveMQ.Advisory.Connection", True),
        (ANYBODY, REMOVE, TOPIC, "ActiveMQ.Advisory.Connection", False),
        (ANYBODY, READ, TOPIC, "ActiveMQ.Advisory.NoConsumer.Queue.ORDERS", False),  # shows whole messages
        (ANYBODY, CREATE, TOPIC, "ActiveMQ.Advisory.NoConsumer.Queue.ORDERS", True),
        (ANYBODY, CREATE, DestinationKind.TEMP_QUEUE, "ID:1", True),
        # A queue that is called like an advisory topic is none.
        (ANYBODY, WRITE, QUEUE, "ActiveMQ.Advisory.Connection", False),
    ],
)
def test_a_group_may_what_some_entry_grants(
    who: Principal, operation: Operation, kind: DestinationKind, name: str, expected: bool
) -> None:
    assert may(who, operation, kind, name) is expected
    assert may(who, operation, kind, name) is expected  # the second time it is remembered


def test_without_entries_everything_is_granted() -> None:
    Rights().check(ANYBODY, REMOVE, Destination(QUEUE, "A"))


def test_a_pattern_is_read_by_who_may_read_something_of_it() -> None:
    # The rights are checked for each queue that it reaches.
    assert may(SHOP, READ, QUEUE, ">")
    assert may(SHOP, READ, QUEUE, "*.NEW")
    assert not may(SHOP, READ, QUEUE, "*.NEW.>.A")
    assert not may(SHOP, READ, QUEUE, "STOCK.>")
    assert not may(SHOP, READ, QUEUE, "*")
    assert not may(ANYBODY, READ, QUEUE, ">")


@pytest.mark.parametrize(
    ("granted", "asked", "expected"),
    [
        (">", ">", True),
        ("*.>", ">", True),
        ("*", ">", False),
        ("A.>", ">", False),
        ("A.>", "A.B.*", True),
        ("A.>", "A.>", True),
        ("A.>", "*.B", False),
        ("A.*", "A.>", False),
        ("A.*", "A.*", True),
        ("A.*", "A.*.B", False),
        ("A.B", "A.*", False),
    ],
)
def test_a_right_to_all_of_a_pattern_is_one_that_covers_it(granted: str, asked: str, expected: bool) -> None:
    # proves: a-right-to-all-covers-all
    group = frozenset({"g"})
    checked = Rights([Grant(kind, granted, group, group, group, group) for kind in (QUEUE, TOPIC)])
    who = Principal("x", group)
    for operation in (READ_ALL, CREATE, REMOVE, NETWORK):
        assert checked.may(who, operation, Destination(TOPIC, asked)) is expected
    assert is_admin(checked, who) is (granted in (">", "*.>"))


def test_a_name_cannot_match_as_a_pattern() -> None:
    assert not may(SHOP, WRITE, QUEUE, ">")
    assert not may(SHOP, CREATE, QUEUE, "ORDERS.*")


def test_the_cached_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "REMEMBERED_MAX", 5)
    checked = Rights([Grant(QUEUE, ">", frozenset({"*"}))])
    for n in range(20):
        checked.check(ANYBODY, READ, Destination(QUEUE, str(n)))
        assert len(checked._remembered) <= 5


# ---- the log has each refusal once, then their number, in a limited number of lines


SENTENCE = "User eve is not authorized to write to: queue://bills"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING, "tandemmq.broker.engine.clients")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_refusal_names_user_operation_and_destination(lines: Any) -> None:
    harness = SecuredHarness()
    eve, alice = harness.come("eve"), harness.come("alice")
    alice.send("bill", BILLS)
    assert lines() == []
    for _ in range(3):
        eve.send("bill", BILLS)
    eve.subscribe(destination=BILLS)
    assert [line.rpartition(": User ")[2] for line in lines()] == [
        "eve is not authorized to write to: queue://bills",
        "eve is not authorized to read from: queue://bills",
    ]
    assert all(line.startswith("denied: ") for line in lines())


def test_a_refusal_does_not_tell_whether_the_destination_exists() -> None:
    # proves: rights-before-existence-write, rights-before-existence-read
    harness = SecuredHarness()
    for name in ("eve", "alice", "eve"):
        client = harness.come(name)
        client.send("bill", BILLS, receipt="sent")
        client.subscribe(destination=BILLS)
        harness.turn()
        if name == "alice":
            assert client.receipts == ["sent"]  # now it exists
        else:
            assert client.errors == [SENTENCE, SENTENCE.replace("write to", "read from")]


def test_the_same_is_told_once_a_minute_with_its_number(lines: Any) -> None:
    denials = Denials()
    for now in (0, 1, DENIED_AGAIN_MS - 1, DENIED_AGAIN_MS, DENIED_AGAIN_MS + 1):
        denials.note("peer", SENTENCE, now)
    assert lines() == [f"denied: 'peer': {SENTENCE}", f"denied: 'peer': {SENTENCE}, 2 times since the last line"]


def test_lines_have_a_bound_and_what_was_not_told_is_counted(lines: Any) -> None:
    denials = Denials()
    for number in range(DENIED_LINES_MAX + 7):
        denials.note("peer", f"{SENTENCE}.{number}", 5)
    assert len(lines()) == DENIED_LINES_MAX
    denials.note("peer", SENTENCE, 5 + DENIED_AGAIN_MS)
    assert lines()[DENIED_LINES_MAX] == "denied: 7 more refusals were not logged"


def test_the_remembered_denials_are_bounded(lines: Any) -> None:
    denials = Denials()
    for number in range(2 * DENIALS_MAX):
        denials.note("peer", f"{SENTENCE}.{number}", DENIED_AGAIN_MS * (1 + number // DENIED_LINES_MAX))
    assert len(denials._logged) == DENIALS_MAX
