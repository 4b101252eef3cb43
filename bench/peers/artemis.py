"""ActiveMQ Artemis from its distribution: the instance that ``artemis create`` makes, with libaio, and with the buffer
timeout of the journal that it measures for this disk (autotune)."""

from __future__ import annotations

import re
import subprocess

from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.activemq import HEAP
from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.programs import artemis
from tandemmq.bench.peers.server import HOST, Connected

CREATE_SECONDS_MAX = 120.0
_SETTINGS = "tcpSendBufferSize=1048576;tcpReceiveBufferSize=1048576;useEpoll=true"
#: A STOMP consumer gets as many messages of 1 KiB at once as from the other brokers.
_ACCEPTORS = {
    "jms": "CORE,OPENWIRE",
    "stomp": "STOMP;anycastPrefix=/queue/;stompConsumerCredits=1048576",
    "mqtt": "MQTT",
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
