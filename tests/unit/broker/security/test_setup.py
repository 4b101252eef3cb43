"""Settings take effect as the operator wrote them."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.broker.core.access import Credentials, OpenAccess, Operation
from tandemmq.broker.core.commands import ClientError
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security.logins import Logins
from tandemmq.broker.security.setup import access_of, tls_of
from tandemmq.config.errors import RefusedSetting
from tandemmq.config.load import load
from tandemmq.config.settings import ConnectorSettings, Settings
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.security.authority import Authority

QUEUE = DestinationKind.QUEUE
Read = Callable[[str], Settings]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_read(text: str) -> Settings:
        (tmp_path / "tandemmq.toml").write_text(text)
        return load(str(tmp_path / "tandemmq.toml"), {})

    return write_and_read


# ---- access


def test_without_security_this_machine_is_served() -> None:
    answers: list[Principal | ClientError] = []
    for text in (None, "true"):
        access = access_of(load(None, {}, [] if text is None else [f"security.allow_anonymous={text}"]))
        assert isinstance(access, OpenAccess)
        access.connect(Credentials("10.0.0.1:1", "alice", "x"), answers.append)
    refused, served = answers
    assert isinstance(refused, ClientError)
    assert "security.users_file" in refused.detail
    assert isinstance(served, Principal)


async def test_users_rights_and_the_anonymous_are_as_was_said(read: Read, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("orders:!:shops:CN=orders\n")
    access = access_of(
        read(f"""
[security]
users_file = "{tmp_path / "users"}"
allow_anonymous = true
anonymous_user = "guest"
anonymous_group = "guests"
[[security.authorization]]
queue = "A"
read = "guests"
write = ["shops"]
admin = "*"
""")
    )
    assert isinstance(access, Logins)
    answers: list[Principal | ClientError] = []
    access.connect(Credentials("10.0.0.1:1"), answers.append)
    access.connect(Credentials("10.0.0.1:1", certificate="CN=orders"), answers.append)
    guest, shop = answers
    assert guest == Principal("guest", frozenset({"guests"}))
    assert shop == Principal("orders", frozenset({"shops"}))
    queue = Destination(QUEUE, "A")
    access.check(guest, Operation.READ, queue)
    access.check(shop, Operation.WRITE, queue)
    access.check(guest, Operation.CREATE, queue)
    with pytest.raises(ClientError, match="User guest is not authorized to write to: queue://A"):
        access.check(guest, Operation.WRITE, queue)
    access.close()


def test_rights_without_users_hold_for_the_anonymous(read: Read) -> None:
    access = access_of(read("[[security.authorization]]\nqueue = '>'\nread = 'anonymous'"))
    answers: list[Principal | ClientError] = []
    access.connect(Credentials("127.0.0.1:1", "admin", "x"), answers.append)
    (who,) = answers
    assert isinstance(who, Principal)
    assert who.name == "anonymous"  # no name is believed where none can be proved
    access.check(who, Operation.READ, Destination(QUEUE, "A"))
    with pytest.raises(ClientError, match="not authorized"):
        access.check(who, Operation.WRITE, Destination(QUEUE, "A"))


def test_a_file_of_users_that_is_wrong_stops_the_start(read: Read, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("alice:secret:\n")
    for name, text in (("users", "line 1: expected a hash"), ("none", "cannot be read: No such file")):
        with pytest.raises(RefusedSetting, match=f"security.users_file = .*{text}") as refused:
            access_of(read(f"[security]\nusers_file = '{tmp_path / name}'"))
        assert "secret" not in str(refused.value)


# ---- TLS


def listening(uri: str, *overrides: str) -> tuple[ConnectorSettings, Settings]:
    connector = ConnectorSettings(uri=uri)
    return connector, load(None, {}, overrides)


def test_a_connector_without_tls_has_none() -> None:
    assert tls_of(*listening("stomp://127.0.0.1:1")) is None
    assert tls_of(*listening("nio://127.0.0.1:1")) is None


def test_a_connector_has_the_files_of_all_or_its_own(authority: Authority) -> None:
    ours, own = authority.certificate("ours"), authority.certificate("own")
    common = [f"tls.certificate={ours}", f"tls.key={ours}", f"tls.ca={authority.root}", "tls.minimum_version=TLSv1.3"]
    tls = tls_of(*listening("stomp+ssl://h:1", *common))
    assert tls is not None
    assert tls.context.verify_mode is ssl.CERT_NONE
    assert tls.context.minimum_version is ssl.TLSVersion.TLSv1_3
    # With a separate certificate, the key of [tls] is not used.
    query = f"tls.certificate={own}&needClientAuth=true&transport.enabledProtocols=TLSv1.2,TLSv1.3"
    other = tls_of(*listening(f"ssl://h:1?{query}", *common))
    assert other is not None
    assert other.context.verify_mode is ssl.CERT_REQUIRED
    assert other.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_tls_that_cannot_be_had_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(RefusedSetting, match=r"refused: ssl needs a certificate: set tls\.certificate"):
        tls_of(*listening("ssl://h:1"))
    with pytest.raises(RefusedSetting, match=r"none\.pem: no certificate with its key: No such file"):
        tls_of(*listening(f"ssl://h:1?tls.certificate={tmp_path / 'none.pem'}"))
