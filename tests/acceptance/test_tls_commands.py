"""Commands and `tandemmq.client` with TLS, against a real broker: doors and admin server that speak nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.client import Client, NoBroker, TlsError, tls_context
from tandemmq.client.tls import TlsFiles
from tests.support import forked
from tests.support.acceptance.broker_process import BrokerProcess, tandemmq
from tests.support.security.authority import Authority
from tests.support.security.passwords import cheap
from tests.support.tree import ROOT

SETTINGS = """\
[[connectors]]
uri = "stomp+ssl://127.0.0.1:{stomp}?needClientAuth=true"

[tls]
certificate = "{certificate}"
ca = "{ca}"
client_auth = "want"

[security]
users_file = "{users}"
failed_login_delay = 0

[[security.authorization]]
queue = ">"
read = ["shops"]
write = ["shops"]
admin = ["shops"]
[[security.authorization]]
topic = ">"
admin = ["shops"]
"""
PASSWORD = "s3cret"
pytestmark = pytest.mark.timeout(120)


class Encrypted(BrokerProcess):
    """Its door wants certificates of clients, its admin server does not; "orders" is known by its certificate."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "data", "a", "--config", str(directory / "tandemmq.toml"))
        self.options += ("--admin", f"https://127.0.0.1:{self.admin}")
        self.leaves_stomp_to_settings = True
        self.directory = directory
        self.authority = Authority(directory, "root")
        self.ca = str(self.authority.root)
        self.own = str(self.authority.certificate("orders"))
        users = directory / "users"
        users.write_text(f"orders:!:shops:CN=orders,O=Example\nalice:{cheap(PASSWORD)}:shops:\n")
        users.chmod(0o600)
        certificate = self.authority.certificate("broker")
        (directory / "tandemmq.toml").write_text(
            SETTINGS.format(stomp=self.stomp, certificate=certificate, ca=self.ca, users=users)
        )

    @property
    def url(self) -> str:
        """With an address at which nobody listens before it."""
        return f"failover:(stomp+ssl://127.0.0.1:1,stomp+ssl://127.0.0.1:{self.stomp})?startupMaxReconnectAttempts=2"

    @property
    def admin_url(self) -> str:
        return f"https://127.0.0.1:{self.admin}"


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[object, str], None]
) -> Iterator[Encrypted]:
    require_program(shutil.which("openssl"), "no openssl in the path")
    broker = Encrypted(tmp_path_factory.mktemp("encrypted"))
    broker.start()
    broker.wait_log("master of epoch")
    yield broker
    assert broker.terminate() == 0
    broker.stop()


def test_send_and_receive_show_their_certificate(broker: Encrypted) -> None:
    how = ("--url", broker.url, "--ca-file", broker.ca, "--cert", broker.own)
    sent = tandemmq("send", "ORDERS.TLS", "hello", *how)
    assert sent.returncode == 0, sent.stderr
    assert f"connected to stomp+ssl://127.0.0.1:{broker.stomp}" in sent.stderr
    assert tandemmq("receive", "ORDERS.TLS", "--count", "1", *how).stdout == "hello\n"


def test_a_certificate_names_its_host_unless_that_is_not_asked(broker: Encrypted) -> None:
    elsewhere = ("--url", f"stomp+ssl://localhost:{broker.stomp}", "--ca-file", broker.ca, "--cert", broker.own)
    refused = tandemmq("send", "ORDERS.HOST", "hello", *elsewhere)
    assert refused.returncode == 3
    assert "Hostname mismatch" in refused.stderr
    assert tandemmq("send", "ORDERS.HOST", "hello", *elsewhere, "--no-check-host").returncode == 0


async def test_the_client_of_programs_speaks_tls(broker: Encrypted) -> None:
    async with Client(broker.url, tls=tls_context(broker.ca, broker.own)) as client:
        await client.send_confirmed("/queue/ORDERS.CLIENT", b"x" * 200_000)
        subscription = await client.subscribe("/queue/ORDERS.CLIENT")
        message = await subscription.receive(20)
        assert message is not None
        assert len(message.body) == 200_000
        await client.acknowledge(message)
    with pytest.raises(NoBroker, match="not trusted"):
        await Client(f"stomp+ssl://127.0.0.1:{broker.stomp}").connect()


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
    trusting = plan_of(tmp_path / "trusting", rows, broker.url, tls=TlsFiles(broker.ca, broker.own))
    assert send_task(str(trusting.directory), 0) == 10
    strange = plan_of(tmp_path / "strange", rows, broker.url)
    with pytest.raises(NoBroker, match="not trusted"):
        send_task(str(strange.directory), 0)


@pytest.mark.parametrize("size", [1024, 100_000])
def test_bench_speaks_tls(broker: Encrypted, size: int) -> None:
    """Bodies that are one record, and several."""
    how = ("--url", broker.url.replace("stomp+ssl://127.0.0.1:1,", ""), "--ca-file", broker.ca, "--cert", broker.own)
    done = tandemmq("bench", "--count", "300", "--size", str(size), *how, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["sent"], figures["received"]) == (300, 300)


# ---- the admin server


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


def test_who_does_not_finish_a_handshake_holds_up_nobody(broker: Encrypted) -> None:
    async def story() -> None:
        silent = [await asyncio.open_connection("127.0.0.1", broker.admin) for _ in range(70)]  # more than are let in
        for _, writer in silent[1:]:
            writer.close()
        done = await asyncio.to_thread(tandemmq, "status", "--admin", broker.admin_url, "--ca-file", broker.ca)
        assert done.returncode == 0, done.stderr
        silent[0][1].close()

    asyncio.run(story())


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
    ("option", "reason"), [("--cert", "its certificate is not trusted"), ("--ca-file", "does it want a certificate")]
)
def test_a_broker_that_does_not_trust_or_is_not_trusted_ends_with_3(
    broker: Encrypted, option: str, reason: str
) -> None:
    how = (option, broker.own if option == "--cert" else broker.ca)
    done = tandemmq("send", "ORDERS.TLS", "hello", "--url", broker.url, *how)
    assert (done.returncode, done.stdout) == (3, "")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
