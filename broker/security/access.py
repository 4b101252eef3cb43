"""Conversion of settings to the users and rights of the engine. Imported only if there are some."""

from __future__ import annotations

import os
from typing import Any, Final

from tandemmq.broker.core.principal import Principal
from tandemmq.broker.security.known_logins import FILE_NAME
from tandemmq.broker.security.ldap import LdapDirectory, LdapPlan
from tandemmq.broker.security.logins import Anonymous, Logins
from tandemmq.broker.security.rights import Grant, Rights
from tandemmq.broker.security.users import UsersError, load
from tandemmq.broker.settings.copying import SettingsCopy
from tandemmq.config.errors import RefusedSetting
from tandemmq.config.security import LdapSettings, SecuritySettings
from tandemmq.config.settings import Settings
from tandemmq.store.records.message import DestinationKind

LDAP: Final = SettingsCopy(LdapSettings, LdapPlan, computed={"connection_url": "without it there is no plan"})


def logins_of(settings: Settings) -> Logins:
    """Make the access control, as ``setup.access_of`` does."""
    options = settings.security
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
    principal = Principal(options.anonymous_user, frozenset({options.anonymous_group}), is_proved=options.has_users)
    return Anonymous(options.allow_anonymous != "false", options.allow_anonymous == "true", principal)


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
