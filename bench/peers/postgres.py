"""PostgreSQL as Debian packages it, for locks in a database: one cluster in its own directory, on a loopback port.

It syncs its commits, as in production: writing a lease costs the same here.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.server import HOST, PeerMissing, Server

USER = "bench"
ANSWER_SECONDS_MAX = 60.0


class Postgres(Server):
    """A server."""

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": it closes all connections

    @property
    def url(self) -> str:
        """Value for ``locker.data_source``."""
        return f"postgresql+psycopg://{USER}@{HOST}:{self.port}/postgres"

    def start(self) -> None:
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not programs:
            raise PeerMissing("PostgreSQL is not installed (/usr/lib/postgresql/*/bin/postgres)")
        user = None if os.geteuid() else pwd.getpwnam("postgres").pw_name  # it refuses to run as root
        if user is not None:
            shutil.chown(self.directory, user)
        data = str(self.directory / "data")
        made = subprocess.run(
            [str(programs[-1].parent / "initdb"), "-D", data, "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C"],
            user=user,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise BenchError(f"initdb: {made.stderr.strip()}")
        settings = (f"port={self.port}", f"listen_addresses={HOST}", "unix_socket_directories=")
        options = [word for each in settings for word in ("-c", each)]
        self.spawn([str(programs[-1]), "-D", data, *options], user=user)

    def ask(self) -> None:
        if "ready to accept connections" not in self.output():
            raise BenchError("it is not ready")
        socket.create_connection((HOST, self.port), ANSWER_SECONDS_MAX).close()
