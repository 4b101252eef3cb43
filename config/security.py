"""The table [security]: who may connect, and who may do what. Files are named here and read elsewhere."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from config.destinations import different
from config.section import Path, Section, wrong
from config.store import Pattern
from config.units import Count, Milliseconds

#: Everybody who may connect, in the place of a group (ActiveMQ's wildcard).
EVERYBODY: Final = "*"


def _groups(value: object) -> object:
    """A list of groups; as ActiveMQ writes it, one text with commas."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _group(name: str) -> str:
    if not name or any(character in ":,\n" or character.isspace() for character in name):
        raise wrong('names of groups without blanks, ":" and ",", or "*" for everybody')
    return name


def _anonymous(value: object) -> object:
    return str(value).lower() if isinstance(value, bool | str) else value


def _ldap_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("ldap", "ldaps") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_right = False
    if not is_right or parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise wrong('"ldap://HOST:PORT" or "ldaps://HOST:PORT"')
    return url


def _filter(text: str) -> str:
    if not (text.startswith("(") and text.endswith(")") and ("{0}" in text or "{1}" in text)):
        raise wrong('a filter like "(uid={0})"')
    return text


Groups = Annotated[tuple[Annotated[str, AfterValidator(_group)], ...], BeforeValidator(_groups)]
Filter = Annotated[str, AfterValidator(_filter)]


class AuthorizationSettings(Section):
    queue: Pattern | None = Field(None, description="Rights on queues by this pattern: `ORDERS.>`.")
    topic: Pattern | None = Field(None, description="Or on topics by this pattern.")
    read: Groups = Field((), description="Groups that may consume and browse. `*`: everybody who may connect.")
    write: Groups = Field((), description="Groups that may send.")
    admin: Groups = Field((), description="Groups that may create, also by the first use, and delete.")

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if (self.queue is None) == (self.topic is None):
            raise wrong("one of queue and topic")
        return self

    @property
    def subject(self) -> tuple[str, str]:
        """The kind of destination, as the key is called, and the pattern."""
        return ("queue", self.queue) if self.queue is not None else ("topic", self.topic or "")


class LdapSettings(Section):
    connection_url: Annotated[str, AfterValidator(_ldap_url)] | None = Field(
        None, description="The directory: `ldaps://HOST:636`. Without it, none is asked."
    )
    connection_username: str = Field("", description="Who looks for users there: a DN. Default: nobody, anonymously.")
    connection_password: str = Field("", description="Its password. Never shown.")
    connection_timeout: Milliseconds = Field(5_000, ge=100, description="So long the directory may take to answer.")
    start_tls: bool = Field(False, description="`ldap:` only: TLS before anything is said.")
    ca: Path | None = Field(None, description="The certificates that may sign the directory's. Default: the system's.")
    user_base: str = Field("", description="Where users are: a DN.")
    user_search_matching: Filter = Field("(uid={0})", description="Which one a login is; `{0}` is the login.")
    user_search_subtree: bool = Field(True, description="Below that, too, not only directly there.")
    role_base: str = Field("", description="Where groups are: a DN. Without, nobody is in a group.")
    role_name: str = Field("cn", min_length=1, description="The attribute with a group's name.")
    role_search_matching: Filter = Field(
        "(member={0})", description="Which groups a user is in; `{0}` is the user's DN, `{1}` the login."
    )
    role_search_subtree: bool = Field(True, description="Below that, too, not only directly there.")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.connection_url is not None and not self.user_base:
            raise wrong("user_base, where users are to be found")
        return self


class SecuritySettings(Section):
    users_file: Path | None = Field(
        None,
        description="Users, a line each: `tandemmq user` writes it, docs/security.md tells its form. Read again when "
        "it changes.",
    )
    allow_anonymous: Annotated[Literal["loopback", "true", "false"], BeforeValidator(_anonymous)] = Field(
        "loopback",
        description="Clients that say no name are served: of this machine alone, of all, or none. Where no users are "
        "set up, any name is anonymous.",
    )
    anonymous_user: str = Field("anonymous", min_length=1, description="What they are called.")
    anonymous_group: Annotated[str, AfterValidator(_group)] = Field(
        "anonymous", description="The one group they are in."
    )
    authorization: Annotated[tuple[AuthorizationSettings, ...], AfterValidator(different)] = ()
    failed_login_delay: Milliseconds = Field(
        1_000, le=60_000, description="A login that failed is answered so much later."
    )
    failed_logins_max: Count = Field(
        10, ge=1, description="So many may fail in a minute for one name from one address; more are refused unread."
    )
    ldap: LdapSettings = LdapSettings()  # type: ignore[call-arg]

    @property
    def has_users(self) -> bool:
        """Whether a name means anything."""
        return self.users_file is not None or self.ldap.connection_url is not None
