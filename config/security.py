"""The table [security]: logins and rights. Files are named here and read elsewhere."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tandemmq.config.destinations import different
from tandemmq.config.section import Listed, Path, Section, Subject, without
from tandemmq.config.store import Pattern
from tandemmq.config.units import Count, Milliseconds

#: All users who may connect, in place of a group (ActiveMQ's wildcard).
EVERYBODY: Final = "*"


def _anonymous(value: object) -> object:
    return str(value).lower() if isinstance(value, bool | str) else value


def _ldap_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("ldap", "ldaps") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_right = False
    if not is_right or parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise ValueError('"ldap://HOST:PORT" or "ldaps://HOST:PORT"')
    return url


def _filter(text: str) -> str:
    if not (text.startswith("(") and text.endswith(")") and ("{0}" in text or "{1}" in text)):
        raise ValueError('a filter like "(uid={0})"')
    return text


Group = Annotated[str, without(":,", 'names of groups without blanks, ":" and ",", or "*" for all users')]
Groups = Annotated[tuple[Group, ...], Listed]
Filter = Annotated[str, AfterValidator(_filter)]


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
    """The directory: `ldaps://HOST:636`. Default: no directory."""
    connection_username: str = ""
    """DN that searches for users there. Default: an anonymous search."""
    connection_password: str = ""
    """Password for `connection_username`. Never shown."""
    connection_timeout: Milliseconds = Field(5_000, ge=100)
    """Time for an answer of the directory."""
    start_tls: bool = False
    """`ldap:` only: start TLS before the login."""
    ca: Path | None = None
    """Certificates that may sign that of the directory. Default: those of the system."""
    user_base: str = ""
    """DN under which users are."""
    user_search_matching: Filter = "(uid={0})"
    """Filter for a user; `{0}` is the login."""
    user_search_subtree: bool = True
    """Search all levels under `user_base`, not only the first."""
    role_base: str = ""
    """DN under which groups are. Default: users have no groups."""
    role_name: str = Field("cn", min_length=1)
    """Attribute with the name of a group."""
    role_search_matching: Filter = "(member={0})"
    """Filter for the groups of a user; `{0}` is the user's DN, `{1}` the login."""
    role_search_subtree: bool = True
    """Search all levels under `role_base`, not only the first."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.connection_url is not None and not self.user_base:
            raise ValueError("user_base, the DN under which users are")
        return self


class SecuritySettings(Section):
    users_file: Path | None = None
    """File of users, one in each line; `tandemmq user` writes it, security.md describes it. Read again when it
    changes."""
    allow_anonymous: Annotated[Literal["loopback", "true", "false"], BeforeValidator(_anonymous)] = "loopback"
    """Clients that can connect without a login: those of this machine, all (`true`) or none (`false`). Without users,
    any name is anonymous."""
    anonymous_user: str = Field("anonymous", min_length=1)
    """Name of clients without a login."""
    anonymous_group: Group = "anonymous"
    """The only group of clients without a login."""
    client_id_begins_with_user: bool = False
    """A client id must begin with the name of its user: `ann`, `ann-1`, `ann/till`; without a login with the name of
    the anonymous user. Ids that a client library or the broker generates are exempt."""
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
