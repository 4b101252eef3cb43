"""A real broker that listens for WebSockets, too."""

from __future__ import annotations

from pathlib import Path

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess


class WebSocketBroker(BrokerProcess):
    """Its port for WebSockets stays the same over restarts."""

    def __init__(self, data: Path, name: str, *options: str) -> None:
        self.websocket = free_port()
        super().__init__(data, name, "--ws", f"127.0.0.1:{self.websocket}", *options)

    @property
    def websocket_url(self) -> str:
        return f"ws://127.0.0.1:{self.websocket}"
