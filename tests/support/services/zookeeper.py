"""A ZooKeeper server of one's own, Debian's package `zookeeper`. Its sessions may be as short as 200 ms."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemmq.bench.peers.ports import free_port
from tandemmq.locker.zookeeper.session import ZooKeeperSession
from tests.support.services.server_process import ServerProcess

JAR = Path("/usr/share/java/zookeeper.jar")
WANT = f"no ZooKeeper in {JAR}: the Debian package zookeeper"
TICK_MS = 100
SESSION_MS_MAX = 60_000
ANSWER_SECONDS_MAX = 1.0
LOSS_SECONDS_MAX = 30.0


class ZooKeeperServer(ServerProcess):
    """One server. After `kill` and `start` it has its data again. ``host``: its address for clients."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__()
        self.host = host
        self.peers: list[ZooKeeperServer] = []  # members of the ensemble, including this one; empty for a single server
        self.quorum_port, self.election_port = free_port(), free_port()
        self.ways: dict[int, int] = {}  # quorum port of a peer -> port of a proxy to it

    @property
    def hosts(self) -> str:
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        settings = self.directory / "zoo.cfg"
        settings.write_text(
            f"tickTime={TICK_MS}\nminSessionTimeout={2 * TICK_MS}\nmaxSessionTimeout={SESSION_MS_MAX}\n"
            f"dataDir={self.directory / 'data'}\nclientPortAddress={self.host}\nclientPort={self.port}\n"
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

    def empty(self) -> None:
        """Delete its data, as on a replaced disk. It must not run."""
        assert self.process is None, "a running server writes its data again"
        shutil.rmtree(self.directory / "data")

    def back_up(self) -> Path:
        """Copy its data; return the copy. It must not run."""
        assert self.process is None, "a running server writes its data"
        backup = self.directory / "backup"
        shutil.rmtree(backup, ignore_errors=True)
        shutil.copytree(self.directory / "data", backup)
        return backup

    def restore(self, backup: Path) -> None:
        """Restore its data from a copy."""
        self.empty()
        shutil.copytree(backup, self.directory / "data")

    def answers(self) -> bool:
        # No server of an ensemble serves before there is a majority, so there is no wait for the first one.
        return self.is_serving() or any(peer.process is None for peer in self.peers)

    def is_serving(self, as_what: str = "Mode:") -> bool:
        """Return whether it serves with a majority; `as_what` may be "Mode: leader"."""
        try:
            with socket.create_connection((self.host, self.port), ANSWER_SECONDS_MAX) as peer:
                peer.sendall(b"srvr")
                answer = b""
                while piece := peer.recv(4096):
                    answer += piece
                return as_what in answer.decode()
        except OSError:
            return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop answering without closing connections, like a dead network."""
        self.pause()
        assert self.process is not None, "only a running server can be paused"
        os.waitpid(self.process.pid, os.WUNTRACED)  # wait until all its threads are stopped
        try:
            yield
        finally:
            self.resume()


def end_session(session: ZooKeeperSession, server: ZooKeeperServer) -> None:
    """Close a session by another connection with its number and password."""
    from kazoo.client import KazooClient

    thief = KazooClient(server.hosts, client_id=session._client.client_id, timeout=session.timeout_seconds)
    thief.start()
    thief.stop()
    thief.close()
    assert session._lost.wait(LOSS_SECONDS_MAX), "the owner of the session is informed"


@contextmanager
def zookeeper(require_service: Callable[[object, str], None]) -> Iterator[ZooKeeperServer]:
    """Run a server."""
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
    """Run an ensemble of ``size`` servers; `prepare` is called with them before the start."""
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
