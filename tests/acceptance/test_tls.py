"""TLS of a running broker: clients and commands as they are used, wrong certificates, and files that change."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.admin.places import PLACES
from tandemmq.client import Client, NoBroker, TlsError, tls_context
from tandemmq.client.tls import TlsFiles
from tests.interop.conftest import classes as classes  # the fixture
from tests.support import forked
from tests.support.acceptance.broker_process import serving, tandemmq, wait_until
from tests.support.acceptance.encrypted_broker import CONNECT, CONNECTIONS_MAX, PASSWORD, Encrypted
from tests.support.interop.jms.jvm import JmsError, Jvm
from tests.support.security.authority import Authority
from tests.support.tree import ROOT


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[object, str], None]
) -> Iterator[Encrypted]:
    require_program(shutil.which("openssl"), "no openssl in the path")
    with serving(Encrypted(tmp_path_factory.mktemp("encrypted"))) as (broker,):
        yield broker


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


@pytest.mark.promise("tls")
def test_a_certificate_that_expires_soon_is_in_log_status_and_metrics(broker: Encrypted) -> None:
    file = str(broker.authority.directory / "broker.pem")  # two days old at most, as all of a test
    broker.wait_log(f"{file}: a certificate expires on")
    status = broker.status()
    assert status is not None
    assert [each for each in status["warnings"] if each.startswith(f"{file}: a certificate expires on")]
    assert file in [each["file"] for each in status["certificates"]]
    scrape = urllib.request.Request(f"{broker.admin_url}/metrics", headers=broker.authorization)
    text = urllib.request.urlopen(scrape, context=broker.context()).read().decode()
    assert f'tandemmq_certificate_remaining_seconds{{file="{file}",kind="certificate"}}' in text
    assert "tandemmq_certificates_expiring 2.0" in text


@pytest.mark.promise("tls")
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_version_is_refused(broker: Encrypted) -> None:
    context = broker.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):  # noqa: PT011
        broker.ask(context)
    broker.wait_log("UNSUPPORTED_PROTOCOL")


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


def url_of(broker: Encrypted) -> str:
    """Return a URL with an address before it at which no broker listens."""
    here = f"stomp+ssl://127.0.0.1:{broker.need_stomp}"
    return f"failover:(stomp+ssl://127.0.0.1:1,{here})?startupMaxReconnectAttempts=2"


def test_send_and_receive_show_their_certificate(broker: Encrypted) -> None:
    how = ("--url", url_of(broker), "--ca-file", broker.ca, "--cert", broker.own)
    sent = tandemmq("send", "ORDERS.TLS", "hello", *how)
    assert sent.returncode == 0, sent.stderr
    assert f"connected to stomp+ssl://127.0.0.1:{broker.need_stomp}" in sent.stderr
    assert tandemmq("receive", "ORDERS.TLS", "--count", "1", *how).stdout == "hello\n"


def test_a_certificate_names_its_host_unless_that_is_not_asked(broker: Encrypted) -> None:
    elsewhere = ("--url", f"stomp+ssl://localhost:{broker.need_stomp}", "--ca-file", broker.ca, "--cert", broker.own)
    refused = tandemmq("send", "ORDERS.HOST", "hello", *elsewhere)
    assert refused.returncode == 3
    assert "Hostname mismatch" in refused.stderr
    assert tandemmq("send", "ORDERS.HOST", "hello", *elsewhere, "--no-check-host").returncode == 0


async def test_the_client_of_programs_speaks_tls(broker: Encrypted) -> None:
    async with Client(url_of(broker), tls=tls_context(broker.ca, broker.own)) as client:
        await client.send_confirmed("/queue/ORDERS.CLIENT", b"x" * 200_000)
        subscription = await client.subscribe("/queue/ORDERS.CLIENT")
        message = await subscription.receive(20)
        assert message is not None
        assert len(message.body) == 200_000
        await client.acknowledge(message)
    with pytest.raises(NoBroker, match="not trusted"):
        await Client(f"stomp+ssl://127.0.0.1:{broker.need_stomp}").connect()


def test_files_that_are_no_certificates_are_named(broker: Encrypted, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    with pytest.raises(TlsError, match=r"wrong\.pem: no certificates"):
        tls_context(str(wrong))
    with pytest.raises(TlsError, match=r"wrong\.pem: no certificate with its key"):
        tls_context(broker.ca, str(wrong))
    locked = broker.authority.certificate("locked", password="word")
    with pytest.raises(TlsError, match=r"locked\.pem"):
        tls_context(broker.ca, str(locked))
    assert isinstance(tls_context(broker.ca, str(locked), key_password="word"), ssl.SSLContext)
    done = tandemmq("status", "--admin", broker.admin_url, "--ca-file", str(wrong), "--json")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (2, 2)


def test_tasks_of_a_replay_speak_tls(broker: Encrypted, tmp_path: Path) -> None:
    """By the files that the round of their ledger names."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra spark")
    from tandemmq.pipeline.sending.slices import send_task
    from tests.support.pipeline.sending_plans import plan_of, row

    rows = [row(number, "ORDERS.AGAIN") for number in range(1, 11)]
    trusting = plan_of(tmp_path / "trusting", rows, url_of(broker), tls=TlsFiles(broker.ca, broker.own))
    assert send_task(str(trusting.directory), 0) == 10
    strange = plan_of(tmp_path / "strange", rows, url_of(broker))
    with pytest.raises(NoBroker, match="not trusted"):
        send_task(str(strange.directory), 0)


