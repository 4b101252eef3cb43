"""Access control and TLS made from the settings, for the engine and the listeners.

If a file named in a setting is invalid, RefusedSetting names the setting.
"""

from __future__ import annotations

import os
import ssl
from typing import Any, Final

from tandemmq.broker.core.access import OpenAccess
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security.known_logins import FILE_NAME
from tandemmq.broker.security.ldap import LdapDirectory, LdapPlan
from tandemmq.broker.security.logins import Anonymous, Logins
from tandemmq.broker.security.rights import Grant, Rights
from tandemmq.broker.security.tls import Tls, TlsError, TlsPlan, client_context, make_context
from tandemmq.broker.security.users import UsersError, load
from tandemmq.broker.settings.copying import SettingsCopy
from tandemmq.config.errors import RefusedSetting
from tandemmq.config.replication import ReplicationSettings
from tandemmq.config.security import LdapSettings, SecuritySettings
from tandemmq.config.settings import ConnectorSettings, Settings
from tandemmq.config.tls import TlsSettings
from tandemmq.store.records.message import DestinationKind

LDAP: Final = SettingsCopy(LdapSettings, LdapPlan, computed={"connection_url": "without it there is no plan"})
TLS: Final = SettingsCopy(
    TlsSettings,
    TlsPlan,
    computed={"certificate": "without it there is no plan"},
    elsewhere={"handshake_timeout": "broker.net.connectors"},
)
#: Keys of [tls] that a connector may override.
OWN: Final = ("key", "ca", "client_auth", "minimum_version")


# ---- access


def access_of(settings: Settings) -> Logins | OpenAccess:
    """Make the access control. Call ``look`` at intervals, ``reload`` when the settings are reloaded, and ``close`` at
    the end.

    Raises RefusedSetting if the user file is invalid, or the user directory cannot be used.
    """
    options = settings.security
    if not options.has_users and not options.authorization and options.allow_anonymous != "false":
        return OpenAccess(is_everywhere=options.allow_anonymous == "true")
    try:
        return Logins(
            users_file=options.users_file,
            directory=_directory(options.ldap),
            anonymous=_anonymous(options),
            rights=Rights(_grants(options)),
            failed_login_delay_seconds=options.failed_login_delay / 1000,
            failed_logins_max=options.failed_logins_max,
            known_file=os.path.join(settings.store.directory, FILE_NAME),
        )
    except UsersError as error:
        raise RefusedSetting("security.users_file", options.users_file, str(error)) from error


def _anonymous(options: SecuritySettings) -> Anonymous:
    who = Principal(options.anonymous_user, frozenset({options.anonymous_group}), is_proved=options.has_users)
    return Anonymous(options.allow_anonymous != "false", options.allow_anonymous == "true", who)


def _grants(options: SecuritySettings) -> list[Grant]:
    grants = []
    for entry in options.authorization:
        kind, pattern = entry.subject
        groups = (frozenset(names) for names in (entry.read, entry.write, entry.admin, entry.network))
        grants.append(Grant(DestinationKind[kind.upper()], pattern, *groups))
    return grants


def _directory(options: LdapSettings) -> LdapDirectory | None:
    if options.connection_url is None:
        return None
    try:
        return LdapDirectory(LDAP(options, connection_url=options.connection_url))
    except ImportError as error:
        reason = "ldap3 is not installed: pip install tandemmq[ldap]"
        raise RefusedSetting("security.ldap.connection_url", options.connection_url, reason) from error


# ---- TLS


def tls_of_set(options: ReplicationSettings, table: TlsSettings) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the TLS contexts for incoming and for outgoing links of a set, made from [tls]. Both present a
    certificate. None: `replication.bind` has no TLS. Raises RefusedSetting."""
    if not options.is_tls:
        return None
    if table.certificate is None or table.ca is None:
        reason = (
            "members authenticate each other: set tls.certificate, and tls.ca, which signs the certificate of each node"
        )
        raise RefusedSetting("replication.bind", options.bind, reason)
    try:
        server = make_context(TLS(table.model_copy(update={"client_auth": "need"}), certificate=table.certificate))
        return server, client_context(TLS(table, certificate=table.certificate))
    except TlsError as error:
        raise RefusedSetting("tls", options.bind, str(error)) from error


def tls_of(connector: ConnectorSettings, settings: Settings) -> Tls | None:
    """Return the TLS of a connector; None: its scheme has no TLS. Call ``look`` at intervals, and ``reload`` when the
    settings are reloaded.

    Raises RefusedSetting if a certificate or one of its files cannot be used.
    """
    if not connector.is_tls:
        return None
    own = connector.options
    table = settings.tls
    if own.certificate is not None:
        # The key of [tls] belongs to the certificate of [tls], so it is not used for another certificate.
        table = table.model_copy(update={"certificate": own.certificate, "key": None})
    table = table.model_copy(update={key: getattr(own, key) for key in OWN if getattr(own, key) is not None})
    return _tls(table, "connectors", connector.uri)


def tls_of_admin(settings: Settings) -> Tls | None:
    """Return the TLS of the admin server, made from [tls] like `tls_of`. None: the admin server is off, or uses
    HTTP."""
    return _tls(settings.tls, "admin.uri", settings.admin.uri) if settings.admin.is_tls else None


def _tls(table: TlsSettings, key: str, uri: str) -> Tls:
    if table.certificate is None:
        reason = f"{uri.partition(':')[0]} needs a certificate: set tls.certificate"
        raise RefusedSetting(key, uri, reason)
    try:
        return Tls(TLS(table, certificate=table.certificate))
    except TlsError as error:
        raise RefusedSetting("tls", uri, str(error)) from error


def users_and_rights(options: SecuritySettings) -> dict[str, Any]:
    """Return the users of the file without their passwords, and the rights of groups, for operators. Reads the file;
    any thread except the loop's."""
    try:
        known = load(options.users_file).by_name.values() if options.users_file is not None else ()
        problem = None
    except UsersError as error:
        known, problem = (), str(error)
    return {
        "users": [
            {
                "name": user.name,
                "groups": sorted(user.groups),
                "has_password": user.hash is not None,
                "certificate": user.certificate,
            }
            for user in sorted(known, key=lambda user: user.name)
        ],
        "problem": problem,
        "has_ldap": options.ldap.connection_url is not None,
        "allow_anonymous": options.allow_anonymous,
        "authorization": [
            {
                "kind": kind,
                "pattern": pattern,
                "read": list(entry.read),
                "write": list(entry.write),
                "admin": list(entry.admin),
                "network": list(entry.network),
            }
            for entry in options.authorization
            for kind, pattern in (entry.subject,)
        ],
    }
