"""Rights of groups on destinations."""

from __future__ import annotations

import pytest

from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security import rights
from tandemmq.broker.security.rights import Grant, Rights
from tandemmq.store.records.message import Destination, DestinationKind

pytestmark = pytest.mark.promise("rights")

QUEUE, TOPIC = DestinationKind.QUEUE, DestinationKind.TOPIC
READ, WRITE, CREATE, REMOVE = Operation
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
    # Each queue that it comes to is asked for then.
    assert may(SHOP, READ, QUEUE, ">")
    assert may(SHOP, READ, QUEUE, "*.NEW")
    assert not may(SHOP, READ, QUEUE, "*.NEW.>.A")
    assert not may(SHOP, READ, QUEUE, "STOCK.>")
    assert not may(SHOP, READ, QUEUE, "*")
    assert not may(ANYBODY, READ, QUEUE, ">")


def test_a_name_cannot_match_as_a_pattern() -> None:
    assert not may(SHOP, WRITE, QUEUE, ">")
    assert not may(SHOP, CREATE, QUEUE, "ORDERS.*")


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "REMEMBERED_MAX", 5)
    checked = Rights([Grant(QUEUE, ">", frozenset({"*"}))])
    for n in range(20):
        checked.check(ANYBODY, READ, Destination(QUEUE, str(n)))
        assert len(checked._remembered) <= 5
