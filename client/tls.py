"""TLS of a client: the authorities that it trusts, and its certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

from tandemmq.client.errors import TlsError

FIRST_LINE_BYTES_MAX: Final = 4096


def tls_context(
    ca_file: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    *,
    key_password: str | None = None,
    checks_host: bool = True,
) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or later, to a server whose certificate is signed by an authority in ``ca_file``
    (default: those that the system trusts) and names the requested host.

    ``certificate``: that of the client, PEM, with its ``key`` after it or in a separate file. Without ``checks_host``
    any certificate of these authorities is accepted, whatever host it names. Raises TlsError, naming the file.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise TlsError(f"{ca_file}: no certificates: {reason_of_tls(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = checks_host
    if certificate is not None:
        try:
            # OpenSSL would prompt for the password at the terminal; an empty password prevents that.
            context.load_cert_chain(certificate, key, key_password or "")
        except (OSError, ValueError) as error:
            files = certificate if key is None else f"{certificate} and {key}"
            raise TlsError(f"{files}: no certificate with its key: {reason_of_tls(error)}") from error
    return context


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Arguments of `tls_context`, to pass to other processes. The password is the first line of a file."""

    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password_file: str | None = None
    checks_host: bool = True

    def context(self) -> ssl.SSLContext:
        """Read the files and return the context. Raises TlsError, naming the file that is wrong."""
        try:
            password = None if self.key_password_file is None else first_line(self.key_password_file)
        except (OSError, UnicodeDecodeError) as error:
            raise TlsError(f"{self.key_password_file}: cannot be read: {reason_of_tls(error)}") from error
        return tls_context(
            self.ca_file, self.certificate, self.key, key_password=password, checks_host=self.checks_host
        )


#: The authorities that the system trusts, and no certificate.
NO_FILES: Final = TlsFiles()


def first_line(path: str) -> str:
    """Return the first line of a file, FIFO or `<(pass show broker)`. Raises OSError, UnicodeDecodeError."""
    with open(path, encoding="utf-8") as file:
        return file.readline(FIRST_LINE_BYTES_MAX).rstrip("\r\n")


def reason_of_tls(error: Exception) -> str:
    """Return the reason of an error, without OpenSSL's file and line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
