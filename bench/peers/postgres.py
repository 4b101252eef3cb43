"""PostgreSQL as Debian packages it, for locks in a database: one cluster in a directory of its own, on a loopback port.

It syncs what it commits, as an operator's does: a lease that is written costs what it costs there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.peers.ports import free_port
from bench.peers.server import HOST, PeerMissing
from broker.bench.connection import BenchError

USER = "bench"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0


class Postgres:
    """Use as a context manager: entering starts it, leaving ends it and removes what it wrote."""

    def __init__(self) -> None:
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not programs:
            raise PeerMissing("PostgreSQL is not installed (/usr/lib/postgresql/*/bin/postgres)")
        self._bin = programs[-1].parent
        self._port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="bench-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        # It refuses to be root.
        self._user = None if os.geteuid() else pwd.getpwnam("postgres").pw_name

    @property
    def url(self) -> str:
        """For ``locker.data_source``."""
        return f"postgresql+psycopg://{USER}@{HOST}:{self._port}/postgres"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        data = self._directory / "data"
        made = subprocess.run(
            [str(self._bin / "initdb"), "-D", str(data), "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C"],
            user=self._user,
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise BenchError(f"initdb: {made.stderr.strip()}")
        settings = (f"port={self._port}", f"listen_addresses={HOST}", "unix_socket_directories=")
        with (self._directory / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(data), *(word for each in settings for word in ("-c", each))],
                user=self._user,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS_MAX
        while "ready to accept connections" not in (self._directory / "output.log").read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > until:
                raise BenchError(f"PostgreSQL does not start: {(self._directory / 'output.log').read_text()[-1000:]}")
            time.sleep(0.05)
        socket.create_connection((HOST, self._port), START_SECONDS_MAX).close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # "fast": whoever is connected is hung up on
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS_MAX)
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
