"""A durable subscription of a pattern goes from us to the real ActiveMQ and back: each topic's messages, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.store.migration.handback import hand_back
from tandemmq.store.operations import AddSubscription
from tandemmq.store.records.commands import encode_subscription
from tandemmq.store.records.hints import with_user_hint
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.tools.check import check
from tests.support.interop.scripted import Script, compiled
from tests.support.store.store_harness import Term

pytestmark = pytest.mark.service

PATTERN = Destination(DestinationKind.TOPIC, "W.>")
TOPICS = [Destination(DestinationKind.TOPIC, f"W.{name}") for name in "AB"]


@pytest.fixture(scope="module")
def script(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Script:
    return compiled(require_service, tmp_path_factory.mktemp("classes"))


def test_activemq_serves_a_subscription_of_a_pattern_that_we_wrote(script: Script, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    term = Term(str(directory))
    held = {}
    for topic in TOPICS:
        owner = term.store.subscription("c", "wild", topic)
        payload = encode_subscription(topic, "c", "wild", "JMSPriority < 9", subscribed=PATTERN)
        term.store.append(AddSubscription(owner, with_user_hint(payload, "ann")))  # which ActiveMQ steps over
        added = [term.add(topic, owners=(owner,)) for _ in range(4)]
        held[f"{topic.name} for c:wild"] = [operation.message.message_id for operation in added]
    term.wait_durable(10)
    term.close()
    hand_back(str(directory), str(tmp_path / "scratch"))

    opened = {"do": "open", "directory": str(directory)}
    wild = {"topic": "W.>", "client": "c", "name": "wild", "selector": "JMSPriority < 9"}
    before = script(opened, {"do": "dump"}, {"do": "stop"})
    after = script(
        opened,
        {"do": "take", **wild, "count": 6},
        {"do": "send", "to": "topic://W.C"},
        {"do": "dump"},
        {"do": "stop"},
    )

    assert before.held == held
    assert sum(map(len, after.held.values())) == 3
    assert len(after.held["W.C for c:wild"]) == 1
    again = Term(str(directory), "b")
    assert {f"{o.destination.name} for c:wild": o.count for o in again.owners} == {
        name: len(ids) for name, ids in after.held.items()
    }
    assert {(o.selector, o.pattern) for o in again.owners} == {("JMSPriority < 9", "W.>")}
    # ActiveMQ wrote the record of the topic that it met, and nobody's name.
    assert {o.destination.name: o.user for o in again.owners} == {"W.A": "ann", "W.B": "ann", "W.C": None}
    again.close()
    assert check(str(directory)).is_clean
