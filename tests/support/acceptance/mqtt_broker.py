"""A real broker for clients of MQTT."""

from __future__ import annotations

from pathlib import Path

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess


class MqttBroker(BrokerProcess):
    """``mqtt`` is the port, which stays the same over restarts."""

    def __init__(self, data: Path, name: str, *options: str) -> None:
        super().__init__(data, name, *options)
        self.mqtt: int = free_port()
