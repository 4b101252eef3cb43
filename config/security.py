"""The tables [security] (logins and rights) and [tls], which a connector's own options override. broker/security reads
the files that are named here.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tandemmq.config.destinations import different
from tandemmq.config.section import AnyCase, Count, Listed, Milliseconds, Path, Section, Subject, without
from tandemmq.config.store import Pattern


def _anonymous(value: object) -> object:
    return str(value).lower() if isinstance(value, bool | str) else value


def _ldap_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("ldap", "ldaps") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError('"ldap://HOST:PORT" or "ldaps://HOST:PORT"')
    return url


def _filter(text: str, needed: tuple[str, ...], example: str) -> str:
    if not (text.startswith("(") and text.endswith(")") and any(each in text for each in needed)):
        raise ValueError(f'a filter in parentheses with {" or ".join(needed)}, like "{example}"')
    return text


Group = Annotated[str, without(":,", 'group names without blanks, colons and commas, or "*" for all users')]
Groups = Annotated[tuple[Group, ...], Listed]
UserFilter = Annotated[str, AfterValidator(partial(_filter, needed=("{0}",), example="(uid={0})"))]
GroupFilter = Annotated[str, AfterValidator(partial(_filter, needed=("{0}", "{1}"), example="(member={0})"))]


class AuthorizationSettings(Subject):
    queue: Pattern | None = None
    """Rights on queues of this pattern: `ORDERS.>`."""
    topic: Pattern | None = None
    """Rights on topics of this pattern."""
    read: Groups = ()
    """Groups that can consume and browse. `*`: all users who can connect."""
    write: Groups = ()
    """Groups that can send."""
    admin: Groups = ()
    """Groups that can create, also by first use, and delete."""
    network: Groups = ()
    """Groups to which advisories also show selectors and client ids of consumers."""


class LdapSettings(Section):
    connection_url: Annotated[str, AfterValidator(_ldap_url)] | None = None
    """URL of the LDAP directory: `ldaps://HOST:636`. Default: no directory."""
    connection_username: str = ""
    """DN with which the broker searches the directory. Default: an anonymous search."""
    connection_password: str = ""
    """Password for `connection_username`. Never shown."""
    connection_timeout: Milliseconds = Field(5_000, ge=100)
    """Maximum time to wait for an answer of the directory."""
    start_tls: bool = False
    """`ldap:` only: start TLS before the login."""
    ca: Path | None = None
    """File of the CA certificates that the broker trusts for the directory. Default: those of the system."""
    user_base: str = ""
    """Base DN of the search for users."""
    user_search_matching: UserFilter = "(uid={0})"
    """Filter for a user; `{0}` is the login."""
    user_search_subtree: bool = True
    """Search all levels under `user_base`, not only the first."""
    role_base: str = ""
    """Base DN of the search for groups. Default: users have no groups."""
    role_name: str = Field("cn", min_length=1)
    """Attribute with the name of a group."""
    role_search_matching: GroupFilter = "(member={0})"
    """Filter for the groups of a user; `{0}` is the user's DN, `{1}` the login."""
    role_search_subtree: bool = True
    """Search all levels under `role_base`, not only the first."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.connection_url is not None and not self.user_base:
            raise ValueError("user_base, the base DN of the search for users")
        return self


class SecuritySettings(Section):
    users_file: Path | None = None
    """File of users, one in each line; `tandemmq user` writes it, security.md describes it. The broker reads it again
    when it changes."""
    allow_anonymous: Annotated[Literal["loopback", "true", "false"], BeforeValidator(_anonymous)] = "loopback"
    """Clients that can connect without a login: those of this machine, all (`true`) or none (`false`). If no
    users are configured, each client is anonymous, with any login."""
    anonymous_user: str = Field("anonymous", min_length=1)
    """Name of clients without a login."""
    anonymous_group: Group = "anonymous"
    """The only group of clients without a login."""
    client_id_begins_with_user: bool = False
    """A client id must begin with the name of its user: `ann`, `ann-1`, `ann/till`. For a client without a login, it
    must begin with `anonymous_user`. Ids that a client library or the broker generates are exempt."""
    authorization: Annotated[tuple[AuthorizationSettings, ...], AfterValidator(different)] = ()
    failed_login_delay: Milliseconds = Field(1_000, le=60_000)
    """Delay of the answer to a failed login."""
    failed_logins_max: Count = Field(10, ge=1)
    """Failed logins in a minute for one name from one address; further ones are refused without a check."""
    ldap: LdapSettings = LdapSettings()  # type: ignore[call-arg]

    @property
    def has_users(self) -> bool:
        """True if users are configured."""
        return self.users_file is not None or self.ldap.connection_url is not None


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
