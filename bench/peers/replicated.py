"""Several nodes that are one broker to their clients: a set of TandemMQ with a ZooKeeper, and a cluster of RabbitMQ.

ZooKeeper is one server of Debian's package, with sessions as short as a set needs.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tandemmq.bench.driver.stomp import BenchError, Endpoint
from tandemmq.bench.peers.brokers import LIBRARY, Cluster, RabbitMQ
from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import HOST, PeerMissing, Server, TandemMQ, wait_until

NODES = 3
READY_SECONDS_MAX = 120.0
ASK_SECONDS = 0.02
COMMAND_SECONDS_MAX = 60.0


class Group(ABC):
    """Nodes that start together. As a context manager it stops them and removes their files."""

    name: str
    queue = "/queue/bench"
    """Prefix of a load's destinations."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-"))
        self._running = ExitStack()

    @abstractmethod
    def start(self) -> None:
        """Start the nodes. Returns when they serve."""

    @property
    @abstractmethod
    def endpoint(self) -> Endpoint:
        """Endpoint of the node that serves."""

    @property
    @abstractmethod
    def pids(self) -> Sequence[int]:
        """Pids of all processes that serve: their CPU counts."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        self._running.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Alone(Group):
    """A single node of TandemMQ."""

    def __init__(self) -> None:
        self.name = TandemMQ.name
        super().__init__()
        self._node = TandemMQ(self.directory)

    def start(self) -> None:
        self._running.enter_context(self._node)

    @property
    def endpoint(self) -> Endpoint:
        return self._node.endpoint

    @property
    def pids(self) -> Sequence[int]:
        return [self._node.pid]


class ReplicatedSet(Group):
    """A set of TandemMQ. A store that one node has before the founding is in its ``data``; reading it takes part of
    ``ready_seconds_max``. ``last``: place of the last node's directory; None: beside the others."""

    def __init__(
        self,
        sync: str = "quorum_disk",
        *,
        timeout: str = "2s",
        settings: Sequence[str] = (),
        nodes: int = NODES,
        ready_seconds_max: float = READY_SECONDS_MAX,
        last: Path | None = None,
    ) -> None:
        self.name = f"tandemmq-{sync}"
        super().__init__()
        self.zookeeper = ZooKeeper()
        self._ready_seconds_max = ready_seconds_max
        self._directory_of_last = self.directory
        if last is not None:
            self._directory_of_last = Path(tempfile.mkdtemp(prefix="bench-node-", dir=last))
        common = (
            f"replication.replicas={nodes}",
            f"replication.sync={sync}",
            f"replication.zk_session_timeout={timeout}",
            f"replication.zk_address={self.zookeeper.hosts}",
            "replication.security_token=bench",
            f"replication.hostname={HOST}",
            *settings,
        )
        self.nodes = [
            TandemMQ(
                (self._directory_of_last if number == nodes else self.directory) / f"n{number}",
                settings=(*common, f"replication.node=n{number}", f"replication.bind={HOST}:{free_port()}"),
            )
            for number in range(1, nodes + 1)
        ]

    def discard(self) -> None:
        super().discard()
        shutil.rmtree(self._directory_of_last, ignore_errors=True)

    def data(self, node: TandemMQ) -> Path:
        """Return the store's directory of this node."""
        return node.directory / "data"

    def start(self) -> None:
        self._running.enter_context(self.zookeeper)
        for node in self.nodes:
            self._running.callback(node.discard)
            node.start()
        self.await_whole(self._ready_seconds_max)

    def replication(self, node: TandemMQ) -> dict[str, Any]:
        """Return the node's status of the set; {} while it does not answer."""
        try:
            with urllib.request.urlopen(f"{node.admin_url}/replication", timeout=5.0) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return found

    @property
    def master(self) -> TandemMQ:
        return next(node for node in self.nodes if self.replication(node).get("role") == "master")

    @property
    def followers(self) -> list[TandemMQ]:
        master = self.master
        return [node for node in self.nodes if node is not master]

    def await_whole(self, seconds: float = READY_SECONDS_MAX) -> None:
        """Return when one node serves, and the others have all of its data."""

        def is_whole() -> bool:
            each = [self.replication(node) for node in self.nodes]
            masters = [status for status in each if status.get("role") == "master"]
            if len(masters) != 1 or len(masters[0]["followers"]) != len(self.nodes) - 1:
                return False
            if not all(follower["is_live"] for follower in masters[0]["followers"].values()):
                return False
            self.master.ask()
            return all(
                status["role"] == "master" or status["position"] == masters[0]["position"] for status in each
            ) and all(
                node is self.master or (node.status().get("standby") or {}).get("has_caught_up") is True
                for node in self.nodes
            )

        def late() -> BenchError:
            states = "; ".join(
                f"{node.directory.name}: {self.replication(node)}\n{node.output()}" for node in self.nodes
            )
            return BenchError(f"the set is not complete within {seconds:g} s: {states}")

        wait_until(lambda: _or_not_yet(is_whole), seconds, late, ASK_SECONDS)

    @property
    def endpoint(self) -> Endpoint:
        return self.master.endpoint

    @property
    def endpoints(self) -> list[Endpoint]:
        return [node.endpoint for node in self.nodes]

    @property
    def pids(self) -> Sequence[int]:
        return [*(node.pid for node in self.nodes), self.zookeeper.pid]


