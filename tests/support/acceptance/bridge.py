"""Hosts on a separate network: each is a network namespace, which can drop packets by source address.

All hosts are ports of one bridge. This machine is host number 1, which runs clients and ZooKeeper. The bridge is in a
separate namespace, so this machine's firewall does not affect it. The rules of a host are in its own tables and are
removed with it.
"""

from __future__ import annotations

import itertools
import os
import subprocess

PROGRAMS = ("ip", "iptables")
HERE = 1
FIRST_HOST = 10
# The kernel removes deleted namespaces later, so no name and no address is used twice.
_NUMBERS = itertools.count()


def not_allowed() -> str | None:
    """Return why such a network cannot be created on this machine although the programs are installed; None if it can.
    Found by an attempt, because no list of conditions would be complete."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        bridge = Bridge()
        try:
            bridge.host(0).drop(bridge.address)
        finally:
            bridge.remove()
    except (OSError, subprocess.SubprocessError) as error:
        return f"no bridge of network namespaces can be made here: {error}"
    return None


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


class Bridge:
    """The network 10.78.<number>.0/24, with a new number for each instance."""

    def __init__(self) -> None:
        number = next(_NUMBERS)
        self._net = f"10.78.{(os.getpid() + 61 * number) % 250 + 1}"
        self.address = f"{self._net}.{HERE}"
        self.hosts: dict[int, Host] = {}
        self._hub = self._link = f"tq{os.getpid()}b{number}"
        _run("ip", "netns", "add", self._hub)
        try:
            _run("ip", "-n", self._hub, "link", "add", "hub", "type", "bridge")
            _run("ip", "-n", self._hub, "link", "set", "hub", "up")
            _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "here", "netns", self._hub)
            _run("ip", "-n", self._hub, "link", "set", "here", "master", "hub", "up")
            _run("ip", "addr", "add", f"{self.address}/24", "dev", self._link)
            _run("ip", "link", "set", self._link, "up")
        except BaseException:
            self.remove()
            raise

    def host(self, number: int) -> Host:
        """Return host ``number``, counted from 0."""
        if number not in self.hosts:
            self.hosts[number] = Host(self._hub, number, f"{self._net}.{FIRST_HOST + number}")
        return self.hosts[number]

    def heal(self) -> None:
        """Remove all rules: all hosts can communicate."""
        for host in self.hosts.values():
            host.heal()

    def remove(self) -> None:
        for host in self.hosts.values():
            host.remove()
        subprocess.run(["ip", "netns", "del", self._hub], capture_output=True, check=False, timeout=20)


class Host:
    """One namespace. ``enter``: prefix of a command that runs in it."""

    def __init__(self, hub: str, number: int, address: str) -> None:
        self.address = address
        self.namespace = f"{hub}n{number}"
        self.enter = ("ip", "netns", "exec", self.namespace)
        link = f"host{number}"
        _run("ip", "netns", "add", self.namespace)
        try:
            _run("ip", "-n", hub, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
            _run("ip", "-n", hub, "link", "set", link, "master", "hub", "up")
            inside = ("ip", "-n", self.namespace)
            _run(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run(*inside, "link", "set", device, "up")
        except BaseException:
            self.remove()
            raise

    def _refuse(self, *what: str) -> None:
        _run(*self.enter, "iptables", "-w", "-A", "INPUT", *what, "-j", "DROP")

    def drop(self, address: str) -> None:
        """Drop all packets from ``address`` silently. Packets to it still pass."""
        self._refuse("-s", address)

    def drop_dials(self, address: str) -> None:
        """Prevent connections from ``address`` to this host; connections to ``address`` work."""
        self._refuse("-s", address, "-p", "tcp", "--syn")
        # This also cuts existing connections from there. Answers to connections of this host go to an ephemeral port
        # and pass.
        self._refuse("-s", address, "-p", "tcp", "--dport", "1:32767")

    def drop_port(self, address: str, port: int) -> None:
        """Drop the answers of one server."""
        self._refuse("-s", address, "-p", "tcp", "--sport", str(port))

    def lose(self, share: float) -> None:
        """Drop this share of all incoming packets, so that data arrives late, by retransmission. Fails if the kernel
        does not have the match."""
        self._refuse("-m", "statistic", "--mode", "random", "--probability", str(share))

    def heal(self) -> None:
        _run(*self.enter, "iptables", "-w", "-F", "INPUT")

    def remove(self) -> None:
        """Remove the namespace, and with it its end of the link."""
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, check=False, timeout=20)
