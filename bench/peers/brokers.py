"""Brokers for comparison, each as its distribution sets it up, on loopback ports and in its own directory:

ActiveMQ Classic  5.17 of Debian and 6.3.1 from Maven: KahaDB with a sync for each journal write. Flow control limits
                  are raised so that a backlog is stored and not blocked; everything else is the default.
Artemis           the instance that ``artemis create`` makes, with libaio, and with the buffer timeout of the journal
                  that it measures for this disk (autotune).
RabbitMQ          of Debian: its STOMP plugin, durable classic queues, persistent messages, publisher confirms. It has
                  a separate node name, its own directories, loopback ports and epmd.
NATS              with JetStream, which syncs each message (``sync_interval: always``).
mosquitto         of Debian, with persistence: it keeps everything in memory, and periodically writes a whole image; a
                  message is not on the disk when it is confirmed.
Floor             programs in C that only write, sync and answer: the upper bound for a broker on this machine. They
                  keep TandemMQ's promise (stored before it is confirmed or delivered), and accept loads without
                  transactions.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import ClassVar

from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.programs import activemq_6, artemis, nats_server
from tandemmq.bench.peers.server import HOST, Connected, PeerMissing, Server
from tandemmq.broker.protocols.openwire.handshake import Greeting

# ---- ActiveMQ Classic

HOME = Path("/usr/share/activemq")
JAVA = Path("/usr/bin/java")
HEAP = "1G"

_CONFIGURATION = Template("""\
<beans xmlns="http://www.springframework.org/schema/beans"
       xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
       xsi:schemaLocation="http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans.xsd
                           http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="bench" dataDirectory="$data" useJmx="false"
          schedulerSupport="false" useShutdownHook="true">
    <destinationPolicy>
      <policyMap><policyEntries>
        <policyEntry queue=">" producerFlowControl="false" queuePrefetch="1000"/>
      </policyEntries></policyMap>
    </destinationPolicy>
    <persistenceAdapter>
      <kahaDB directory="$data/kahadb" enableJournalDiskSyncs="true" concurrentStoreAndDispatchQueues="$concurrent">
        <locker><shared-file-locker lockAcquireSleepInterval="$poll"/></locker>
      </kahaDB>
    </persistenceAdapter>
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage percentOfJvmHeap="70"/></memoryUsage>
      <storeUsage><storeUsage limit="64 gb"/></storeUsage>
      <tempUsage><tempUsage limit="16 gb"/></tempUsage>
    </systemUsage></systemUsage>
    <transportConnectors>$connectors</transportConnectors>
  </broker>
</beans>
""")


class ActiveMQ(Server):
    """A broker; two over one ``data`` directory are a master and its standby, which polls each second."""

    name = "activemq"
    # ActiveMQ's default: a message is delivered before it is stored, and never stored if it is acknowledged in time.
    is_dispatched_unstored = True

    def __init__(self, directory: Path | None = None, data: Path | None = None) -> None:
        super().__init__(directory)
        self._data = data or self.directory / "data"
        self.connectors: Mapping[str, int] = {"stomp+nio": self.port}

    def program(self) -> Sequence[str]:
        """Return the arguments that run the broker. Raises PeerMissing."""
        jar = HOME / "bin/activemq.jar"
        if not jar.exists() or not JAVA.exists():
            raise PeerMissing(f"ActiveMQ is not installed ({jar}, {JAVA})")
        return f"-Dactivemq.home={HOME}", "-jar", str(jar)

    def start(self) -> None:
        program = self.program()
        configuration = self.directory / "conf"
        configuration.mkdir(parents=True, exist_ok=True)
        (configuration / "activemq.xml").write_text(
            _CONFIGURATION.substitute(
                data=self._data,
                connectors="".join(
                    f'<transportConnector name="{scheme}" uri="{scheme}://{HOST}:{port}"/>'
                    for scheme, port in self.connectors.items()
                ),
                poll=1000,
                concurrent=str(self.is_dispatched_unstored).lower(),
            )
        )
        (configuration / "log4j2.properties").write_text("rootLogger.level=warn\n")
        (self.directory / "tmp").mkdir(exist_ok=True)
        self.spawn(
            [
                str(JAVA),
                f"-Xmx{HEAP}",
                f"-Dactivemq.base={self.directory}",
                f"-Dactivemq.conf={configuration}",
                f"-Dactivemq.data={self._data}",
                f"-Djava.io.tmpdir={self.directory / 'tmp'}",
                "-Djava.net.preferIPv4Stack=true",
                *program,
                "start",
                f"xbean:file:{configuration / 'activemq.xml'}",
            ]
        )


class ActiveMQ5(Connected, ActiveMQ):
    """5.17 for JMS and STOMP."""

    schemes: ClassVar[Mapping[str, str]] = {"jms": "tcp", "stomp": "stomp+nio"}

    def __init__(self) -> None:
        super().__init__()
        self.ports = {protocol: free_port() for protocol in self.schemes}
        self.connectors = {self.schemes[protocol]: port for protocol, port in self.ports.items()}


class ActiveMQ6(ActiveMQ5):
    """ActiveMQ 6.3.1, which also supports MQTT and AMQP."""

    name = "activemq-6"
    schemes: ClassVar[Mapping[str, str]] = {**ActiveMQ5.schemes, "mqtt": "mqtt+nio", "amqp": "amqp+nio"}

    def program(self) -> Sequence[str]:
        return "-cp", f"{activemq_6()}/*", "org.apache.activemq.console.command.ShellCommand"


class ActiveMQStored(ActiveMQ5):
    """ActiveMQ 5.17 with TandemMQ's promise: a persistent message is on the disk before a consumer receives it."""

    name = "activemq-stored"
    is_dispatched_unstored = False


