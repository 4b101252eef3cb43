"""Who holds a shared subscription stands in the journal: a crash, or the loss of the index, changes nothing of it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tandemmq.broker.core.names import MQTT_SHARES
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.store.operations import RemoveOwner
from tests.support.broker.engine_term import EngineTerm
from tests.unit.broker.engine.conftest import PRICES, come


def join(term: EngineTerm, client_id: str) -> Any:
    client = come(term, client_id)
    client.subscribe("s", PRICES, share="g", durable_name="d", receipt="joined")
    term.wait(lambda: client.receipts == ["joined"])
    return client


def begun(directory: str) -> EngineTerm:
    """Two hold it and are away, and one message waits."""
    term = EngineTerm(directory)
    for client_id in ("one", "two"):
        join(term, client_id).vanish()
    sender = come(term, "sender")
    sender.send("a", PRICES, receipt="sent")
    term.wait(lambda: sender.receipts == ["sent"])
    return term


def records(term: EngineTerm) -> list[tuple[str | None, str, int]]:
    return sorted((each.client_id, each.destination.name, each.count) for each in term.owners)


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("is_crash", [True, False])
def test_who_held_it_holds_it_in_the_next_term(directory: str, is_crash: bool, has_index: bool) -> None:
    term = begun(directory)
    for leaver, others in (("one", ["two"]), ("two", [])):
        term.crash() if is_crash else term.close()
        if not has_index:
            shutil.rmtree(f"{directory}/index")
        term = EngineTerm(directory)
        holders = [(name, MQTT_SHARES.name, 0) for name in sorted([leaver, *others])]
        assert records(term) == [(CLIENT_ID, "prices", 1), *holders]
        term.engine.tick(1_000)
        client = come(term, leaver)
        client.unsubscribe(None, durable_name="d", receipt="left")
        term.wait(lambda client=client: client.receipts == ["left"])  # type: ignore[misc]
    term.wait(lambda: sum(isinstance(each, RemoveOwner) for each in term.durable_operations) == 2)
    term.close()
    again = EngineTerm(directory)
    assert records(again) == []
    again.close()


def test_what_a_crash_left_of_one_that_nobody_holds_is_cleared_away(directory: str) -> None:
    term = EngineTerm(directory)
    client = come(term, "one")
    client.subscribe("s", PRICES, share="g", receipt="joined")
    term.wait(lambda: client.receipts == ["joined"])
    term.crash()
    term = EngineTerm(directory)
    term.engine.tick(1_000)
    term.wait(lambda: any(isinstance(each, RemoveOwner) for each in term.durable_operations))
    term.close()
    again = EngineTerm(directory)
    assert records(again) == []
    again.close()


def test_a_message_goes_to_who_joins_in_the_next_term(directory: str) -> None:
    begun(directory).crash()
    term = EngineTerm(directory)
    client = join(term, "three")
    term.wait(lambda: client.bodies == ["a"])
    client.ack("a", receipt="acknowledged")
    term.wait(lambda: client.receipts[-1] == "acknowledged")
    term.crash()
    again = EngineTerm(directory)
    assert records(again)[0] == (CLIENT_ID, "prices", 0)
    again.close()
