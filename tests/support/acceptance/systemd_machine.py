"""A machine in a container booted by systemd, with the unit file installed as an operator does it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.docker_image import run

UNIT = Path(__file__).parents[3] / "deploy" / "tandemmq.service"
# Not --privileged: it needs capabilities that a virtual machine may not have.
RIGHTS = (
    *("--cap-add", "SYS_ADMIN", "--cap-add", "SYS_NICE", "--cap-add", "SYS_TIME", "--cap-add", "NET_ADMIN"),
    *("--security-opt", "seccomp=unconfined", "--cgroupns=host", "-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw"),
    *("--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp", "-e", "container=docker"),
)
SETTINGS = """
[broker]
name = "{name}"

[[connectors]]
uri = "stomp://0.0.0.0:61613"

[store]
directory = "/var/lib/tandemmq"

[security]
allow_anonymous = "true"  # clients come through Docker, from an address of its own
"""
#: Detects a hung process in seconds; the unit's own setting is a quarter of a minute.
DROP_IN = "[Service]\nWatchdogSec=4\n"


class Machine:
    """A booted machine. The unit is installed with its settings, but not started. ``volume``: the store, which machines
    share."""

    def __init__(self, image: str, name: str, volume: str, port: int, directory: Path) -> None:
        self.name = name
        self.port = port
        self._container = f"tandemmq-test-{os.getpid()}-{name}"
        self._directory = directory
        run(
            *("docker", "run", "-d", "--name", self._container, "--hostname", name, "--user", "0", *RIGHTS),
            *("-v", f"{volume}:/var/lib/tandemmq", "-p", f"127.0.0.1:{port}:61613"),
            *("--entrypoint", "/sbin/init", image),
        )
        booted = ("running", "degraded")
        wait_until(lambda: self._say("systemctl", "is-system-running") in booted, f"{name} has booted")
        run("docker", "cp", str(UNIT), f"{self._container}:/etc/systemd/system/tandemmq.service")
        self.put("/etc/systemd/system/tandemmq.service.d/watchdog.conf", DROP_IN)
        self.put("/etc/tandemmq/tandemmq.toml", SETTINGS.format(name=name))
        self.systemctl("daemon-reload")

    def put(self, path: str, text: str) -> None:
        local = self._directory / f"{self.name}-{os.path.basename(path)}"
        local.write_text(text)
        local.chmod(0o644)
        run("docker", "exec", self._container, "mkdir", "-p", os.path.dirname(path))
        run("docker", "cp", str(local), f"{self._container}:{path}")

    def _say(self, *command: str) -> str:
        """Return the output of a command in the machine, for any exit code."""
        result = subprocess.run(
            ["docker", "exec", self._container, *command], capture_output=True, text=True, timeout=120, check=False
        )
        return result.stdout.strip()

    def systemctl(self, *arguments: str) -> str:
        return run("docker", "exec", self._container, "systemctl", *arguments).strip()

    def shows(self, name: str) -> str:
        """Return a property of the unit, as `systemctl show` prints it."""
        return self._say("systemctl", "show", "--value", "-p", name, "tandemmq")

    @property
    def role(self) -> str:
        """Return the role, from the status line that the broker sent to systemd."""
        return self.shows("StatusText").partition(":")[0].partition(" ")[0]

    def until_role(self, role: str) -> None:
        wait_until(lambda: self.role == role, f"{self.name} is {role}; it says {self.shows('StatusText')!r}")

    def journal(self) -> str:
        return self._say("journalctl", "--no-pager", "-u", "tandemmq", "-n", "60")

    def remove(self) -> None:
        run("docker", "rm", "--force", "--volumes", self._container)