class RabbitMQCluster(Group):
    """Nodes of RabbitMQ with quorum queues, whose leaders are on the node that clients talk to."""

    queue = "/amq/queue/bench"  # the declared queues: a new STOMP queue would be classic

    def __init__(self, queues: int, nodes: int = NODES) -> None:
        self.name = "rabbitmq-quorum"
        super().__init__()
        self._queues = queues
        ports = [free_port() for _ in range(nodes)]
        home = self.directory / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text("bench")
        cookie.chmod(0o400)
        cluster = Cluster(home, free_port(), tuple(f"bench{port}@localhost" for port in ports))
        self.nodes = [
            RabbitMQ(self.directory / f"n{number}", cluster=cluster, port=port) for number, port in enumerate(ports)
        ]
        self._cluster = cluster

    def start(self) -> None:
        for number, node in enumerate(self.nodes):
            node.runs_epmd = not number
            self._running.callback(node.discard)
            node.start()
        for node in self.nodes:
            node.wait_until_it_serves()
        expected = len(self.nodes)
        wait_until(
            lambda: self._evaluate("length(rabbit_nodes:all_running()).") == str(expected),
            READY_SECONDS_MAX,
            lambda: BenchError(f"the cluster does not come together: {self.nodes[-1].output()}"),
            1.0,
        )
        for number in range(self._queues):
            said = self._evaluate(
                f'element(1, rabbit_amqqueue:declare(rabbit_misc:r(<<"/">>, queue, <<"bench.{number}">>), true, false,'
                ' [{<<"x-queue-type">>, longstr, <<"quorum">>}], none, <<"bench">>)).'
            )
            if said != "new":
                raise BenchError(f"the queue bench.{number} cannot be declared: {said}")

    def _evaluate(self, expression: str) -> str:
        """Evaluate an expression on the first node."""
        cluster = self._cluster
        done = subprocess.run(
            [str(LIBRARY / "rabbitmqctl"), "-q", "-n", cluster.names[0], "eval", expression],
            env={
                **os.environ,
                "HOME": str(cluster.home),
                "ERL_EPMD_PORT": str(cluster.epmd_port),
                "RABBITMQ_CONF_ENV_FILE": str(self.directory / "no-rabbitmq-env.conf"),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS_MAX,
        )
        return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip()

    @property
    def endpoint(self) -> Endpoint:
        return self.nodes[0].endpoint

    @property
    def pids(self) -> Sequence[int]:
        return [node.pid for node in self.nodes]


def _or_not_yet(is_so: Callable[[], bool]) -> bool:
    """Return False instead of an error of a node that does not answer yet, or leads no more."""
    try:
        return is_so()
    except (OSError, ValueError, BenchError, StopIteration, KeyError):
        return False


# ---- ZooKeeper

JAR = Path("/usr/share/java/zookeeper.jar")
TICK_MS = 500
ANSWER_SECONDS_MAX = 1.0


class ZooKeeper(Server):
    """A ZooKeeper server."""

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
