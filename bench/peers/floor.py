"""Upper bound for a broker on this machine: a program in C that only writes, syncs and answers. It keeps TandemMQ's
promise (stored before it is confirmed or delivered), and accepts the driver's loads without transactions."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tandemmq.bench.peers.server import Connected, PeerMissing
from tandemmq.broker.protocols.openwire.handshake import Greeting

_SOURCES = Path(__file__).parent


class Floor(Connected):
    """Reference program with one thread and one file; compiled when it starts."""

    name = "floor"
    source = "floor.c"
    protocol = "stomp"

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(directory)
        self.ports = {self.protocol: self.port}

    def arguments(self) -> list[str]:
        """Return the program's arguments in addition to port and file."""
        return []

    def start(self) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise PeerMissing("no C compiler (gcc, cc)")
        program = self.directory / "floor"
        subprocess.run([compiler, "-O2", "-o", str(program), str(_SOURCES / self.source)], check=True)
        self.spawn([str(program), str(self.port), str(self.directory / "file"), *self.arguments()])


class JmsFloor(Floor):
    """The same bound for OpenWire without transactions."""

    source = "jms_floor.c"
    protocol = "jms"

    def arguments(self) -> list[str]:
        greeting = self.directory / "greeting"
        greeting.write_bytes(Greeting("floor", "ID:floor", "").wire_format_info)
        return [str(greeting)]
