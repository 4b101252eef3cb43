"""Which protocol is spoken where: a connector's settings become sessions and limits."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from tandemmq.broker.net.server import Connector
from tandemmq.broker.net.told_addresses import ToldAddresses, is_everywhere
from tandemmq.broker.net.transport import DEFAULT_LIMITS
from tandemmq.broker.protocols.openwire.handshake import Greeting
from tandemmq.broker.protocols.openwire.session import OpenWireSession
from tandemmq.broker.protocols.session import Session
from tandemmq.broker.protocols.stomp.frames import Limits
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.broker.security.tls import Tls, subject
from tandemmq.config.settings import BrokerSettings, ConnectorSettings, Settings


def url_of(settings: Settings) -> str:
    """The one address by which the broker names itself to its clients, in BrokerInfo and advisories: where the first of
    them that speak OpenWire connect."""
    for each in settings.connectors:
        if each.protocol == "openwire":
            return f"{'ssl' if each.is_tls else 'tcp'}://{each.address}"
    return next((f"{each.scheme}://{each.address}" for each in settings.connectors), "")


def urls_of(settings: Settings, hostname: str) -> list[str]:
    """Where clients of all protocols connect; ``hostname`` stands for an address of all interfaces."""
    return [
        f"{each.scheme}://{hostname if is_everywhere(each.address.host) else each.address.host}:{each.address.port}"
        for each in settings.connectors
    ]


def make_connector(
    settings: ConnectorSettings,
    broker: BrokerSettings,
    broker_url: str,
    clock: Callable[[], int],
    sequences: Iterator[int],
    tls: Tls | None,
    handshake_seconds_max: float,
    told: ToldAddresses | None = None,
) -> Connector:
    """The connector of these settings. ``clock`` gives milliseconds since 1970, ``sequences`` the numbers that this
    broker gives to messages, ``told`` where its clients find all brokers; None: as ``broker`` says."""
    options = settings.options
    make_session: Callable[[str], Session]
    told = told or ToldAddresses(broker.failover_uris)
    if settings.protocol == "openwire":
        greeting = Greeting(
            broker.name,
            f"ID:{broker.name}",
            broker_url,
            provider_version=_version(),
            frame_bytes_max=options.max_frame_size,
            inactivity_ms=options.max_inactivity_duration,
            initial_delay_ms=options.max_inactivity_duration_initial_delay,
            failover_uris=(told.tls if settings.is_tls else told.plain) if options.update_cluster_clients else (),
            steals_links=options.allow_link_stealing,
        )
        make_session = partial(OpenWireSession, clock=clock, sequences=sequences, greeting=greeting)
    else:
        sends, wants = options.default_heart_beat
        make_session = partial(
            StompSession,
            clock=clock,
            limits=Limits(frame_bytes_max=min(options.max_frame_size, options.max_data_length)),
            default_heart_beat=f"{sends},{wants}",
            secret=partial(secrets.token_hex, 16),
        )
    return Connector(
        settings.scheme,
        settings.address.host,
        settings.address.port,
        make_session,
        DEFAULT_LIMITS._replace(
            connect_seconds_max=options.connect_attempt_timeout / 1000,
            heart_beat_grace=options.hb_grace_period_multiplier,
        ),
        options.maximum_connections,
        None if tls is None else tls.context,
        None if tls is None else handshake_seconds_max,
        subject,
    )


def _version() -> str:
    try:
        return version("tandemmq")
    except PackageNotFoundError:
        return ""
