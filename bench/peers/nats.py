"""NATS with JetStream, which syncs each message (``sync_interval: always``)."""

from __future__ import annotations

from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.programs import nats_server
from tandemmq.bench.peers.server import HOST, Connected


class Nats(Connected):
    """A server; ``stomp`` loads use its own client and streams."""

    name = "nats"

    def __init__(self) -> None:
        super().__init__()
        self.ports = {"nats": self.port, "mqtt": free_port()}

    def start(self) -> None:
        configuration = self.directory / "nats.conf"
        configuration.write_text(
            f'server_name: bench\nlisten: "{HOST}:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.directory / "store"}", sync_interval: always }}\n'
            f'mqtt {{ listen: "{HOST}:{self.ports["mqtt"]}", max_ack_pending: 1000 }}\n'
        )
        self.spawn([str(nats_server()), "-c", str(configuration)])
