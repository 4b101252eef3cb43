"""The two brokers for the same JMS tests: ActiveMQ and TandemMQ."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Protocol

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.interop.jms.jvm import class_path

#: The configuration of java/ActiveMQ.java as settings of TandemMQ.
SETTINGS = """\
[[destinations]]
queue = "PRIORITY.>"
prioritized_messages = true

[[destinations]]
queue = "LIMITED.>"
memory_limit = 65536
producer_flow_control = true

[[destinations]]
queue = "PULL.>"
queue_prefetch = 0

[[destinations]]
queue = "SHORT.>"
expire_messages_period = 200

[[destinations]]
queue = "TOLD.>"
advisory_for_consumed = true
advisory_for_delivery = true
advisory_for_discarding_messages = true
advisory_for_slow_consumers = true
advisory_when_full = true
send_advisory_if_no_consumers = true

[[destinations]]
topic = "VirtualTopic.TOLD.>"
advisory_for_delivery = true

[[destinations]]
topic = "KEPT.>"
[destinations.subscription_recovery_policy]
type = "fixed_count"
maximum_size = 2

[[destinations]]
queue = "STRICT.>"
use_prefetch_extension = false

[[virtual_destinations]]
composite_queue = "COMPOSITE.>"
forward_to = [{queue = "FORWARDED"}, {topic = "FORWARDED", selector = "colour = 'red'"}]

[[virtual_destinations]]
mirrored_queue = "MIRRORED.>"

[[destinations]]
topic = "TOLD.>"
advisory_for_consumed = true
advisory_for_delivery = true
advisory_for_discarding_messages = true
advisory_for_slow_consumers = true
advisory_when_full = true
send_advisory_if_no_consumers = true
"""

#: Libraries with which ActiveMQ transforms maps into JSON and XML.
TRANSFORMING = [Path("/usr/share/java") / name for name in ("xstream.jar", "jettison.jar", "xpp3.jar")]
#: Library with which its MQTT connector decodes packets.
MQTT = [Path("/usr/share/java") / name for name in ("mqtt-client.jar", "hawtdispatch.jar")]
OPENED = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.text")]


class Peer(Protocol):
    """A running broker."""

    name: str
    port: int
    stomp: int

    def url(self, options: str = "") -> str: ...

    def close(self) -> None: ...


class ActiveMQ:
    name = "activemq"

    def __init__(
        self, directory: Path, classes: Path, port: int = 0, heap: str = "384m", mqtt: int | None = None
    ) -> None:
        path = ":".join([class_path(classes), *map(str, [*TRANSFORMING, *MQTT])])
        ports = [str(port)] if mqtt is None else [str(port), str(mqtt)]
        self._process = subprocess.Popen(
            ["java", f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path, *OPENED,
             "ActiveMQ", str(directory), *ports],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.port, self.stomp = port, 0

    def wait(self) -> None:
        """Wait until it is master."""
        assert self._process.stdout is not None
        ports = dict(self._process.stdout.readline().split() for _ in range(2))
        self.port, self.stomp = int(ports["openwire"]), int(ports["stomp"])

    def wait_standby(self) -> None:
        """Do nothing, because its status does not show it. The later wait for the master includes this."""

    def url(self, options: str = "") -> str:
        return f"tcp://127.0.0.1:{self.port}?{options}"

    def close(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()


class TandemMQ:
    name = "tandemmq"

    def __init__(
        self, directory: Path, *options: str, broker: str = "a", settings: str = SETTINGS, port: int = 0
    ) -> None:
        self.port = port or free_port()
        written = directory.with_suffix(".toml")
        written.write_text(settings)
        arguments = ("--config", str(written), "--openwire", f"127.0.0.1:{self.port}", *options)
        self.process = BrokerProcess(directory, broker, *arguments)
        self.process.leaves_stomp_to_settings = True  # also OpenWire, which the option would disable
        self.stomp = self.process.stomp
        self.process.options += ("--stomp", f"127.0.0.1:{self.stomp}")
        self.process.start()

    def url(self, options: str = "") -> str:
        return f"tcp://127.0.0.1:{self.port}?{options}"

    def close(self) -> None:
        self.process.stop()

    def wait(self) -> None:
        """Wait until it is master."""
        self.process.wait_role("master")

    def wait_standby(self) -> None:
        self.process.wait_role("standby")


class Pair:
    """Two brokers of one kind with one directory: a killed broker is restarted as the standby."""

    def __init__(self, kind: str, directory: Path, classes: Path) -> None:
        self._kind, self._directory, self._classes = kind, directory, classes
        self.ports = [free_port(), free_port()]
        self._master = self._start(0)
        self._master.wait()
        self._standby = self._start(1)
        self._standby.wait_standby()

    def url(self, options: str = "") -> str:
        brokers = ",".join(f"tcp://127.0.0.1:{port}" for port in self.ports)
        return f"failover:({brokers})?initialReconnectDelay=20&maxReconnectDelay=100&{options}"

    def kill_master(self) -> None:
        """Kill the master; return when the other broker is master."""
        self._master.close()
        self._standby.wait()

    def restore(self) -> None:
        """Start the killed broker again, as standby."""
        dead, self._master = self._master, self._standby
        self._standby = self._start(self.ports.index(dead.port))
        self._standby.wait_standby()

    def close(self) -> None:
        self._standby.close()
        self._master.close()

    def _start(self, place: int) -> ActiveMQ | TandemMQ:
        if self._kind == "activemq":
            return ActiveMQ(self._directory, self._classes, self.ports[place])
        return TandemMQ(self._directory, broker="ab"[place], port=self.ports[place])
