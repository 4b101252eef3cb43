"""ZooKeeper as Debian packages it: one server, with sessions as short as a set needs."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.server import HOST, PeerMissing, Server

JAR = Path("/usr/share/java/zookeeper.jar")
TICK_MS = 500
ANSWER_SECONDS_MAX = 1.0


class ZooKeeper(Server):
    """A server."""

    name = "zookeeper"

    @property
    def hosts(self) -> str:
        """Value for ``replication.zk_address``."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        java = shutil.which("java")
        if java is None or not JAR.exists():
            raise PeerMissing(f"ZooKeeper is not installed ({JAR}), or no Java is")
        settings = self.directory / "zoo.cfg"
        settings.write_text(
            f"tickTime={TICK_MS}\ndataDir={self.directory / 'data'}\nclientPortAddress={HOST}\n"
            f"clientPort={self.port}\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
        )
        self.spawn(
            [
                *(java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-Dzookeeper.jmx.log4j.disable=true", "-cp", str(JAR)),
                *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)),
            ]
        )

    def ask(self) -> None:
        with socket.create_connection((HOST, self.port), ANSWER_SECONDS_MAX) as peer:
            peer.settimeout(ANSWER_SECONDS_MAX)
            peer.sendall(b"srvr")
            if b"Zoo" not in peer.recv(4096):
                raise BenchError("it is not ready")