# ---- Artemis

CREATE_SECONDS_MAX = 120.0
_SETTINGS = "tcpSendBufferSize=1048576;tcpReceiveBufferSize=1048576;useEpoll=true"
#: A STOMP consumer gets as many messages of 1 KiB at once as from the other brokers.
_ACCEPTORS = {
    "jms": "CORE,OPENWIRE",
    "stomp": "STOMP;anycastPrefix=/queue/;stompConsumerCredits=1048576",
    "mqtt": "MQTT",
    "amqp": "AMQP",
}


class Artemis(Connected):
    """A broker."""

    name = "artemis"

    def __init__(self) -> None:
        super().__init__()
        self.ports = {protocol: free_port() for protocol in _ACCEPTORS}
        self.port = self.ports["stomp"]

    def start(self) -> None:
        instance = self.directory / "instance"
        create = [
            *(str(artemis() / "bin/artemis"), "create", str(instance), "--silent", "--aio", "--allow-anonymous"),
            *("--user", "guest", "--password", "guest", "--no-web", "--java-memory", HEAP),
        ]
        done = subprocess.run(create, capture_output=True, text=True, check=False, timeout=CREATE_SECONDS_MAX)
        if done.returncode:
            raise BenchError(f"artemis create: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        path = instance / "etc/broker.xml"
        acceptors = "".join(
            f'<acceptor name="{protocol}">tcp://{HOST}:{self.ports[protocol]}?{_SETTINGS};protocols={options}</acceptor>'
            for protocol, options in _ACCEPTORS.items()
        )
        text, count = re.subn(
            r"(<acceptors>).*(</acceptors>)", rf"\g<1>{acceptors}\g<2>", path.read_text(), flags=re.DOTALL
        )
        if count != 1 or "ASYNCIO" not in text:
            raise BenchError("the instance of Artemis has no acceptors, or does not use libaio")
        path.write_text(text)
        self.spawn([str(instance / "bin/artemis"), "run"])


# ---- RabbitMQ

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


# ---- NATS and mosquitto


class Nats(Connected):
    """A server; ``stomp`` loads use its own client and streams."""

    name = "nats"

    def __init__(self) -> None:
        super().__init__()
        self.ports = {"nats": self.port, "mqtt": free_port()}

    def start(self) -> None:
        configuration = self.directory / "nats.conf"
        configuration.write_text(
            f'server_name: bench\nlisten: "{HOST}:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.directory / "store"}", sync_interval: always }}\n'
            f'mqtt {{ listen: "{HOST}:{self.ports["mqtt"]}", max_ack_pending: 1000 }}\n'
        )
        self.spawn([str(nats_server()), "-c", str(configuration)])


SECONDS_BETWEEN_IMAGES = 30


class Mosquitto(Connected):
    """A broker."""

    name = "mosquitto"

    def __init__(self) -> None:
        super().__init__()
        self.ports = {"mqtt": self.port}

    def start(self) -> None:
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/bin")
        if program is None:
            raise PeerMissing("mosquitto is not installed (/usr/sbin/mosquitto)")
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "store").mkdir(exist_ok=True)
        (self.directory / "store").chmod(0o777)  # it runs under another user
        self.directory.chmod(0o755)
        configuration = self.directory / "mosquitto.conf"
        configuration.write_text(
            f"listener {self.port} {HOST}\nallow_anonymous true\n"
            f"persistence true\npersistence_location {self.directory}/store/\n"
            f"autosave_interval {SECONDS_BETWEEN_IMAGES}\n"
            # Otherwise it drops messages beyond these limits.
            "max_inflight_messages 0\nmax_queued_messages 0\n"
        )
        self.spawn([program, "-c", str(configuration)])


# ---- the floor

_SOURCES = Path(__file__).parent


class Floor(Connected):
    """Reference program with one thread and one file; compiled when it starts."""

    name = "floor"
    source = "floor.c"
    protocol = "stomp"

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(directory)
        self.ports = {self.protocol: self.port}

    def arguments(self) -> list[str]:
        """Return the program's arguments in addition to port and file."""
        return []

    def start(self) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise PeerMissing("no C compiler (gcc, cc)")
        program = self.directory / "floor"
        subprocess.run([compiler, "-O2", "-o", str(program), str(_SOURCES / self.source)], check=True)
        self.spawn([str(program), str(self.port), str(self.directory / "file"), *self.arguments()])


class JmsFloor(Floor):
    """The same bound for OpenWire without transactions."""

    source = "jms_floor.c"
    protocol = "jms"

    def arguments(self) -> list[str]:
        greeting = self.directory / "greeting"
        greeting.write_bytes(Greeting("floor", "ID:floor", "").wire_format_info)
        return [str(greeting)]
