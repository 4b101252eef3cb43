"""A shared subscription, and who holds it, go from us to the real ActiveMQ and back."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.support.interop.scripted import Script, compiled
from tests.unit.broker.engine.conftest import Client

pytestmark = pytest.mark.service

PATTERN, TOPIC = Destination(DestinationKind.TOPIC, "S.>"), Destination(DestinationKind.TOPIC, "S.A")


@pytest.fixture(scope="module")
def script(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Script:
    return compiled(require_service, tmp_path_factory.mktemp("classes"))


numbers = count(1)


def come(term: EngineTerm, client_id: str) -> Any:
    client: Any = Client(term, f"ID:test-1-{next(numbers)}")  # type: ignore[arg-type]
    client.handle(Connect(client_id))
    return client


def test_activemq_keeps_what_it_holds_and_who_holds_it(script: Script, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    term = EngineTerm(str(directory))
    for client_id in ("one", "two"):
        client = come(term, client_id)
        client.subscribe("s", PATTERN, share="g", durable_name=f"AT_LEAST_ONCE:$share/g/{PATTERN.name}", receipt="r")
        term.wait(lambda client=client: client.receipts == ["r"])  # type: ignore[misc]
        client.vanish()
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
    found = {(each.client_id, each.destination): each.count for each in again.owners if each.client_id is not None}
    held = {("one", MQTT_SHARES): 0, ("two", MQTT_SHARES): 0}
    assert found == {(CLIENT_ID, TOPIC): 3, (CLIENT_ID, PATTERNS): 0} | held
    client = come(again, "three")
    client.subscribe("s", PATTERN, share="g")
    again.wait(lambda: len(client.bodies) == 3)
    assert client.bodies[:2] == ["a", "b"]
    for client_id in ("one", "two"):
        holder = come(again, client_id)
        holder.unsubscribe(None, durable_name=f"AT_LEAST_ONCE:$share/g/{PATTERN.name}", receipt="r")
        again.wait(lambda holder=holder: holder.receipts == ["r"])  # type: ignore[misc]
    again.close()
    assert check(str(directory)).problems == []
