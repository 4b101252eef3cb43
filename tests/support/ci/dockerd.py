"""A Docker daemon, if none runs. It leaves no process, bridge, rule, mount or system setting behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0
#: Ports are published only on the loopback address, by Docker's proxy: containers need no iptables rule, and reach only
#: this machine.
NO_RULES: Final = ("--iptables=false", "--ip6tables=false", "--ip-masq=false")
#: The daemon sets this, and `docker` warns if it is not set.
FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")


class NoDaemon(Exception):
    """The daemon did not start; the text has the cause."""


def answers(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a daemon answers."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, env=dict(environment), check=False).returncode == 0


@contextmanager
def daemon() -> Iterator[dict[str, str]]:
    """Yield the environment variables with which `docker` finds the daemon; none if a daemon runs already. Raises
    NoDaemon."""
    if answers():
        yield {}
        return
    if shutil.which("dockerd") is None:
        raise NoDaemon("dockerd is not installed: the Debian package docker.io has it")
    before, forwarding = bridges(), FORWARDING.read_text()
    with tempfile.TemporaryDirectory(prefix="tandemmq-docker-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        variables = {"DOCKER_HOST": f"unix://{place}/socket"}
        command = ["dockerd", "--host", variables["DOCKER_HOST"], "--pidfile", f"{place}/pid", *NO_RULES]
        command += ["--data-root", f"{place}/data", "--exec-root", f"{place}/exec"]
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            end = time.monotonic() + START_SECONDS_MAX
            while not answers({**os.environ, **variables}):
                if process.poll() is not None or time.monotonic() > end:
                    raise NoDaemon((place / "log").read_text(errors="replace")[-4000:])
                time.sleep(0.2)
            yield variables
        finally:
            _stop(process)
            _unmount(place)
            for bridge in bridges() - before:
                subprocess.run(["ip", "link", "delete", bridge], check=False)
            FORWARDING.write_text(forwarding)


def bridges() -> set[str]:
    """Return the bridges of this machine with names of Docker."""
    listed = subprocess.run(["ip", "-json", "link", "show", "type", "bridge"], capture_output=True, check=True).stdout
    names = {each["ifname"] for each in json.loads(listed or b"[]") if "ifname" in each}
    return {name for name in names if name == "docker0" or name.startswith("br-")}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM: the daemon ends its containers and containerd."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _unmount(place: Path) -> None:
    """Unmount everything that a killed daemon left mounted, the innermost first."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(f"{place}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False)
