"""A session that keeps its state in a queue of the broker learns at its beginning whether there is some, and more."""

from __future__ import annotations

from tandemmq.broker.core.commands import Connect, Send
from tandemmq.broker.core.names import MQTT_SESSION
from tandemmq.broker.core.principal import Principal
from tandemmq.store.records.message import Destination, DestinationKind

STATE = Destination(DestinationKind.QUEUE, f"{MQTT_SESSION}me")
PRICES = Destination(DestinationKind.TOPIC, "prices")


def connected(harness) -> Connect:
    client = harness.client()
    command = Connect("me", login="anna", state=STATE, steals_client_id=True)
    client.handle(command).turn()
    assert client.is_connected
    return command


def test_it_learns_who_its_client_is_and_what_he_may_read(harness):
    command = connected(harness)
    assert command.principal == Principal("anna", is_proved=False)
    assert command.may_read(PRICES)


def test_it_learns_whether_there_is_state_of_it(harness):
    first = harness.client()
    command = Connect("me", state=STATE)
    first.handle(command)
    assert not command.has_state
    first.handle(Send(first.message("kept", STATE))).turn()
    first.vanish()
    assert connected(harness).has_state

    harness.fail_over()

    assert connected(harness).has_state
