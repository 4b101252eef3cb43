"""What the STOMP suites of others (docs/compatibility.md) expect and a client may rely on, by plain sockets."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.openwire_wire import OpenWire, queue

SECONDS_MAX = 10.0
SETTINGS = """\
[[connectors]]
uri = "stomp://127.0.0.1:{}?transport.defaultHeartBeat=3000,3000"

[[connectors]]
uri = "tcp://127.0.0.1:{}"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    broker = BrokerProcess(directory / "data", "a", "--config", str(directory / "settings.toml"))
    broker.openwire = broker.stomp + 1
    broker.leaves_stomp_to_settings = True
    (directory / "settings.toml").write_text(SETTINGS.format(broker.stomp, broker.openwire))
    with serving(broker):
        yield broker


class Client:
    """Says bytes, hears frames as (command, headers, body)."""

    def __init__(self, broker: BrokerProcess, version: str = "1.2") -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.stomp), SECONDS_MAX)
        self._file = self.socket.makefile("rb")
        self.say(f"CONNECT\naccept-version:{version}\nhost:x\n")
        self.connected = self.hear()
        assert self.connected[0] == "CONNECTED"

    def say(self, *heads: str, body: str = "") -> None:
        self.socket.sendall("".join(f"{head}\n{body}\0" for head in heads).encode())

    def hear(self) -> tuple[str, dict[str, str], str]:
        while (line := self._file.readline()) == b"\n":
            continue
        if not line:
            raise EOFError
        headers: dict[str, str] = {}
        while header := self._file.readline().decode().rstrip("\n"):
            name, _, value = header.partition(":")
            headers.setdefault(name, value)
        length = int(headers.get("content-length", 0))
        body = self._file.read(length) if length else b""
        while (byte := self._file.read(1)) != b"\0":
            body += byte
        return line.decode().rstrip("\n"), headers, body.decode()

    def store(self, queue: str, *bodies: str) -> None:
        for body in bodies:
            self.say(f"SEND\ndestination:{queue}\npersistent:true\nreceipt:stored\n", body=body)
            assert self.hear()[0] == "RECEIPT"

    def bodies(self, queue: str, id: str = "look") -> list[str]:
        """What the queue holds."""
        self.say(f"SUBSCRIBE\nid:{id}\ndestination:{queue}\nbrowser:true\n")
        found = []
        while (frame := self.hear())[1].get("browser") != "end":
            found.append(frame[2])
        return found

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.mark.promise("stomp-acknowledges")
@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_acks_of_a_transaction_may_come_in_any_order(broker: BrokerProcess, mode: str) -> None:
    client, queue = Client(broker, "1.1"), f"/queue/order.{mode}"
    client.store(queue, "1", "2")
    client.say("BEGIN\ntransaction:t\n", f"SUBSCRIBE\nid:s\ndestination:{queue}\nack:{mode}\n")
    first, second = client.hear(), client.hear()
    for _, headers, _ in (second, first):
        client.say(f"ACK\nsubscription:s\nmessage-id:{headers['message-id']}\ntransaction:t\n")
    client.say("COMMIT\ntransaction:t\nreceipt:done\n")
    assert client.hear()[1] == {"receipt-id": "done"}
    client.say("UNSUBSCRIBE\nid:s\n")
    assert client.bodies(queue) == []
    client.close()


@pytest.mark.promise("stomp-acknowledges")
def test_nack_of_the_mode_client_is_for_all_up_to_that_one(broker: BrokerProcess) -> None:
    client, queue = Client(broker), "/queue/nack"
    client.store(queue, "1", "2", "3")
    client.say(f"SUBSCRIBE\nid:s\ndestination:{queue}\nack:client\n")
    tags = [client.hear()[1]["ack"] for _ in range(3)]
    client.say(f"NACK\nid:{tags[1]}\nreceipt:done\n")
    assert client.hear()[1] == {"receipt-id": "done"}
    client.say("UNSUBSCRIBE\nid:s\n")
    assert client.bodies("/queue/ActiveMQ.DLQ.Queue.nack") == ["1", "2"]
    assert client.bodies(queue, "rest") == ["3"]
    client.close()


@pytest.mark.promise("stomp-versions")
def test_1_0_has_the_heart_beat_of_its_connector(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.stomp), SECONDS_MAX) as old:
        old.sendall(b"CONNECT\n\n\0")
        assert b"heart-beat:3000,3000" in old.recv(1000)


@pytest.mark.promise("stomp-versions")
def test_1_0_unsubscribes_by_destination(broker: BrokerProcess) -> None:
    client = Client(broker, "1.0")
    client.say("SUBSCRIBE\ndestination:/queue/old\n", "UNSUBSCRIBE\ndestination:/queue/old\nreceipt:gone\n")
    assert client.hear()[1] == {"receipt-id": "gone"}
    client.store("/queue/old", "x")
    new = Client(broker)
    assert new.bodies("/queue/old") == ["x"]
    client.close()
    new.close()


def test_an_advisory_has_a_body(broker: BrokerProcess) -> None:
    client = Client(broker)
    client.say("SUBSCRIBE\nid:a\ndestination:/topic/ActiveMQ.Advisory.Consumer.Queue.advised\nreceipt:here\n")
    assert client.hear()[0] == "RECEIPT"
    client.say("SUBSCRIBE\nid:b\ndestination:/queue/advised\n")
    _, headers, body = client.hear()
    assert headers["transformation"] == "jms-advisory-json"
    assert re.match(r'\{"ConsumerInfo":\{.*"advised"', body)
    client.close()


def test_a_java_text_that_is_damaged_is_a_dead_letter_with_the_cause(broker: BrokerProcess) -> None:
    client = Client(broker)
    client.say("SUBSCRIBE\nid:s\ndestination:/queue/damaged\nreceipt:here\n")
    assert client.hear()[0] == "RECEIPT"
    assert broker.openwire is not None
    java = OpenWire(broker.openwire).connect()
    java.send(queue("damaged"), content=struct.pack(">i", 9) + b"x")
    client.store("/queue/damaged", "next")
    assert client.hear()[2] == "next"
    java.consume(queue("ActiveMQ.DLQ.Queue.damaged"))
    properties = java.next_message().marshalled_properties or b""
    assert b"dlqDeliveryFailureCause" in properties
    assert b"has 1" in properties
    client.close()
    java.close()
