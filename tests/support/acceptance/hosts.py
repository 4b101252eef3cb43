"""Hosts of a pair on one machine: a network namespace each, with a link that can be cut, and a mount that can be hung.

Each host has an address of its own on a link of its own to this machine, where clients and database are. The volume is
one directory, mounted for each host by a FUSE server of its own without caches: a stopped server is a volume that hangs
for that host alone, as an NFS mount does whose server is out of reach. These mounts keep locks to themselves: the pair
needs a lock that is no file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.acceptance.broker_process import ROOT, BrokerProcess, tandemmq

PORT, ADMIN_PORT = 61613, 8161
UNCACHED = "entry_timeout=0,attr_timeout=0,negative_timeout=0,direct_io"
MOUNT_SECONDS_MAX = 20.0


PROGRAMS = ("ip", "bindfs", "fusermount")


def not_allowed(directory: Path) -> str | None:
    """Why no host can be made on this machine although the programs are there; tried, since no list would be right."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        (directory / "probe").mkdir()
        Host(250, directory, directory / "probe").remove()
    except (OSError, subprocess.SubprocessError, AssertionError) as error:
        return f"no network namespace, or no FUSE mount, can be made here: {error}"
    return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


class Host:
    """One host, told from others by ``number``: its address is 10.77.<number>.2, this machine's is 10.77.<number>.1."""

    def __init__(self, number: int, directory: Path, volume: Path) -> None:
        self.namespace = f"tmq{os.getpid()}n{number}"
        self.link = f"tmq{os.getpid() % 10**6}l{number}"
        self.address = f"10.77.{number}.2"
        self.gateway = f"10.77.{number}.1"
        self.mount = directory / f"mount-{number}"
        self.mount.mkdir()
        self._server: subprocess.Popen[bytes] | None = None
        try:
            self._connect()
            self._mount(volume)
        except BaseException:
            self.remove()
            raise

    def _connect(self) -> None:
        _ip("netns", "add", self.namespace)
        inside = ("-n", self.namespace)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _ip("addr", "add", f"{self.gateway}/30", "dev", self.link)
        _ip("link", "set", self.link, "up")
        _ip(*inside, "addr", "add", f"{self.address}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip(*inside, "link", "set", device, "up")

    def _mount(self, volume: Path) -> None:
        self._server = subprocess.Popen(["bindfs", "-f", "-o", UNCACHED, str(volume), str(self.mount)])
        end = time.monotonic() + MOUNT_SECONDS_MAX
        while not os.path.ismount(self.mount):
            assert self._server.poll() is None, f"bindfs ended with {self._server.returncode}"
            assert time.monotonic() < end, f"bindfs did not mount within {MOUNT_SECONDS_MAX:g} s"
            time.sleep(0.02)

    def cut_link(self) -> None:
        """What is sent either way vanishes: neither clients nor database reach the host, and nobody is told."""
        _ip("link", "set", self.link, "down")

    def mend_link(self) -> None:
        _ip("link", "set", self.link, "up")

    def hang_volume(self) -> None:
        """Every call into the volume waits."""
        self._signal(signal.SIGSTOP)

    def mend_volume(self) -> None:
        """The calls that waited are done now, late as they are."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._server is not None:
            self._server.send_signal(number)

    def remove(self) -> None:
        self.mend_volume()
        if self._server is not None:
            subprocess.run(["fusermount", "-u", "-z", str(self.mount)], capture_output=True, check=False, timeout=20)
            self._server.wait(20)
        # The link goes with it.
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, check=False, timeout=20)


class BrokerOnHost(BrokerProcess):
    """A broker that runs on a host of its own."""

    def __init__(self, host: Host, name: str, *options: str) -> None:
        super().__init__(host.mount / "data", name, *options)
        self.host = host
        self.log = host.mount.parent / f"{name}.log"
        self.address = host.address, PORT

    def start(self) -> BrokerProcess:
        assert self.process is None, "it runs already"
        here = self.host.address
        command = [
            *("ip", "netns", "exec", self.host.namespace, sys.executable, "-m", "tandemmq", "run"),
            *(
                "--data",
                self.data,
                "--name",
                self.name,
                "--openwire",
                "off",
                "--stomp",
                f"{here}:{PORT}",
                "--admin",
                f"{here}:{ADMIN_PORT}",
                # Its clients are on another host.
                "--set",
                "security.allow_anonymous=true",
            ),
            *self.options,
        ]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        return self

    def status(self) -> dict[str, Any] | None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.host.address}:{ADMIN_PORT}/status", timeout=1) as answer:
                found = json.loads(answer.read())
        except (OSError, ValueError):
            return None
        assert isinstance(found, dict)
        return found

    def command(self, *words: str) -> dict[str, Any]:
        """What `tandemmq <words>` answers about this broker, as an operator asks it."""
        admin = ("--admin", f"http://{self.host.address}:{ADMIN_PORT}", "--json")
        result = tandemmq(*words, *admin)
        assert result.returncode == 0, result.stdout + result.stderr
        found = json.loads(result.stdout)
        assert isinstance(found, dict)
        return found
