"""Transitions between the states of a client, and former faults: clients that ended twice, or never."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tandemmq.broker.core import slices
from tandemmq.broker.core.client import TRANSITIONS, Event, State
from tandemmq.broker.core.client import Client as EngineClient
from tandemmq.broker.core.commands import AckMode, Connect, Disconnect, ErrorKind, ProtocolFailure, refusal
from tandemmq.broker.core.policies import AbortSlow, DestinationPolicy
from tandemmq.broker.engine import flow_control
from tandemmq.store.records.message import Destination, DestinationKind
from tests.unit.broker.engine.conftest import Client, Harness

MANY = 20
EVERY_QUEUE = Destination(DestinationKind.QUEUE, "many.>")


def reached_from(state: State) -> set[State]:
    reached = {state}
    while more := {after for (before, _), after in TRANSITIONS.items() if before in reached} - reached:
        reached |= more
    return reached


def test_each_state_is_reached_and_leads_to_the_end() -> None:
    assert reached_from(State.READY) == set(State)
    assert all(State.GONE in reached_from(state) for state in State)
    assert reached_from(State.GONE) == {State.GONE}


def test_a_connection_may_close_in_each_state() -> None:
    assert all((state, Event.CLOSE) in TRANSITIONS for state in State)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)), ids=lambda each: each.name)
def test_an_event_moves_a_client_or_breaks_a_rule(harness: Harness, state: State, event: Event) -> None:
    client: EngineClient = harness.client().client
    client.state = state
    after = TRANSITIONS.get((state, event))
    if after is None:
        with pytest.raises(AssertionError, match=event.value):
            client.move(event)
        return
    assert client.move(event) is client.state is after
    assert client.is_ready is (after is State.READY)
    assert client.is_open is (after in (State.READY, State.ASKING, State.WORKING))
    assert client.is_there is (client.is_open or after in (State.DISCONNECTING, State.DISCONNECTED))


def test_a_frame_that_is_too_long_leaves_a_line_in_the_log(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    client = harness.client()
    for _ in range(2):
        client.handle(ProtocolFailure(refusal("5 bytes are too long", "", ErrorKind.RESOURCE)))
    assert caplog.text.count("was refused: 5 bytes are too long") == 1, "one line a minute"
    assert client.client.is_ready


# ---- clients that ended twice, or never


@pytest.fixture
def backlog(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Each queue of EVERY_QUEUE holds a message, and a step is short."""
    monkeypatch.setattr(slices, "ITEMS", 4)
    sender = harness.client()
    for number in range(MANY):
        sender.send(str(number), Destination(DestinationKind.QUEUE, f"many.{number}"))
    harness.turn()
    sender.vanish()
    return harness


def kept(harness: Harness) -> Client:
    """Return a client that can connect again on its connection after a disconnect (OpenWire)."""
    client = Client(harness, harness.connection_id())
    client.session.survives_errors = True
    return client


def is_forgotten(harness: Harness) -> bool:
    clients, login = harness.engine._clients, harness.engine._login
    tables: list[Any] = [clients.all, clients.leavers, login._client_ids, login._connection_ids]
    return not any(tables) and harness.counts["clients"] == 0


def test_a_disconnect_right_behind_a_subscription_to_a_backlog(backlog: Harness) -> None:
    client = backlog.consumer(destination=EVERY_QUEUE, receipt="r", client_id="me").disconnect("bye").turn()
    assert client.receipts == ["r", "bye"]
    assert client.is_closed
    assert is_forgotten(backlog)


def test_a_second_connection_with_the_client_id_of_one_that_leaves(backlog: Harness) -> None:
    """The new connection waits for the end of the first one, and its own end removes only its own entry."""
    first = backlog.consumer(destination=EVERY_QUEUE, client_id="me").disconnect("bye")
    while first.client.state is not State.DISCONNECTING:
        backlog.turn(1)
    second, third = (Client(backlog, backlog.connection_id()) for _ in range(2))
    for each in (second, third):
        each.handle(Connect("me", steals_client_id=True))
    backlog.turn()
    assert first.receipts == ["bye"]
    assert [each.is_connected for each in (second, third)] == [True, True]
    assert (second.is_closed, third.is_closed, len(second.errors)) == (True, False, 1)
    third.vanish()
    assert is_forgotten(backlog)


