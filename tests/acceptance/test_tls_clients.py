"""TLS of a running broker: clients as they are used, certificates that are wrong, and files that change under it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.interop.conftest import classes as classes  # the fixture
from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.interop.jms.jvm import JmsError, Jvm
from tests.support.security.authority import Authority
from tests.support.security.passwords import cheap

CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
CONNECTIONS_MAX = 20
SETTINGS = """\
[[connectors]]
uri = "stomp+ssl://127.0.0.1:{stomp}?maximumConnections={max}"
[[connectors]]
uri = "ssl://127.0.0.1:{openwire}"
[[connectors]]
uri = "ssl://127.0.0.1:{need}?needClientAuth=true"
[[connectors]]
uri = "stomp+ssl://127.0.0.1:{need_stomp}?needClientAuth=true"

[tls]
certificate = "{certificate}"
ca = "{ca}"
client_auth = "want"
handshake_timeout = 2000

[security]
users_file = "{users}"

[[security.authorization]]
queue = "ORDERS.>"
read = ["shops"]
write = ["shops"]
admin = ["shops"]
"""


class Encrypted(BrokerProcess):
    """A broker that speaks TLS alone; "orders" is known by its certificate, alice by her password."""

    def __init__(self, directory: Path) -> None:
        settings, users = directory / "tandemmq.toml", directory / "users"
        super().__init__(directory / "data", "a", "--config", str(settings))
        self.leaves_stomp_to_settings = True
        self.openwire, self.need, self.need_stomp = free_port(), free_port(), free_port()
        self.authority = Authority(directory, "root")
        self.certificate = self.authority.certificate("broker")
        users.write_text(f"orders:!:shops:CN=orders,O=Example\nalice:{cheap('secret')}:shops:\n")
        users.chmod(0o600)
        settings.write_text(
            SETTINGS.format(
                stomp=self.stomp, openwire=self.openwire, need=self.need, need_stomp=self.need_stomp,
                certificate=self.certificate, ca=self.authority.root, users=users, max=CONNECTIONS_MAX,
            )
        )  # fmt: skip

    def context(self, certificate: Path | None = None, **changes: Any) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.root))
        if certificate is not None:
            context.load_cert_chain(certificate)
        for name, value in changes.items():
            setattr(context, name, value)
        return context

    def open(self, context: ssl.SSLContext, port: int | None = None) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port or self.stomp), 20)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def ask(self, context: ssl.SSLContext, port: int | None = None, frame: bytes = CONNECT) -> bytes:
        """The first that is answered to a frame; OSError when there is no connection."""
        with self.open(context, port) as client:
            client.sendall(frame)
            heard = client.recv(1 << 16)
            if not heard:
                raise ConnectionError("hung up")
            return heard


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[object, str], None]
) -> Iterator[Encrypted]:
    require_program(shutil.which("openssl"), "no openssl in the path")
    with serving(Encrypted(tmp_path_factory.mktemp("encrypted"))) as (broker,):
        yield broker


# ---- clients as they are used


@pytest.mark.service
@pytest.mark.timeout(180)
def test_the_java_client_with_a_truststore_and_a_certificate(
    broker: Encrypted, classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, own = tmp_path / "trusted.p12", tmp_path / "own.p12"
    certificate = broker.authority.certificate("orders")
    _run("keytool", "-importcert", "-noprompt", "-file", str(broker.authority.root), "-alias", "root",
         "-keystore", str(trusted), "-storetype", "PKCS12", "-storepass", "changeit")  # fmt: skip
    _run("openssl", "pkcs12", "-export", "-in", str(certificate), "-out", str(own), "-passout", "pass:changeit")
    options = {"trustStore": trusted, "trustStorePassword": "changeit", "keyStore": own, "keyStorePassword": "changeit"}
    monkeypatch.setenv(
        "JDK_JAVA_OPTIONS", " ".join(f"-Djavax.net.ssl.{name}={value}" for name, value in options.items())
    )
    jvm = Jvm(classes)
    try:
        for url in (f"ssl://127.0.0.1:{broker.need}", f"failover:(ssl://127.0.0.1:{broker.openwire})"):
            connection = jvm.connect(url)  # says no name: the certificate does
            session = connection.session()
            session.send("queue://ORDERS.TLS", "hello")
            consumer = session.consumer("queue://ORDERS.TLS")
            assert consumer.receive().body == "hello"
            with pytest.raises(JmsError) as refused:
                session.send("queue://SECRETS", "x")
            assert refused.value.kind == "JMSSecurityException"
            session.send("queue://ORDERS.TLS", "goes on")
            assert consumer.receive().body == "goes on"
            connection.close()
        with pytest.raises(JmsError) as refused:
            jvm.connect(f"ssl://127.0.0.1:{broker.openwire}", user="alice", password="guess")
        assert refused.value.kind == "JMSSecurityException"
    finally:
        jvm.close()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- who is who


@pytest.mark.promise("tls")
def test_a_certificates_subject_is_a_user_and_none_is_anonymous(broker: Encrypted) -> None:
    sent = CONNECT + b"SEND\ndestination:/queue/ORDERS.X\nreceipt:r\n\nx\0"

    def answers(context: ssl.SSLContext) -> bytes:
        with broker.open(context) as client:
            client.sendall(sent)
            heard = b""
            while b"receipt-id:r" not in heard:
                heard += client.recv(1 << 16)
            return heard

    assert b"RECEIPT" in answers(broker.context(broker.authority.certificate("orders")))
    assert b"User anonymous is not authorized" in answers(broker.context())
    assert b"User anonymous is not authorized" in answers(broker.context(broker.authority.certificate("unknown")))


@pytest.mark.promise("tls")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_must_show_a_certificate_and_has_none_or_a_wrong_one_gets_nowhere(
    broker: Encrypted, version: ssl.TLSVersion
) -> None:
    others = Authority(broker.authority.directory, f"others{int(version)}")
    assert broker.ask(broker.context(broker.authority.certificate("orders")), broker.need_stomp).startswith(b"CONN")
    for certificate in (None, others.certificate("orders", at=f"stranger{int(version)}")):
        with pytest.raises(OSError):  # noqa: PT011 an alert, a reset or an end, as the version has it
            broker.ask(broker.context(certificate, maximum_version=version), broker.need_stomp)
    broker.wait_log("PEER_DID_NOT_RETURN_A_CERTIFICATE")
    broker.wait_log("CERTIFICATE_VERIFY_FAILED")


@pytest.mark.promise("tls")
def test_an_expired_certificate_is_none(broker: Encrypted) -> None:
    directory, name = broker.authority.directory, "late"
    made = broker.authority.certificate(name)
    _run("openssl", "x509", "-req", "-in", str(directory / f"{name}.csr"), "-CA", str(broker.authority.root),
         "-CAkey", str(broker.authority.key), "-days", "-1", "-copy_extensions", "copy",
         "-out", str(directory / f"{name}.crt"))  # fmt: skip
    made.write_bytes((directory / f"{name}.crt").read_bytes() + (directory / f"{name}.key").read_bytes())
    with pytest.raises(OSError):  # noqa: PT011
        broker.ask(broker.context(made), broker.need_stomp)


def test_a_client_that_trusts_another_authority_hangs_up(broker: Encrypted) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        broker.ask(ssl.create_default_context())
    broker.wait_log("UNKNOWN_CA")


@pytest.mark.promise("tls")
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_version_is_refused(broker: Encrypted) -> None:
    context = broker.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):  # noqa: PT011
        broker.ask(context)
    broker.wait_log("UNSUPPORTED_PROTOCOL")


# ---- no TLS at all


def test_plain_text_is_told_in_the_log_and_costs_no_place(broker: Encrypted) -> None:
    for _ in range(2 * CONNECTIONS_MAX):
        with socket.create_connection(("127.0.0.1", broker.stomp), 20) as client:
            client.sendall(CONNECT)
            try:
                while client.recv(1 << 16):
                    pass
            except ConnectionError:
                pass
    broker.wait_log("connector stomp+ssl: no TLS with 127.0.0.1:", 2 * CONNECTIONS_MAX)
    assert broker.ask(broker.context()).startswith(b"CONNECTED")


def test_who_begins_no_handshake_has_a_time_and_a_bound(broker: Encrypted) -> None:
    silent = [socket.create_connection(("127.0.0.1", broker.stomp), 20) for _ in range(CONNECTIONS_MAX + 1)]
    broker.wait_log(f"more than {CONNECTIONS_MAX} handshakes at once, one dropped")
    for each in silent:
        try:
            assert each.recv(100) == b""
        except ConnectionError:
            pass
        each.close()

    def is_answered() -> bool:
        try:
            return broker.ask(broker.context()).startswith(b"CONNECTED")
        except ConnectionError:  # the last of them are closed, and not forgotten yet
            return False

    wait_until(is_answered, "there is room for another one")


# ---- what changes while it runs


@pytest.mark.parametrize(
    "is_asked",
    [
        pytest.param(False, id="looks by itself"),
        pytest.param(True, id="SIGHUP", marks=pytest.mark.promise("certificates-are-reloaded")),
    ],
)
def test_a_new_certificate_holds_for_who_comes_later(broker: Encrypted, is_asked: bool) -> None:
    name = f"renewed{is_asked}"
    with broker.open(broker.context()) as there:
        there.sendall(CONNECT)
        assert there.recv(100).startswith(b"CONNECTED")
        made = broker.authority.certificate(name)
        os.replace(made, broker.certificate)
        if is_asked:
            broker.kill(signal.SIGHUP)
        wait_until(lambda: _subject(broker) == name, "the new certificate is shown")
        there.sendall(b"DISCONNECT\nreceipt:still\n\n\0")
        assert b"receipt-id:still" in there.recv(100)


def _subject(broker: Encrypted) -> str:
    with broker.open(broker.context()) as client:
        shown = client.getpeercert()
        assert shown is not None
        return dict(part for parts in shown["subject"] for part in parts)["commonName"]  # type: ignore[misc]


def test_a_certificate_that_is_wrong_changes_nothing(broker: Encrypted) -> None:
    right = broker.certificate.read_bytes()
    before = _subject(broker)
    broker.certificate.write_bytes(b"no certificate\n")
    broker.wait_log("TLS stays as it was")
    assert _subject(broker) == before
    broker.certificate.write_bytes(right)
