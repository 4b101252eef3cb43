"""RabbitMQ as Debian packages it: its STOMP plugin, durable classic queues, persistent messages, publisher confirms.

Started under a separate node name, with its own directories, loopback ports and epmd.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import HOST, PeerMissing, Server

LIBRARY = Path("/usr/lib/rabbitmq/bin")
EPMD = Path("/usr/bin/epmd")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of a cluster. ``home`` holds the cookie of all of them; they share one epmd."""

    home: Path
    epmd_port: int
    names: tuple[str, ...]


class RabbitMQ(Server):
    """A node. STOMP destinations /queue/<name> are durable classic queues by default."""

    name = "rabbitmq"

    def __init__(
        self, directory: Path | None = None, *, cluster: Cluster | None = None, port: int | None = None
    ) -> None:
        super().__init__(directory)
        self.port = port or self.port
        self.runs_epmd = True
        self._cluster = cluster
        self._epmd_port = free_port() if cluster is None else cluster.epmd_port
        self._epmd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = LIBRARY / "rabbitmq-server"
        if not program.exists() or not EPMD.exists():
            raise PeerMissing(f"RabbitMQ is not installed ({program}, {EPMD})")
        base = self.directory
        base.mkdir(parents=True, exist_ok=True)
        (base / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {HOST}:{free_port()}\n"
            f"stomp.listeners.tcp.1 = {HOST}:{self.port}\n"
            "stomp.default_user = guest\nstomp.default_pass = guest\n"
            "log.file.level = warning\n"
            # On a small machine, the default alarm at 40 % of memory would block a backlog.
            "vm_memory_high_watermark.relative = 0.6\n"
            "disk_free_limit.absolute = 1GB\n" + self._peers()
        )
        (base / "enabled_plugins").write_text("[rabbitmq_stomp].\n")
        (base / "home").mkdir(exist_ok=True)
        distribution_port = free_port()
        environment = {
            "HOME": str(
                base / "home" if self._cluster is None else self._cluster.home
            ),  # the Erlang cookie is made here
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(base / "no-rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(base / "mnesia"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_PID_FILE": str(base / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(base / "generated"),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
        }
        if self.runs_epmd:
            # Started here, not by the node, which would leave it behind as a daemon.
            self._epmd = subprocess.Popen(
                [str(EPMD), "-port", str(self._epmd_port), "-address", HOST],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.spawn([str(program)], environment)

    def _peers(self) -> str:
        if self._cluster is None:
            return ""
        return "cluster_formation.peer_discovery_backend = classic_config\n" + "".join(
            f"cluster_formation.classic_config.nodes.{number} = {name}\n"
            for number, name in enumerate(self._cluster.names, 1)
        )

    def stop(self) -> None:
        super().stop()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None
