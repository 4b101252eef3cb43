"""Durable subscriptions that are shared, or whose pattern has met no topic, stand in the journal: a crash, or the loss
of the index, changes nothing of them."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tandemmq.broker.core.names import MQTT_SHARES, PATTERNS
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tandemmq.store.operations import RemoveOwner
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.broker.engine_term import EngineTerm
from tests.unit.broker.engine.conftest import PRICES, come

PATTERN, TOPIC = Destination(DestinationKind.TOPIC, "S.>"), Destination(DestinationKind.TOPIC, "S.A")

either_end = pytest.mark.parametrize("is_crash", [True, False])
either_start = pytest.mark.parametrize("has_index", [True, False])


def join(term: EngineTerm, client_id: str, destination: Destination = PRICES, **options: Any) -> Any:
    client = come(term, client_id)
    client.subscribe("s", destination, **{"share": "g", "durable_name": "d", **options}, receipt="joined")
    term.wait(lambda: client.receipts == ["joined"])
    return client


def send(term: EngineTerm, destination: Destination) -> None:
    sender = come(term, "sender").send("a", destination, receipt="sent")
    term.wait(lambda: sender.receipts == ["sent"])


def begun(directory: str) -> EngineTerm:
    """Two hold it and are away, and one message waits."""
    term = EngineTerm(directory)
    for client_id in ("one", "two"):
        join(term, client_id).vanish()
    send(term, PRICES)
    return term


def following(term: EngineTerm, directory: str, *, is_crash: bool, has_index: bool = True) -> EngineTerm:
    term.crash() if is_crash else term.close()
    if not has_index:
        shutil.rmtree(f"{directory}/index")
    return EngineTerm(directory)


def records(term: EngineTerm) -> list[tuple[str | None, str, int]]:
    return sorted((each.client_id, each.destination.name, each.count) for each in term.owners)


def left_by(term: EngineTerm, directory: str, *, is_crash: bool = False) -> list[tuple[str | None, str, int]]:
    """Return the state that the next term finds."""
    last = following(term, directory, is_crash=is_crash)
    last.close()
    return records(last)


@either_start
@either_end
def test_a_membership_is_kept_in_the_next_term(directory: str, is_crash: bool, has_index: bool) -> None:
    term = begun(directory)
    for leaver, others in (("one", ["two"]), ("two", [])):
        term = following(term, directory, is_crash=is_crash, has_index=has_index)
        holders = [(name, MQTT_SHARES.name, 0) for name in sorted([leaver, *others])]
        assert records(term) == [(CLIENT_ID, "prices", 1), *holders]
        term.engine.tick(1_000)
        client = come(term, leaver).unsubscribe(None, durable_name="d", receipt="left")
        term.wait(lambda client=client: client.receipts == ["left"])  # type: ignore[misc]
    term.wait(lambda: sum(isinstance(each, RemoveOwner) for each in term.durable_operations) == 2)
    assert left_by(term, directory) == []


def test_a_group_without_members_is_removed_after_a_crash(directory: str) -> None:
    term = EngineTerm(directory)
    join(term, "one", durable_name=None)
    term = following(term, directory, is_crash=True)
    term.engine.tick(1_000)
    term.wait(lambda: any(isinstance(each, RemoveOwner) for each in term.durable_operations))
    assert left_by(term, directory) == []


def test_a_message_goes_to_who_joins_in_the_next_term(directory: str) -> None:
    term = following(begun(directory), directory, is_crash=True)
    client = join(term, "three")
    term.wait(lambda: client.bodies == ["a"])
    client.ack("a", receipt="acknowledged")
    term.wait(lambda: client.receipts[-1] == "acknowledged")
    assert left_by(term, directory, is_crash=True)[0] == (CLIENT_ID, "prices", 0)


@pytest.mark.parametrize("share", [None, "g"])
@either_start
@either_end
def test_the_next_term_gathers_for_patterns(directory: str, is_crash: bool, has_index: bool, share: str | None) -> None:
    term = EngineTerm(directory)
    join(term, "me", PATTERN, share=share)
    for _ in range(2):
        term = following(term, directory, is_crash=is_crash, has_index=has_index)
    found = {(each.client_id, each.destination): each.pattern for each in term.owners}
    assert found == (
        {("me", MQTT_SHARES): "g/S.>", (CLIENT_ID, PATTERNS): "S.>"} if share else {("me", PATTERNS): "S.>"}
    )
    term.engine.tick(1_000)
    send(term, TOPIC)
    again = join(term, "me", PATTERN, share=share)
    term.wait(lambda: again.bodies == ["a"])
    again.unsubscribe("s", durable_name="d", receipt="left")
    term.wait(lambda: again.receipts == ["joined", "left"])
    assert left_by(term, directory) == []
