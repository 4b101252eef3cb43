"""ActiveMQ Classic, 5.17 as Debian packages it and 6.3.1 from Maven: KahaDB with a sync for each journal write.

Flow control limits are raised so that a backlog is stored and not blocked; everything else is the default.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import ClassVar

from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.programs import activemq_6
from tandemmq.bench.peers.server import HOST, Connected, PeerMissing, Server

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
    """6.3.1, which speaks MQTT without more jars."""

    name = "activemq-6"
    schemes: ClassVar[Mapping[str, str]] = {**ActiveMQ5.schemes, "mqtt": "mqtt+nio"}

    def program(self) -> Sequence[str]:
        return "-cp", f"{activemq_6()}/*", "org.apache.activemq.console.command.ShellCommand"


class ActiveMQStored(ActiveMQ5):
    """ActiveMQ 5.17 with TandemMQ's promise: a persistent message is on the disk before a consumer receives it."""

    name = "activemq-stored"
    is_dispatched_unstored = False