def test_no_receipt_is_told_to_a_socket_that_closed(harness: Harness) -> None:
    client = kept(harness).connect("me")
    client.handle(Disconnect("bye", is_awaited=True))
    harness.make_steps()  # only the answer of the store is missing
    client.vanish().turn()
    assert client.receipts == []
    assert is_forgotten(harness)


@pytest.mark.contains_errors
def test_callbacks_for_the_end_of_a_client_are_called_although_another_fails(backlog: Harness) -> None:
    first = backlog.consumer(destination=EVERY_QUEUE, client_id="me").turn()
    first.is_closed = True
    backlog.engine.closed(first)
    second = Client(backlog, backlog.connection_id())
    backlog.engine._clients.leavers[first.client].insert(0, lambda: 1 / 0)
    second.handle(Connect("me")).turn()
    assert second.is_connected


# ---- clients that wait for room


@pytest.fixture
def narrow(make_harness: Any) -> Harness:
    """``orders`` has room for one message, and holds one."""
    harness: Harness = make_harness(DestinationPolicy(memory_limit=1_000))
    harness.client().send("x" * 500, persistent=False)
    return harness


@pytest.fixture
def leaving(narrow: Harness) -> Client:
    """Return a client whose disconnect waits for room, after a message that it sent."""
    client = kept(narrow).handle(Connect("me", connection_id="ID:own")).send("y" * 500, persistent=False)
    return client.handle(Disconnect("bye", is_awaited=True))


def test_a_client_can_reconnect_after_a_disconnect_that_waits_for_room(narrow: Harness, leaving: Client) -> None:
    assert leaving.is_reading, "its end is noticed"
    leaving.handle(Connect("me", connection_id="ID:own"))
    assert not leaving.is_reading
    assert leaving.receipts == []
    reader = narrow.consumer(ack=AckMode.AUTO)
    narrow.wait(1)
    assert (reader.bodies, leaving.receipts, leaving.client.id) == (["x" * 500, "y" * 500], ["bye"], "me")
    assert leaving.is_reading


def test_the_end_of_a_client_that_hangs_up_behind_its_disconnect_is_noticed(narrow: Harness, leaving: Client) -> None:
    """A JMS client sends RemoveInfo. If no answer comes in time, it sends ShutdownInfo, and closes its socket."""
    assert leaving.handle(Disconnect()).is_reading
    leaving.vanish()
    assert kept(narrow).handle(Connect("me", connection_id="ID:own")).is_connected


def test_a_disconnect_that_waits_for_room_is_no_missing_login(leaving: Client) -> None:
    """Otherwise the next check of the time limit for logins would close the connection."""
    assert (leaving.logins_awaited, leaving.receipts) == (1, [])


def test_a_client_is_not_read_while_too_much_waits_for_room(narrow: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client stays unread even if another condition that it waited for is met."""
    monkeypatch.setattr(flow_control, "SENDS_MAX", 2)
    client = narrow.client()
    for _ in range(2):
        client.send("y" * 500, persistent=False)
    assert not client.is_reading
    answers: list[Any] = []
    narrow.engine._clients.when_known(client.client, answers.append, lambda _: None)
    answers[0](None)
    assert not client.is_reading
    narrow.client().subscribe(ack=AckMode.AUTO)
    narrow.wait(1)
    assert client.is_reading


# ---- clients that wait for an answer


def test_a_slow_consumer_is_not_cut_off_while_its_client_waits(make_harness: Any) -> None:
    """Commands that the client sends during the wait are not lost."""
    harness = make_harness(DestinationPolicy(abort_slow=AbortSlow(max_slow_duration=1_000)))
    client, sender = harness.client(), harness.client()
    client.subscribe(prefetch=1)
    for body in "ab":
        sender.send(body, persistent=False)
    answers: list[Any] = []
    harness.engine._clients.when_known(client.client, answers.append, lambda _: None)
    client.send("behind", Destination(DestinationKind.QUEUE, "other"), receipt="behind", persistent=False)
    harness.wait(90)
    assert harness.counts["slow_consumers_aborted_total"] == 0
    answers[0](None)
    assert client.receipts == ["behind"]
    harness.wait(90)
    assert harness.counts["slow_consumers_aborted_total"] == 1
