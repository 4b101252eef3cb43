"""Access control and TLS made from the settings, for the engine and the listeners.

If a file named in a setting is invalid, RefusedSetting names the setting.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from tandemmq.broker.core.access import OpenAccess
from tandemmq.broker.security.tls import Tls, TlsError, TlsPlan, client_context, make_context
from tandemmq.broker.settings.copying import SettingsCopy
from tandemmq.config.errors import RefusedSetting
from tandemmq.config.replication import ReplicationSettings
from tandemmq.config.security import TlsSettings
from tandemmq.config.settings import ConnectorSettings, Settings

if TYPE_CHECKING:
    from tandemmq.broker.security.logins import Logins

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
    """Make the access control. Call ``refresh`` at intervals, ``reload`` when the settings are reloaded, and ``close``
    at the end.

    Raises RefusedSetting if the user file is invalid, or the user directory cannot be used.
    """
    options = settings.security
    if not options.has_users and not options.authorization and options.allow_anonymous != "false":
        return OpenAccess(is_everywhere=options.allow_anonymous == "true")
    from tandemmq.broker.security.access import logins_of  # a start without users is shorter

    return logins_of(settings)


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
    """Return the TLS of a connector; None: its scheme has no TLS. Call ``refresh`` at intervals, and ``reload`` when
    the settings are reloaded.

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
