"""TLS with certificates that openssl made, over real sockets of a real loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.broker.security.tls import Tls, TlsError, TlsPlan, make_context, subject
from tests.support.security.authority import Authority

pytestmark = pytest.mark.promise("tls", "certificates-are-reloaded")


class Echo:
    """A server that says who came: the subject of the client's certificate."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls

    async def __aenter__(self) -> Echo:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=self._tls.context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(f"{subject(writer.get_extra_info('peercert'))}\n".encode())
        await writer.drain()
        writer.close()

    async def ask(self, client: ssl.SSLContext) -> tuple[str, str]:
        """Return the server's answer, and its certificate's subject. Raises OSError if the handshake failed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=client)
        try:
            writer.write(b"\n")
            answer = await reader.readline()
            if not answer:
                raise ConnectionResetError("hung up")
            return answer.decode().strip(), subject(writer.get_extra_info("peercert")) or ""
        finally:
            writer.close()


def client(trusted: Authority, certificate: Path | None = None, **changes: object) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(trusted.root))
    if certificate is not None:
        context.load_cert_chain(certificate)
    for name, value in changes.items():
        setattr(context, name, value)
    return context


async def test_the_certificate_identifies_the_broker(authority: Authority) -> None:
    plan = TlsPlan(str(authority.certificate("broker")))
    async with Echo(Tls(plan)) as echo:
        assert await echo.ask(client(authority)) == ("None", "CN=broker,O=Example")
        with pytest.raises(ssl.SSLCertVerificationError):
            await echo.ask(ssl.create_default_context())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("client_auth", ["none", "want", "need"])
async def test_a_clients_certificate_is_welcome_or_needed(
    authority: Authority, client_auth: str, version: ssl.TLSVersion
) -> None:
    plan = TlsPlan(str(authority.certificate("broker")), ca=str(authority.root), client_auth=client_auth)
    orders, stranger = authority.certificate("orders"), Authority(authority.directory, "other").certificate("stranger")
    async with Echo(Tls(plan)) as echo:
        answer, _ = await echo.ask(client(authority, orders, maximum_version=version))
        assert answer == ("None" if client_auth == "none" else "CN=orders,O=Example")
        if client_auth == "need":
            with pytest.raises(OSError):  # noqa: PT011 an alert, a reset or an end, as the version has it
                await echo.ask(client(authority, maximum_version=version))
        else:
            assert (await echo.ask(client(authority, maximum_version=version)))[0] == "None"
        if client_auth != "none":
            with pytest.raises(OSError):  # noqa: PT011
                await echo.ask(client(authority, stranger, maximum_version=version))


async def test_an_old_protocol_is_refused(authority: Authority) -> None:
    plan = TlsPlan(str(authority.certificate("broker")), minimum_version="TLSv1.3")
    async with Echo(Tls(plan)) as echo:
        with pytest.raises(OSError):  # noqa: PT011
            await echo.ask(client(authority, maximum_version=ssl.TLSVersion.TLSv1_2))
        assert (await echo.ask(client(authority)))[0] == "None"


# ---- changes while it listens


def refresh(tls: Tls) -> None:
    """Refresh as often as a broker does until a file that no longer changes takes effect."""
    tls.refresh()
    tls.refresh()


async def test_a_new_certificate_holds_for_who_comes_later(authority: Authority) -> None:
    path = authority.certificate("broker")
    tls = Tls(TlsPlan(str(path)))
    async with Echo(tls) as echo:
        assert (await echo.ask(client(authority)))[1] == "CN=broker,O=Example"
        authority.certificate("renewed", at="broker")
        refresh(tls)
        assert (await echo.ask(client(authority)))[1] == "CN=renewed,O=Example"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_another_authority_holds_for_who_comes_later(authority: Authority, version: ssl.TLSVersion) -> None:
    other = Authority(authority.directory, "other")
    trusted = authority.directory / "trusted.pem"
    trusted.write_bytes(authority.root.read_bytes())
    tls = Tls(TlsPlan(str(authority.certificate("broker")), ca=str(trusted), client_auth="need"))
    ours = client(authority, authority.certificate("orders"), maximum_version=version)
    theirs = client(authority, other.certificate("stranger"), maximum_version=version)
    async with Echo(tls) as echo:
        assert (await echo.ask(ours))[0] == "CN=orders,O=Example"
        with pytest.raises(OSError):  # noqa: PT011
            await echo.ask(theirs)
        trusted.write_bytes(other.root.read_bytes() + b"\n")
        refresh(tls)
        assert (await echo.ask(theirs))[0] == "CN=stranger,O=Example"
        with pytest.raises(OSError):  # noqa: PT011
            await echo.ask(ours)


async def test_a_certificate_that_was_revoked_is_refused_from_the_next_look_on(authority: Authority) -> None:
    trusted = authority.directory / "trusted.pem"
    trusted.write_bytes(authority.root.read_bytes() + authority.revocations())
    broker, orders = authority.certificate("broker"), authority.certificate("orders")
    tls = Tls(TlsPlan(str(broker), ca=str(trusted), client_auth="need", check_revocation=True))
    async with Echo(tls) as echo:
        assert (await echo.ask(client(authority, orders)))[0] == "CN=orders,O=Example"
        authority.revoke("orders")
        trusted.write_bytes(authority.root.read_bytes() + authority.revocations())
        refresh(tls)
        with pytest.raises(OSError):  # noqa: PT011
            await echo.ask(client(authority, orders))


async def test_a_session_is_not_taken_up_again_that_began_before_a_change(authority: Authority) -> None:
    tls = Tls(TlsPlan(str(authority.certificate("broker")), ca=str(authority.root), client_auth="need"))
    context = client(authority, authority.certificate("orders"), maximum_version=ssl.TLSVersion.TLSv1_2)
    async with Echo(tls) as echo:

        def ask(session: ssl.SSLSession | None) -> tuple[bool | None, ssl.SSLSession | None]:
            with (
                socket.create_connection(("127.0.0.1", echo.port)) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as wrapped,
            ):
                wrapped.sendall(b"\n")
                assert wrapped.recv(100) == b"CN=orders,O=Example\n"
                return wrapped.session_reused, wrapped.session

        _, session = await asyncio.to_thread(ask, None)
        assert (await asyncio.to_thread(ask, session))[0] is True
        tls.reload()
        with pytest.raises(OSError):  # noqa: PT011
            await asyncio.to_thread(ask, session)
        assert (await asyncio.to_thread(ask, None))[0] is False


async def test_files_that_are_wrong_change_nothing(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    path = authority.certificate("broker")
    tls = Tls(TlsPlan(str(path)))
    async with Echo(tls) as echo:
        path.write_text("not yet\n")
        refresh(tls)
        assert "TLS is not changed" in caplog.text
        assert "TLS is not changed" in str(tls.problem)
        assert (await echo.ask(client(authority)))[1] == "CN=broker,O=Example"
        path.unlink()
        refresh(tls)
        assert (await echo.ask(client(authority)))[1] == "CN=broker,O=Example"


# ---- errors at the start


def test_a_key_with_a_password_is_read_with_it_and_never_asked_for(authority: Authority, tmp_path: Path) -> None:
    plan = TlsPlan(str(authority.certificate("broker", password="hunter2")))
    word = tmp_path / "word"
    word.write_text("hunter2\n")
    make_context(replace(plan, key_password_file=str(word)))
    with pytest.raises(TlsError, match="key_password_file is not set"):
        make_context(plan)
    word.write_text("wrong\n")
    with pytest.raises(TlsError, match="no certificate with its key"):
        make_context(replace(plan, key_password_file=str(word)))


def test_an_invalid_file_is_named(authority: Authority, tmp_path: Path) -> None:
    broker, other = authority.certificate("broker"), authority.certificate("other")
    for plan, text in (
        (TlsPlan(str(tmp_path / "none.pem")), r"none\.pem: no certificate with its key: No such file"),
        (TlsPlan(str(broker), str(other)), r"broker\.pem and .*other\.pem: .*MISMATCH"),
        (TlsPlan(str(authority.root)), r"root\.pem: no certificate with its key"),
        (TlsPlan(str(broker), ciphers="NONE-SUCH"), "OpenSSL knows none of them"),
        (TlsPlan(str(broker), client_auth="need"), "needs ca"),
        (TlsPlan(str(broker), ca=str(tmp_path / "none"), client_auth="want"), "none: no certificates: No such file"),
        (TlsPlan(str(broker), ca=str(authority.key), client_auth="want"), "no certificates"),
        (TlsPlan(str(broker), ca=str(authority.root), client_auth="need", check_revocation=True), "no revocation list"),
    ):
        with pytest.raises(TlsError, match=text):
            make_context(plan)


# ---- the user that a certificate names


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((), None),
        (((("organizationName", "A"),), (("commonName", "b"),)), "CN=b,O=A"),
        (((("commonName", "a"), ("userId", "b")),), "CN=a+UID=b"),
        (((("commonName", 'a,b+"c"\\<>;='),),), 'CN=a\\,b\\+\\"c\\"\\\\\\<\\>\\;\\='),
        (((("commonName", "#a "),),), "CN=\\#a\\ "),
        (((("commonName", " "),),), "CN=\\ "),
        # Whoever may choose a name cannot write another part into it.
        (((("organizationName", "x"),), (("commonName", "a,O=Example"),)), "CN=a\\,O\\=Example,O=x"),
        (((("emailAddress", "a@b"),),), "emailAddress=a@b"),
    ],
)
def test_a_subject_is_written_so_that_no_two_are_alike(
    parts: tuple[tuple[tuple[str, str], ...], ...], text: str | None
) -> None:
    assert subject({"subject": parts}) == text


def test_no_certificate_names_nobody() -> None:
    assert subject(None) is None
    assert subject({}) is None
