"""TLS: the table [tls], which a connector's own options override. Files are named here and read elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tandemmq.config.section import AnyCase, Path, Section
from tandemmq.config.units import Milliseconds

ClientAuth = Literal["none", "want", "need"]


class TlsSettings(Section):
    certificate: Path | None = None
    """The broker's certificate (PEM), followed by its chain. Certificate, key and authorities are read again when they
    change."""
    key: Path | None = None
    """Private key of the certificate (PEM). Default: in the certificate file."""
    key_password_file: Path | None = None
    """File with the password of the key."""
    ca: Path | None = None
    """Certificates (PEM) that may sign those of clients, and their revocation lists."""
    client_auth: Annotated[ClientAuth, AnyCase] = "none"
    """`none`: no client certificate is requested. `want`: it is optional. `need`: it is required."""
    check_revocation: bool = False
    """Accept a client certificate only with a valid revocation list of its signer in `ca`."""
    minimum_version: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.2"
    """Oldest TLS version."""
    ciphers: str = ""
    """OpenSSL names of ciphers up to TLS 1.2. Default: Python's."""
    handshake_timeout: Milliseconds = Field(10_000, ge=1)
    """Time for a handshake. After it, the connection is closed."""
