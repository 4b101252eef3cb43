"""TLS: the table [tls], and what a connector's own options say differently. Files are named here and read elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandemmq.config.section import AnyCase, Path, Section
from tandemmq.config.units import Milliseconds

ClientAuth = Literal["none", "want", "need"]


class TlsSettings(Section):
    certificate: Path | None = None
    """The broker's certificate, PEM, with those that lead to its root behind it. Read again when it changes, as the key
    and the authorities are."""
    key: Path | None = None
    """Its private key, PEM. Default: in the file of the certificate."""
    key_password_file: Path | None = None
    """Where the key's password stands, if it has one."""
    ca: Path | None = None
    """The certificates, PEM, that may sign those of clients; with the revocation lists, if there are some, in the same
    file."""
    client_auth: Annotated[ClientAuth, AnyCase] = "none"
    """A client's certificate is not asked for, welcome, or needed."""
    check_revocation: bool = False
    """A client's certificate counts only with a valid revocation list of its signer in `ca`."""
    minimum_version: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.2"
    """The oldest protocol."""
    ciphers: str = ""
    """OpenSSL's names of ciphers up to TLS 1.2. Default: Python's choice."""
    handshake_timeout: Milliseconds = Field(10_000, ge=1)
    """So long a handshake may take; then the connection is closed."""
