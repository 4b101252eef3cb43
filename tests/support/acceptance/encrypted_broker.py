"""A broker process that accepts only TLS, and the TLS settings of its clients."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.security.authority import Authority
from tests.support.security.passwords import cheap

CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
CONNECTIONS_MAX = 20
PASSWORD = "s3cret"
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
failed_login_delay = 0

[[security.authorization]]
queue = "ORDERS.>"
read = ["shops"]
write = ["shops"]
admin = ["shops"]
[[security.authorization]]
queue = "bench.>"
read = ["shops"]
write = ["shops"]
[[security.authorization]]
queue = ">"
admin = ["shops"]
[[security.authorization]]
topic = ">"
admin = ["shops"]
"""


class Encrypted(BrokerProcess):
    """The user "orders" logs in with a certificate, alice with a password. ``need`` and ``need_stomp``: ports of
    listeners that require a client certificate. The admin server does not require one."""

    def __init__(self, directory: Path) -> None:
        settings, users = directory / "tandemmq.toml", directory / "users"
        super().__init__(directory / "data", "a", "--config", str(settings))
        self.admin_url = f"https://127.0.0.1:{self.admin}"
        self.options += ("--admin", self.admin_url)
        self.leaves_stomp_to_settings = True
        self.openwire, self.need, self.need_stomp = free_port(), free_port(), free_port()
        self.authority = Authority(directory, "root")
        self.ca = str(self.authority.root)
        self.certificate = self.authority.certificate("broker")
        self.own = str(self.authority.certificate("orders"))
        users.write_text(f"orders:!:shops:CN=orders,O=Example\nalice:{cheap(PASSWORD)}:shops:\n")
        users.chmod(0o600)
        settings.write_text(
            SETTINGS.format(
                stomp=self.stomp, openwire=self.openwire, need=self.need, need_stomp=self.need_stomp,
                certificate=self.certificate, ca=self.ca, users=users, max=CONNECTIONS_MAX,
            )
        )  # fmt: skip

    def context(self, certificate: Path | None = None, **changes: Any) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if certificate is not None:
            context.load_cert_chain(certificate)
        for name, value in changes.items():
            setattr(context, name, value)
        return context

    def status(self) -> dict[str, Any] | None:
        try:
            request = urllib.request.Request(f"{self.admin_url}/status", headers=self.authorization)
            with urllib.request.urlopen(request, timeout=2, context=self.context()) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return None

    def open(self, context: ssl.SSLContext, port: int | None = None) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port or self.stomp), 20)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def ask(self, context: ssl.SSLContext, port: int | None = None, frame: bytes = CONNECT) -> bytes:
        """Return the first bytes of the answer to a frame. OSError: no connection."""
        with self.open(context, port) as client:
            client.sendall(frame)
            heard = client.recv(1 << 16)
            if not heard:
                raise ConnectionError("hung up")
            return heard
