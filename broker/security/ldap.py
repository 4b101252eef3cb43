"""Users of an LDAP directory: a search finds the user, a bind checks the password, and a second search finds the
groups.

The order is that of ActiveMQ's LDAPLoginModule. ldap3 (the extra `ldap`) is imported only if a directory is configured.
Each login opens its own connections, and closes them.
"""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security.logins import DirectoryError

if TYPE_CHECKING:
    from ldap3 import Connection, Server

#: Maximum number of groups of a user; more are ignored.
GROUPS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class LdapPlan:
    """Settings of the directory, with the names of LDAPLoginModule; see `config.security.LdapSettings`."""

    connection_url: str
    connection_username: str
    connection_password: str
    connection_timeout_seconds: float
    start_tls: bool
    ca: str | None
    user_base: str
    user_search_matching: str
    user_search_subtree: bool
    role_base: str
    role_name: str
    role_search_matching: str
    role_search_subtree: bool


class LdapDirectory:
    """LDAP implementation of `broker.security.logins.Directory`."""

    def __init__(self, plan: LdapPlan) -> None:
        """Raise ImportError if the extra `ldap` is not installed."""
        import ldap3
        from ldap3.core.exceptions import LDAPException

        self._ldap3: Any = ldap3
        self._error: type[Exception] = LDAPException
        self._plan = plan
        tls = ldap3.Tls(validate=ssl.CERT_REQUIRED, ca_certs_file=plan.ca)
        self._server: Server = ldap3.Server(
            plan.connection_url, tls=tls, get_info=ldap3.NONE, connect_timeout=plan.connection_timeout_seconds
        )

    def find(self, login: str, passcode: str) -> Principal | None:
        if not login or not passcode:
            return None  # a bind without a password succeeds, but is anonymous (RFC 4513, 5.1.2)
        try:
            with self._bound(self._plan.connection_username, self._plan.connection_password) as asking:
                name = self._name(asking, login)
                if name is None or not self._is_right(name, passcode):
                    return None
                return Principal(login, self._groups(asking, name, login))
        except (self._error, OSError) as error:
            raise DirectoryError(f"{self._plan.connection_url}: {error}") from error

    def named(self, login: str) -> Principal | None:
        try:
            with self._bound(self._plan.connection_username, self._plan.connection_password) as asking:
                name = self._name(asking, login)
                return None if name is None else Principal(login, self._groups(asking, name, login))
        except (self._error, OSError) as error:
            raise DirectoryError(f"{self._plan.connection_url}: {error}") from error

    def _connection(self, name: str, password: str) -> Connection:
        plan = self._plan
        connection = self._ldap3.Connection(
            self._server,
            name or None,
            password or None,
            auto_bind=self._ldap3.AUTO_BIND_NONE,
            # ldap3 packs the value into a C long and refuses a float, so it is in whole seconds.
            receive_timeout=math.ceil(plan.connection_timeout_seconds),
            auto_referrals=False,
            read_only=True,
        )
        if plan.start_tls and not connection.start_tls():
            raise OSError("StartTLS is refused")
        return connection

    def _bound(self, name: str, password: str) -> Connection:
        connection = self._connection(name, password)
        if not connection.bind():
            raise OSError(f"the bind as {name or 'anonymous'} failed: {connection.result['description']}")
        return connection

    def _is_right(self, name: str, passcode: str) -> bool:
        trying = self._connection(name, passcode)
        try:
            return bool(trying.bind())
        finally:
            trying.unbind()

    def _name(self, asking: Connection, login: str) -> str | None:
        """Return the DN of the matching user; None unless exactly one matches."""
        plan = self._plan
        wanted = plan.user_search_matching.replace("{0}", self._escaped(login))
        asking.search(plan.user_base, wanted, self._scope(plan.user_search_subtree), attributes=[], size_limit=2)
        found = _entries(asking)
        return str(found[0]["dn"]) if len(found) == 1 else None

    def _groups(self, asking: Connection, name: str, login: str) -> frozenset[str]:
        plan = self._plan
        if not plan.role_base:
            return frozenset()
        # Both placeholders are replaced in one pass, so that a name that contains a placeholder is not replaced again.
        head, *rest = plan.role_search_matching.split("{0}")
        parts = [part.replace("{1}", self._escaped(login)) for part in (head, *rest)]
        wanted = self._escaped(name).join(parts)
        asking.search(
            plan.role_base,
            wanted,
            self._scope(plan.role_search_subtree),
            attributes=[plan.role_name],
            size_limit=GROUPS_MAX,
        )
        values = (entry["attributes"].get(plan.role_name, ()) for entry in _entries(asking))
        return frozenset(str(name) for value in values for name in ([value] if isinstance(value, str) else value))

    def _scope(self, is_subtree: bool) -> Any:
        return self._ldap3.SUBTREE if is_subtree else self._ldap3.LEVEL

    def _escaped(self, text: str) -> str:
        from ldap3.utils.conv import escape_filter_chars

        return str(escape_filter_chars(text))


def _entries(asking: Connection) -> list[Any]:
    return [each for each in asking.response or () if each["type"] == "searchResEntry"]
