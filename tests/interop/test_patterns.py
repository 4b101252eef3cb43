"""A durable subscription of a pattern that no topic matched goes from us to the real ActiveMQ and back, and gathers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.core.commands import Connect
from tandemmq.broker.core.names import PATTERNS
from tandemmq.store.migration.handback import hand_back
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.tools.check import check
from tests.support.broker.engine_term import EngineTerm
from tests.support.interop.scripted import Script, compiled
from tests.unit.broker.engine.conftest import Client

pytestmark = [pytest.mark.service, pytest.mark.promise("composite-and-wildcards")]

PATTERN, TOPIC = Destination(DestinationKind.TOPIC, "S.>"), Destination(DestinationKind.TOPIC, "S.A")


@pytest.fixture(scope="module")
def script(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Script:
    return compiled(require_service, tmp_path_factory.mktemp("classes"))


numbers = count(1)


def join(term: EngineTerm) -> Any:
    client: Any = Client(term, f"ID:test-1-{next(numbers)}")  # type: ignore[arg-type]
    client.handle(Connect("me"))
    client.subscribe("s", PATTERN, durable_name="d", receipt="r")
    term.wait(lambda: client.receipts == ["r"])
    return client


def test_activemq_gathers_for_it(script: Script, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    term = EngineTerm(str(directory))
    join(term).vanish()
    term.close()
    hand_back(str(directory), str(tmp_path / "scratch"))

    opened = {"do": "open", "directory": str(directory)}
    script(opened, {"do": "send", "to": "topic://S.A"}, {"do": "stop"})

    again = EngineTerm(str(directory), "b")
    found = {(each.client_id, each.destination): each.count for each in again.owners if each.client_id is not None}
    assert found == {("me", TOPIC): 1, ("me", PATTERNS): 0}
    client = join(again)
    again.wait(lambda: len(client.bodies) == 1)
    client.unsubscribe("s", durable_name="d", receipt="left")
    again.wait(lambda: client.receipts == ["r", "left"])
    again.close()
    assert check(str(directory)).problems == []
