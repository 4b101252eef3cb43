"""TLS as a client has it: whom it trusts, and the certificate that it shows."""

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
    """TLS 1.2 or later, to a server whose certificate is signed by one in ``ca_file`` (default: by those that the
    system trusts) and names the host that was asked for.

    ``certificate``: our own, PEM, with its ``key`` behind it or in a file of its own. Without ``checks_host`` any
    certificate of these authorities will do, whatever host it names. Raises TlsError, naming the file.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise TlsError(f"{ca_file}: no certificates: {reason_of_tls(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = checks_host
    if certificate is not None:
        try:
            # The password is never asked for at a terminal, which is what OpenSSL does on its own.
            context.load_cert_chain(certificate, key, key_password or "")
        except (OSError, ValueError) as error:
            files = certificate if key is None else f"{certificate} and {key}"
            raise TlsError(f"{files}: no certificate with its key: {reason_of_tls(error)}") from error
    return context


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What `tls_context` is made of, for those who hand it to other processes; the password is a file's first line."""

    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password_file: str | None = None
    checks_host: bool = True

    def context(self) -> ssl.SSLContext:
        """Reads the files. Raises TlsError, naming the one that is wrong."""
        try:
            password = None if self.key_password_file is None else first_line(self.key_password_file)
        except (OSError, UnicodeDecodeError) as error:
            raise TlsError(f"{self.key_password_file}: cannot be read: {reason_of_tls(error)}") from error
        return tls_context(
            self.ca_file, self.certificate, self.key, key_password=password, checks_host=self.checks_host
        )


#: The authorities that the system trusts, and nothing to show.
NO_FILES: Final = TlsFiles()


def first_line(path: str) -> str:
    """Of a file, a FIFO or what else a shell names (`<(pass show broker)`). Raises OSError, UnicodeDecodeError."""
    with open(path, encoding="utf-8") as file:
        return file.readline(FIRST_LINE_BYTES_MAX).rstrip("\r\n")


def reason_of_tls(error: Exception) -> str:
    """What went wrong, without OpenSSL's file and line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
