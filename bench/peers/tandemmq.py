"""TandemMQ, started as an operator starts it: ``tandemmq run``, default settings."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import HOST, Connected, Server

TREE = Path(__file__).resolve().parents[2]


class TandemMQ(Server):
    """A broker, of this tree and with this Python or others; two over one ``data`` directory are a pair.

    ``tree``: None for the package that ``python`` has installed."""

    name = "tandemmq"

    def __init__(
        self,
        directory: Path | None = None,
        data: Path | None = None,
        broker: str = "bench",
        settings: Sequence[str] = (),
        tree: Path | None = TREE,
        python: str = sys.executable,
    ) -> None:
        super().__init__(directory)
        self._data = data or self.directory / "data"
        self._broker = broker
        self._tree = tree
        self._python = python
        self._settings = [word for setting in settings for word in ("--set", setting)]
        self._admin = f"{HOST}:{free_port()}"
        self.admin_url = f"http://{self._admin}"
        self.stomp_port = self.port
        self.openwire = "off"
        self.environment: Mapping[str, str] = {}  # in addition to its own

    def listen_to_mqtt(self) -> int:
        """Add an MQTT listener and return its port. Call it before ``start``."""
        port = free_port()
        self._settings += ["--mqtt", f"{HOST}:{port}"]
        return port

    def start(self) -> None:
        options = {
            "--data": str(self._data),
            "--name": self._broker,
            "--openwire": self.openwire,
            "--stomp": f"{HOST}:{self.stomp_port}",
            "--admin": self._admin,
        }
        command = [self._python, "-m", "tandemmq", "run", *(word for each in options.items() for word in each)]
        self.spawn([*command, *self._settings], {"PYTHONPATH": str(self._tree or ""), **self.environment})


class Measured(Connected, TandemMQ):
    """A broker that listens for every protocol."""

    def __init__(self, tree: Path | None = TREE, python: str = sys.executable) -> None:
        super().__init__(tree=tree, python=python)
        self.ports = {"stomp": self.port, "jms": free_port(), "mqtt": self.listen_to_mqtt()}
        self.openwire = f"{HOST}:{self.ports['jms']}"