@pytest.mark.parametrize("size", [1024, 100_000])
def test_bench_speaks_tls(broker: Encrypted, size: int) -> None:
    """Bodies that are one record, and several."""
    url = f"stomp+ssl://127.0.0.1:{broker.need_stomp}"
    how = ("--url", url, "--ca-file", broker.ca, "--cert", broker.own)
    done = tandemmq("bench", "--count", "300", "--size", str(size), *how, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["sent"], figures["received"]) == (300, 300)


def test_the_admin_server_is_asked_by_https(broker: Encrypted) -> None:
    done = tandemmq("status", "--admin", broker.admin_url, "--ca-file", broker.ca, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["role"] == "master"
    lock = tandemmq("lock", "status", "--admin", broker.admin_url, "--ca-file", broker.ca, "--json")
    assert json.loads(lock.stdout)["holder"]["admin"] == broker.admin_url


def test_it_knows_who_asks_by_his_certificate(broker: Encrypted) -> None:
    def who_am_i(context: ssl.SSLContext) -> dict[str, Any]:
        with urllib.request.urlopen(f"{broker.admin_url}/api/v1/session", timeout=20, context=context) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    assert who_am_i(tls_context(broker.ca, broker.own)).items() >= {"name": "orders", "role": "admin"}.items()
    assert who_am_i(tls_context(broker.ca))["role"] == "nobody"
    strange = str(broker.authority.certificate("nobody"))
    assert who_am_i(tls_context(broker.ca, strange))["role"] == "nobody"


def test_it_says_what_is_wrong_with_the_address(broker: Encrypted) -> None:
    untrusted = tandemmq("status", "--admin", broker.admin_url)
    assert untrusted.returncode == 3
    assert "its certificate is not trusted" in untrusted.stderr
    plain = tandemmq("status", "--admin", broker.admin_url.replace("https", "http"))
    assert plain.returncode == 3
    assert "Traceback" not in plain.stderr


def test_handshakes_at_the_admin_server_that_never_go_on_hold_up_nobody(broker: Encrypted) -> None:
    """There are more handshakes than places. All stay open while other clients send requests."""
    with contextlib.ExitStack() as silent:
        for _ in range(PLACES + 6):
            silent.enter_context(socket.create_connection(("127.0.0.1", broker.admin), 20))
        for _ in range(3):
            done = tandemmq("status", "--admin", broker.admin_url, "--ca-file", broker.ca)
            assert done.returncode == 0, done.stderr
    broker.wait_log(f"more than {PLACES} handshakes at once, one dropped")


@pytest.mark.parametrize("way", ["file", "fifo", "environment", "argument"])
def test_a_password_is_taken_from_where_it_is_left(broker: Encrypted, tmp_path: Path, way: str) -> None:
    """Asked for what wants admin rights."""
    options, environment = [], {**os.environ}
    if way == "file":
        (tmp_path / "word").write_text(f"{PASSWORD}\nnot this\n")
        options = ["--passcode-file", str(tmp_path / "word")]
    elif way == "fifo":
        reader, writer = os.pipe()
        os.write(writer, f"{PASSWORD}\n".encode())
        os.close(writer)
        options = ["--passcode-file", f"/dev/fd/{reader}"]
    elif way == "environment":
        environment["TANDEMMQ_PASSCODE"] = PASSWORD
    else:
        options = ["--passcode", PASSWORD]
    done = asked(broker, *options, environment=environment, keep=(reader,) if way == "fifo" else ())
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing to gain" in done.stdout


def test_a_terminal_is_asked_for_the_password(broker: Encrypted) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        asking(broker), cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as command:
        os.close(theirs)
        said = _until(ours, b"Passcode of alice: ")
        os.write(ours, f"{PASSWORD}\n".encode())  # what was typed before would be thrown away
        said += _until(ours, b"nothing to gain")
        command.wait(60)
    os.close(ours)
    assert PASSWORD.encode() not in said


def _until(terminal: int, wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        assert select.select([terminal], [], [], 60)[0], said
        said += os.read(terminal, 4096)
    return said


def asking(broker: Encrypted, *options: str) -> list[str]:
    where = ["--admin", broker.admin_url, "--ca-file", broker.ca, "--login", "alice"]
    return [sys.executable, "-m", "tandemmq", "store", "compact", *where, *options]


def asked(
    broker: Encrypted, *options: str, environment: dict[str, str] | None = None, keep: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return forked.run(asking(broker, *options), cwd=ROOT, env=environment, pass_fds=keep, timeout=60)


@pytest.mark.parametrize(
    ("option", "reason"),
    [("--cert", "its certificate is not trusted"), ("--ca-file", "does it require a client certificate")],
)
def test_a_broker_that_does_not_trust_or_is_not_trusted_ends_with_3(
    broker: Encrypted, option: str, reason: str
) -> None:
    how = (option, broker.own if option == "--cert" else broker.ca)
    done = tandemmq("send", "ORDERS.TLS", "hello", "--url", url_of(broker), *how)
    assert (done.returncode, done.stdout) == (3, "")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


LONG = "\U0001f600" * 1_000_000  # is translated beside the event loop


@pytest.mark.parametrize("first", ["ascii", LONG], ids=["plain", "translated"])
@pytest.mark.parametrize("ending", ["FIN", "close_notify", "DISCONNECT"])
def test_what_was_sent_before_the_end_is_kept(broker: Encrypted, first: str, ending: str) -> None:
    """Without a receipt, by a client that closes at once."""
    name = f"/queue/ORDERS.end.{ending}.{len(first)}"
    connect = f"CONNECT\naccept-version:1.2\nhost:x\nlogin:alice\npasscode:{PASSWORD}\n\n\0".encode()
    client = broker.open(broker.context())
    client.sendall(connect)
    assert client.recv(1 << 16).startswith(b"CONNECTED")
    for body in (first, *(f"{number}{160_000 * 'x'}" for number in range(9))):
        client.sendall(f"SEND\ndestination:{name}\npersistent:true\n\n{body}\0".encode())
    if ending == "DISCONNECT":
        client.sendall(b"DISCONNECT\n\n\0")
    (client.unwrap() if ending == "close_notify" else client).close()

    def held() -> bool:
        listed = tandemmq("queues", "--filter", name[7:], "--json", "--admin", broker.admin_url, "--ca-file", broker.ca)
        found: list[dict[str, Any]] = json.loads(listed.stdout)["items"]
        return bool(found) and found[0]["messages"] == 10

    wait_until(held, "all ten are there", 10)
