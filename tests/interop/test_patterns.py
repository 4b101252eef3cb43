"""Durable subscriptions that ActiveMQ does not know as ours do go from us to it and back, and gather meanwhile."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.core.commands import Connect
from tandemmq.broker.core.names import MQTT_SHARES, PATTERNS
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.store.migration.handback import hand_back
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.tools.check import check
from tests.support.broker.engine_term import EngineTerm
from tests.support.interop.scripted import Script
from tests.unit.broker.engine.conftest import Client

pytestmark = [pytest.mark.service, pytest.mark.promise("composite-and-wildcards")]

PATTERN, TOPIC = Destination(DestinationKind.TOPIC, "S.>"), Destination(DestinationKind.TOPIC, "S.A")
SHARED = f"AT_LEAST_ONCE:$share/g/{PATTERN.name}"

numbers = count(1)


def come(term: EngineTerm, client_id: str) -> Any:
    client: Any = Client(term, f"ID:test-1-{next(numbers)}")  # type: ignore[arg-type]
    client.handle(Connect(client_id))
    return client


def join(term: EngineTerm, client_id: str, name: str, **options: Any) -> Any:
    """A client with a durable subscription of the pattern, which is stored."""
    client = come(term, client_id)
    client.subscribe("s", PATTERN, durable_name=name, receipt="r", **options)
    term.wait(lambda: client.receipts == ["r"])
    return client


def leave(term: EngineTerm, client: Any, name: str, subscription: str | None) -> None:
    """Unsubscribe, which is stored."""
    client.unsubscribe(subscription, durable_name=name, receipt="left")
    term.wait(lambda: "left" in client.receipts)


def counts(term: EngineTerm) -> dict[tuple[str, Destination], int]:
    return {(each.client_id, each.destination): each.count for each in term.owners if each.client_id is not None}


def test_activemq_gathers_for_a_pattern_that_no_topic_matched(script: Script, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    term = EngineTerm(str(directory))
    join(term, "me", "d").vanish()
    term.close()
    hand_back(str(directory), str(tmp_path / "scratch"))
    script({"do": "open", "directory": str(directory)}, {"do": "send", "to": "topic://S.A"}, {"do": "stop"})

    again = EngineTerm(str(directory), "b")
    assert counts(again) == {("me", TOPIC): 1, ("me", PATTERNS): 0}
    client = join(again, "me", "d")
    again.wait(lambda: len(client.bodies) == 1)
    leave(again, client, "d", "s")
    again.close()
    assert check(str(directory)).problems == []


def test_activemq_keeps_what_is_shared_and_who_shares_it(script: Script, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    term = EngineTerm(str(directory))
    for client_id in ("one", "two"):
        join(term, client_id, SHARED, share="g").vanish()
    sender = come(term, "sender")
    for body in "ab":
        sender.send(body, TOPIC, receipt=body)
    term.wait(lambda: sender.receipts == ["a", "b"])
    term.close()
    hand_back(str(directory), str(tmp_path / "scratch"))

    opened = {"do": "open", "directory": str(directory)}
    before = script(opened, {"do": "dump"}, {"do": "stop"})
    after = script(opened, {"do": "send", "to": "topic://S.A"}, {"do": "dump"}, {"do": "stop"})

    share = f"S.A for {CLIENT_ID}:g/S.>"
    assert {name: len(ids) for name, ids in before.held.items() if ids} == {share: 2}
    assert len(after.held[share]) == 3
    again = EngineTerm(str(directory), "b")
    held = {("one", MQTT_SHARES): 0, ("two", MQTT_SHARES): 0}
    assert counts(again) == {(CLIENT_ID, TOPIC): 3, (CLIENT_ID, PATTERNS): 0} | held
    client = come(again, "three")
    client.subscribe("s", PATTERN, share="g")
    again.wait(lambda: len(client.bodies) == 3)
    assert client.bodies[:2] == ["a", "b"]
    for client_id in ("one", "two"):
        leave(again, come(again, client_id), SHARED, None)
    again.close()
    assert check(str(directory)).problems == []
