"""TLS of a connector: certificates from files, which are read again when they change, and the subject of a client's
certificate.

The loop always has the same context. At the beginning of each handshake, the server name callback replaces it by the
latest context made from the files (SSL_set_SSL_CTX); OpenSSL calls it also if the client sends no server name. So a new
certificate, authority or revocation list applies to all later connections. Invalid files change nothing.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandemmq import log_events
from tandemmq.broker.security.expiry import leaf_expiry
from tandemmq.broker.security.file_changes import Watched
from tandemmq.disk import kind_of
from tandemmq.modes import who_may

log = logging.getLogger(__name__)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "want": ssl.CERT_OPTIONAL, "need": ssl.CERT_REQUIRED}


class TlsError(Exception):
    """A TLS context cannot be made. The text names the file or the setting, and the reason."""


@dataclass(frozen=True, slots=True)
class TlsPlan:
    """Settings of a connector's TLS; see `config.security.TlsSettings`."""

    certificate: str
    key: str | None = None
    key_password_file: str | None = None
    ca: str | None = None
    client_auth: str = "none"
    check_revocation: bool = False
    minimum_version: str = "TLSv1.2"
    ciphers: str = ""

    @property
    def files(self) -> list[str]:
        return [path for path in (self.certificate, self.key, self.key_password_file, self.ca) if path is not None]


class Tls:
    """TLS of one connector. ``context`` is for ``loop.create_server``; call ``refresh`` at intervals."""

    def __init__(self, plan: TlsPlan, clock: Callable[[], float] = time.time) -> None:
        """Raise TlsError if a file is invalid. ``clock``: seconds since 1970, as OpenSSL uses."""
        self._plan = plan
        self._clock = clock
        self._changed_at = 0
        self._watched = Watched(plan.files)
        self.problem: str | None = None  # reason why the last read of the files was refused
        self._current = self.context = make_context(plan)
        self._expires = leaf_expiry(plan.certificate)
        self.context.sni_callback = self._begin

    @property
    def certificates(self) -> list[str]:
        """Files with the certificates that connections depend on."""
        plan = self._plan
        return [plan.certificate, *([plan.ca] if plan.ca is not None and plan.client_auth != "none" else ())]

    @property
    def revocation_lists(self) -> list[str]:
        """Files with required revocation lists: without them, all certificates of clients are refused."""
        plan = self._plan
        is_asked = plan.check_revocation and plan.client_auth != "none"
        return [plan.ca] if plan.ca is not None and is_asked else []

    def _begin(
        self, ssl_object: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext
    ) -> int | None:
        if self._current is not context:
            if ssl_object.session_reused:
                session = ssl_object.session
                assert session is not None, "a reused session exists"
                if session.time <= self._changed_at:
                    return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE
            ssl_object.context = self._current
        return None

    def refresh(self) -> None:
        """Read the files again if one changed."""
        if self._watched.has_changed():
            self.reload()

    def reload(self) -> None:
        """Read the files again. Invalid files are logged and change nothing."""
        try:
            current = make_context(self._plan)
            self._check_expiry()
            self._current = current
        except TlsError as error:
            former, self.problem = self.problem, f"TLS is not changed: {error}"
            is_unreadable = isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, ssl.SSLError)
            if is_unreadable:
                self._watched.mark_changed()
            if not is_unreadable or self.problem != former:
                log.error("%s", self.problem, extra=log_events.CERTIFICATE_REFUSED)
        else:
            self.problem = None
            self._changed_at = int(self._clock())
            log.info("%s: certificate read again", self._plan.certificate, extra=log_events.CERTIFICATE_READ)

    def _check_expiry(self) -> None:
        """Raise TlsError if the new certificate has expired and the present one has not. Only the first certificate in
        the file counts: clients may not need the others."""
        expires, now = leaf_expiry(self._plan.certificate), self._clock()
        if expires is not None and expires <= now < (self._expires or 0):
            raise TlsError(
                f"{self._plan.certificate}: its first certificate has expired; the present one is still valid"
            )
        self._expires = expires


def make_context(plan: TlsPlan) -> ssl.SSLContext:
    """Make the context of a server. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[plan.minimum_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # Sessions are not resumed: connections live long, and the certificate of a resumed session would not be checked
    # again.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    for path in plan.files:
        kind = kind_of(os.path.realpath(path))
        if kind is not None:  # OpenSSL would block the event loop at a FIFO
            raise TlsError(f"{path}: is {kind}, no regular file")
        if os.path.exists(path) and not os.access(path, os.R_OK, effective_ids=True):
            raise TlsError(f"{path}: cannot be read: {who_may(path)}")
    try:
        context.load_cert_chain(plan.certificate, plan.key, lambda: _password(plan.key_password_file))
    except (OSError, ValueError) as error:  # SSLError is an OSError
        files = plan.certificate if plan.key is None else f"{plan.certificate} and {plan.key}"
        raise TlsError(f"{files}: no certificate with its key: {_reason(error)}") from error
    if plan.ciphers:
        try:
            context.set_ciphers(plan.ciphers)
        except ssl.SSLError as error:
            raise TlsError(f"ciphers {plan.ciphers!r}: OpenSSL knows none of them") from error
    if plan.client_auth != "none":
        if plan.ca is None:
            raise TlsError(f'client_auth = "{plan.client_auth}" needs ca, which signs the clients\' certificates')
        try:
            context.load_verify_locations(plan.ca)
        except OSError as error:
            raise TlsError(f"{plan.ca}: no certificates: {_reason(error)}") from error
        if plan.check_revocation:
            if not context.cert_store_stats()["crl"]:
                raise TlsError(f"{plan.ca}: no revocation list, and check_revocation refuses every client without one")
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    context.verify_mode = _CLIENT_AUTH[plan.client_auth]
    return context


def client_context(plan: TlsPlan) -> ssl.SSLContext:
    """Make the context for connections to other nodes. It requires a certificate that ``ca`` signed and that has the
    peer's host name, and presents this node's certificate. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[plan.minimum_version]
    try:
        context.load_verify_locations(plan.ca)
        context.load_cert_chain(plan.certificate, plan.key, lambda: _password(plan.key_password_file))
    except (OSError, ValueError) as error:
        raise TlsError(f"{plan.ca}, {plan.certificate}: {_reason(error)}") from error
    return context


def _password(path: str | None) -> str:
    # A callback without a password must raise: by default OpenSSL reads the password from the terminal.
    if path is None:
        raise ValueError("the key has a password, and key_password_file is not set")
    with open(path, encoding="utf-8") as file:
        return file.readline().rstrip("\r\n")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# Short names of RFC 4514, 3. Java's X500Principal.getName() uses the same.
_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED: Final = frozenset(',+"\\<>;=')


def subject(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the subject of a client's verified certificate (``getpeercert()``) in the form of RFC 4514, the most
    specific part first: ``CN=orders,O=Example``. None: the client presented no certificate."""
    if not certificate or not certificate.get("subject"):
        return None
    parts = [
        "+".join(f"{_SHORT.get(key, key)}={_value(value)}" for key, value in part) for part in certificate["subject"]
    ]
    return ",".join(reversed(parts))


def _value(value: str) -> str:
    shown = "".join(f"\\{each}" if each in _ESCAPED else each for each in value).replace("\0", "\\00")
    if shown.startswith((" ", "#")):
        shown = "\\" + shown
    return shown[:-1] + "\\ " if value.endswith(" ") and len(value) > 1 else shown
