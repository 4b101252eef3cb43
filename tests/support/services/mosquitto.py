"""Debian's mosquitto, with persistence, on a port of its own."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from pathlib import Path

from tests.support.services.server_process import ServerProcess, user_for

PROGRAM = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


class Mosquitto(ServerProcess):
    """It keeps what it promised over a kill, as far as it can: its file is written whenever something changed."""

    def __init__(self, certificate: Path | None = None, password: tuple[str, str] | None = None) -> None:
        """``certificate``: with its key behind it, for TLS; ``password``: of one user, and nobody else may come."""
        self.user = user_for("mosquitto")
        super().__init__()
        settings = self.directory / "mosquitto.conf"
        more = ""
        if certificate is not None:
            file = self.directory / "certificate.pem"
            file.write_bytes(certificate.read_bytes())
            file.chmod(0o644)
            more += f"certfile {file}\nkeyfile {file}\n"
        if password is not None:
            file = self.directory / "passwords"
            subprocess.run(["mosquitto_passwd", "-b", "-c", str(file), *password], check=True, capture_output=True)
            file.chmod(0o644)
            more += f"password_file {file}\n"
        settings.write_text(
            f"listener {self.port} 127.0.0.1\n{more}allow_anonymous {str(password is None).lower()}\npersistence true\n"
            f"persistence_location {self.directory}/\nautosave_interval 1\nautosave_on_changes true\n"
            "max_queued_messages 0\nmax_inflight_messages 100\n"
        )
        settings.chmod(0o644)

    def command(self) -> list[str]:
        assert PROGRAM is not None, "asked before"
        return [PROGRAM, "-c", str(self.directory / "mosquitto.conf")]

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False
