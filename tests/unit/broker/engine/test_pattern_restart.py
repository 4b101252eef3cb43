"""A durable subscription of a pattern that has met no topic stands in the journal: the next term gathers for it."""

from __future__ import annotations

import shutil

import pytest

from tandemmq.broker.core.names import MQTT_SHARES, PATTERNS
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.broker.engine_term import EngineTerm
from tests.unit.broker.engine.conftest import come

PATTERN, TOPIC = Destination(DestinationKind.TOPIC, "S.>"), Destination(DestinationKind.TOPIC, "S.A")


@pytest.mark.parametrize("share", [None, "g"])
@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("is_crash", [True, False])
def test_the_next_term_gathers_for_it(directory: str, is_crash: bool, has_index: bool, share: str | None) -> None:
    term = EngineTerm(directory)
    client = come(term, "me")
    client.subscribe("s", PATTERN, durable_name="d", share=share, receipt="r")
    term.wait(lambda: client.receipts == ["r"])
    for _ in range(2):
        term.crash() if is_crash else term.close()
        if not has_index:
            shutil.rmtree(f"{directory}/index")
        term = EngineTerm(directory)
    term.engine.tick(1_000)
    sender = come(term, "sender")
    sender.send("a", TOPIC, receipt="sent")
    term.wait(lambda: sender.receipts == ["sent"])
    again = come(term, "me")
    again.subscribe("s", PATTERN, durable_name="d", share=share, receipt="r")
    term.wait(lambda: again.bodies == ["a"])
    again.unsubscribe("s", durable_name="d", receipt="left")
    term.wait(lambda: again.receipts == ["r", "left"])
    term.close()
    last = EngineTerm(directory)
    assert list(last.owners) == []
    last.close()


def test_its_record_comes_behind_that_of_who_holds_a_share(directory: str) -> None:
    """What a crash leaves between them is a holder of nothing, and nothing that nobody holds."""
    term = EngineTerm(directory)
    client = come(term, "me")
    client.subscribe("s", PATTERN, durable_name="d", share="g", receipt="r")
    term.wait(lambda: client.receipts == ["r"])
    term.close()
    last = EngineTerm(directory)
    found = {(each.client_id, each.destination): each.pattern for each in last.owners}
    assert found == {("me", MQTT_SHARES): "g/S.>", (CLIENT_ID, PATTERNS): "S.>"}
    last.close()
