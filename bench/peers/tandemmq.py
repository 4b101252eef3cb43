"""Our own broker, started as an operator starts it: ``tandemmq run``, default settings."""

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.ports import free_port
from bench.peers.server import HOST, Server

TREE = Path(__file__).resolve().parents[2]


class TandemMQ(Server):
    """One broker; two over one ``data`` directory are a pair."""

    name = "tandemmq"

    def __init__(
        self,
        directory: Path | None = None,
        data: Path | None = None,
        broker: str = "bench",
        settings: Sequence[str] = (),
    ) -> None:
        super().__init__(directory)
        self._data = data or self.directory / "data"
        self._broker = broker
        self._settings = [word for setting in settings for word in ("--set", setting)]
        self._admin_port = free_port()
        self.admin_url = f"http://{HOST}:{self._admin_port}"

    def start(self) -> None:
        self.spawn(
            [
                sys.executable,
                "-m",
                "tandemmq",
                "run",
                "--data",
                str(self._data),
                "--name",
                self._broker,
                "--openwire",
                "off",
                "--stomp",
                f"{HOST}:{self.port}",
                "--admin",
                f"{HOST}:{self._admin_port}",
                *self._settings,
            ],
            {"PYTHONPATH": str(TREE)},
        )
