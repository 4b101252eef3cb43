"""The table [security]: who may connect, and who may do what. Files are named here and read elsewhere."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tandemmq.config.destinations import different
from tandemmq.config.section import Listed, Path, Section, Subject, without
from tandemmq.config.store import Pattern
from tandemmq.config.units import Count, Milliseconds

#: Everybody who may connect, in the place of a group (ActiveMQ's wildcard).
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


Group = Annotated[str, without(":,", 'names of groups without blanks, ":" and ",", or "*" for everybody')]
Groups = Annotated[tuple[Group, ...], Listed]
Filter = Annotated[str, AfterValidator(_filter)]


class AuthorizationSettings(Subject):
    queue: Pattern | None = None
    """Rights on queues by this pattern: `ORDERS.>`."""
    topic: Pattern | None = None
    """Or on topics by this pattern."""
    read: Groups = ()
    """Groups that may consume and browse. `*`: everybody who may connect."""
    write: Groups = ()
    """Groups that may send."""
    admin: Groups = ()
    """Groups that may create, also by the first use, and delete."""
    network: Groups = ()
    """Groups of other brokers: advisories also show them the selectors and client ids of consumers."""


class LdapSettings(Section):
    connection_url: Annotated[str, AfterValidator(_ldap_url)] | None = None
    """The directory: `ldaps://HOST:636`. Without it, none is asked."""
    connection_username: str = ""
    """Who looks for users there: a DN. Default: nobody, anonymously."""
    connection_password: str = ""
    """Its password. Never shown."""
    connection_timeout: Milliseconds = Field(5_000, ge=100)
    """So long the directory may take to answer."""
    start_tls: bool = False
    """`ldap:` only: TLS before anything is said."""
    ca: Path | None = None
    """The certificates that may sign the directory's. Default: the system's."""
    user_base: str = ""
    """Where users are: a DN."""
    user_search_matching: Filter = "(uid={0})"
    """Which one a login is; `{0}` is the login."""
    user_search_subtree: bool = True
    """Below that, too, not only directly there."""
    role_base: str = ""
    """Where groups are: a DN. Without, nobody is in a group."""
    role_name: str = Field("cn", min_length=1)
    """The attribute with a group's name."""
    role_search_matching: Filter = "(member={0})"
    """Which groups a user is in; `{0}` is the user's DN, `{1}` the login."""
    role_search_subtree: bool = True
    """Below that, too, not only directly there."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.connection_url is not None and not self.user_base:
            raise ValueError("user_base, where users are to be found")
        return self


class SecuritySettings(Section):
    users_file: Path | None = None
    """Users, a line each: `tandemmq user` writes it, docs/security.md tells its form. Read again when it changes."""
    allow_anonymous: Annotated[Literal["loopback", "true", "false"], BeforeValidator(_anonymous)] = "loopback"
    """Clients that say no name are served: of this machine alone, of all, or none. Where no users are set up, any name
    is anonymous."""
    anonymous_user: str = Field("anonymous", min_length=1)
    """What they are called."""
    anonymous_group: Group = "anonymous"
    """The one group they are in."""
    client_id_begins_with_user: bool = False
    """A client id must begin with the name of its user: `ann`, `ann-1`, `ann/till`; without a login, with the name of
    the anonymous user. Those that a client library or the broker generates are exempt."""
    authorization: Annotated[tuple[AuthorizationSettings, ...], AfterValidator(different)] = ()
    failed_login_delay: Milliseconds = Field(1_000, le=60_000)
    """A login that failed is answered so much later."""
    failed_logins_max: Count = Field(10, ge=1)
    """So many may fail in a minute for one name from one address; more are refused unread."""
    ldap: LdapSettings = LdapSettings()  # type: ignore[call-arg]

    @property
    def has_users(self) -> bool:
        """Whether a name means anything."""
        return self.users_file is not None or self.ldap.connection_url is not None
