"""The clients by protocol."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.ledger.client import Client
from tests.support.ledger.jms_client import JmsClient
from tests.support.ledger.mqtt_client import MqttClient
from tests.support.ledger.stomp_client import StompClient


def client_of(protocol: str, rest: Sequence[str]) -> Client:
    """Return a client. ``rest``: the port; for JMS preceded by the directory of its classes, for MQTT by the port of
    STOMP."""
    if protocol == "jms":
        return JmsClient(rest[0], int(rest[1]))
    if protocol == "mqtt":
        return MqttClient(int(rest[0]), int(rest[1]))
    assert protocol == "stomp", protocol
    return StompClient(int(rest[0]))
