"""A ZooKeeper server of one's own, Debian's package `zookeeper`. Its sessions may be as short as 200 ms."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.ports import free_port
from tests.services.server_process import ServerProcess

JAR = Path("/usr/share/java/zookeeper.jar")
WANT = f"no ZooKeeper in {JAR}: the Debian package zookeeper"
TICK_MS = 100
SESSION_MS_MAX = 60_000
ANSWER_SECONDS_MAX = 1.0


class ZooKeeperServer(ServerProcess):
    """One server. Started again after `kill`, it knows what it knew."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: list[ZooKeeperServer] = []  # of an ensemble, itself included; alone without
        self.quorum_port, self.election_port = free_port(), free_port()
        self.ways: dict[int, int] = {}  # to the quorum ports of its peers, where it does not reach them by these

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        settings = self.directory / "zoo.cfg"
        settings.write_text(
            f"tickTime={TICK_MS}\nminSessionTimeout={2 * TICK_MS}\nmaxSessionTimeout={SESSION_MS_MAX}\n"
            f"dataDir={self.directory / 'data'}\nclientPortAddress=127.0.0.1\nclientPort={self.port}\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\ninitLimit=100\nsyncLimit=20\n"
            + "".join(
                f"server.{number}=127.0.0.1:{self.ways.get(peer.quorum_port, peer.quorum_port)}:{peer.election_port}\n"
                for number, peer in enumerate(self.peers, 1)
            )
        )
        if self.peers:
            (self.directory / "data").mkdir(exist_ok=True)
            (self.directory / "data" / "myid").write_text(str(self.peers.index(self) + 1))
        return [
            *("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
            *("-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.forceSync=no", "-cp", str(JAR)),
            *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)),
        ]

    def answers(self) -> bool:
        # Of an ensemble none serves before there is a majority: the first is not waited for.
        return self.is_serving() or any(peer.process is None for peer in self.peers)

    def is_serving(self, as_what: str = "Mode:") -> bool:
        """It has a majority behind it; `as_what` may be "Mode: leader"."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS_MAX) as peer:
                peer.sendall(b"srvr")
                answer = b""
                while piece := peer.recv(4096):
                    answer += piece
                return as_what in answer.decode()
        except OSError:
            return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It does not answer, and hangs up on nobody: what a dead network looks like."""
        self.pause()
        assert self.process is not None, "what is paused runs"
        os.waitpid(self.process.pid, os.WUNTRACED)  # until all its threads stand still
        try:
            yield
        finally:
            self.resume()


@contextmanager
def zookeeper(require_service: Callable[[object, str], None]) -> Iterator[ZooKeeperServer]:
    """A server that runs, for as long as the fixture that asks."""
    require_service(JAR.exists() and shutil.which("java"), WANT)
    server = ZooKeeperServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def zookeeper_ensemble(
    require_service: Callable[[object, str], None],
    size: int = 3,
    prepare: Callable[[list[ZooKeeperServer]], object] = lambda servers: None,
) -> Iterator[list[ZooKeeperServer]]:
    """So many servers that elect a leader among themselves; `prepare` sees them before they start."""
    require_service(JAR.exists() and shutil.which("java"), WANT)
    servers = [ZooKeeperServer() for _ in range(size)]
    prepare(servers)
    try:
        for server in servers:
            server.peers = servers
            server.start()
        yield servers
    finally:
        for server in servers:
            server.remove()
