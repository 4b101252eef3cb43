"""Debian's mosquitto, with persistence, on a free port."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from pathlib import Path

from tests.support.services.server_process import ServerProcess, user_for

PROGRAM = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


class Mosquitto(ServerProcess):
    """A mosquitto that writes its file after each change, so that it keeps its state after a kill as far as
    possible."""

    def __init__(self, certificate: Path | None = None, password: tuple[str, str] | None = None) -> None:
        """``certificate``: file with certificate and key, for TLS; ``password``: that of the only user."""
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
