"""AMQP 1.0 with brokers in separate processes: messages after a failover, a standby's port, certificates and rights."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.amqp import schema
from tandemmq.broker.protocols.amqp.codec import write_composite
from tandemmq.broker.protocols.amqp.types import Described, Symbol, UByte, ULong, Uuid
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.broker.amqp_socket import AmqpSocket, Refused
from tests.support.broker.amqp_wire import header, section, value
from tests.support.interop.jms.stomp_side import StompSide
from tests.support.security.authority import Authority
from tests.support.security.passwords import cheap

UUID = Uuid(bytes(range(16)))
REST = section(0x72, {Symbol("x-a"): UByte(200)}) + write_composite(schema.Properties(message_id=UUID, user_id=b"me"))
MESSAGES = [
    header(durable=True, priority=200) + REST + section(0x74, {"u": UUID}) + value("t\u00ebxt"),
    header(durable=True) + section(0x75, b"a") + section(0x75, b"b") + section(0x78, {Symbol("f"): b"sum"}),
    header(durable=True) + section(0x76, [1, ULong(2)]) + section(0x76, [Symbol("s")]),
    header(durable=True) + value(Described(ULong(99), {UUID: [None]})),
    header(durable=True) + bytes.fromhex("00800000000000000077b10000000178"),  # wider encodings than needed
]


@pytest.mark.promise("confirmed-survives", "protocols-meet")
def test_messages_arrive_byte_for_byte_after_a_failover(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    brokers = [
        BrokerProcess(tmp_path / "data", name, "--amqp", f"127.0.0.1:{port}")
        for name, port in zip("ab", ports, strict=True)
    ]
    with serving(*brokers) as (master, standby):
        with pytest.raises(ConnectionRefusedError):
            AmqpSocket(ports[1])
        client = AmqpSocket(ports[0])
        client.send("for.amqp", *MESSAGES)
        client.send("for.stomp", *MESSAGES[:2])
        master.kill()
        client.drop()
        standby.wait_role("master")
        with AmqpSocket(ports[1]) as other:
            assert other.receive("for.amqp", len(MESSAGES)) == MESSAGES
        stomp = StompSide(standby.stomp)
        stomp.subscribe("/queue/for.stomp")
        assert [stomp.read().body for _ in range(2)] == ["t\u00ebxt".encode(), b"ab"]
        stomp.close()


SETTINGS = """\
[[connectors]]
uri = "amqp+ssl://127.0.0.1:{port}?wantClientAuth=true"

[tls]
certificate = "{certificate}"
ca = "{ca}"

[security]
users_file = "{users}"
allow_anonymous = "false"

[[security.authorization]]
queue = "ORDERS.>"
read = ["shops"]
write = ["shops"]
admin = ["shops"]
"""


@pytest.mark.promise("tls", "rights")
def test_a_certificate_is_a_user(tmp_path: Path, require_program: Callable[[object, str], None]) -> None:
    require_program(shutil.which("openssl"), "no openssl in the path")
    authority, port, users = Authority(tmp_path, "root"), free_port(), tmp_path / "users"
    users.write_text(f"orders:!:shops:CN=orders,O=Example\neve:{cheap('secret')}::\n")
    users.chmod(0o600)
    settings = tmp_path / "tandemmq.toml"
    certificate = authority.certificate("broker")
    settings.write_text(SETTINGS.format(port=port, certificate=certificate, ca=authority.root, users=users))
    broker = BrokerProcess(tmp_path / "data", "a", "--config", str(settings))
    broker.leaves_stomp_to_settings = True

    def context(name: str | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(authority.root))
        if name is not None:
            made.load_cert_chain(authority.certificate(name))
        return made

    with serving(broker):
        with AmqpSocket(port, tls=context("orders")) as client:
            client.send("ORDERS.EU", MESSAGES[0])
            assert client.receive("ORDERS.EU", 1) == MESSAGES[:1]
            with pytest.raises(Refused, match="unauthorized-access"):
                client.send("OTHER", MESSAGES[0])
        for name in ("stranger", None):
            with pytest.raises(Refused):
                AmqpSocket(port, tls=context(name))
