"""Which protocol is spoken where: a connector's settings become sessions and limits."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from broker.protocols.openwire.handshake import Greeting
from broker.protocols.openwire.session import OpenWireSession
from broker.protocols.session import Session
from broker.protocols.stomp.frames import Limits
from broker.protocols.stomp.session import StompSession
from broker.security.tls import Tls, subject
from broker.server import Connector
from broker.transport import DEFAULT_LIMITS
from config.settings import BrokerSettings, ConnectorSettings


def make_connector(
    settings: ConnectorSettings,
    broker: BrokerSettings,
    clock: Callable[[], int],
    sequences: Iterator[int],
    tls: Tls | None = None,
    handshake_seconds_max: float = 10.0,
) -> Connector:
    """The connector of these settings. ``clock`` gives milliseconds since 1970, ``sequences`` the numbers that this
    broker gives to messages."""
    options = settings.options
    return Connector(
        settings.scheme,
        settings.address.host,
        settings.address.port,
        _sessions(settings, broker, clock, sequences),
        DEFAULT_LIMITS._replace(
            connect_seconds_max=options.connect_attempt_timeout / 1000,
            heart_beat_grace=options.hb_grace_period_multiplier,
        ),
        options.maximum_connections,
        None if tls is None else tls.context,
        None if tls is None else handshake_seconds_max,
        subject,
    )


def _sessions(
    settings: ConnectorSettings, broker: BrokerSettings, clock: Callable[[], int], sequences: Iterator[int]
) -> Callable[[str], Session]:
    options = settings.options
    if settings.protocol == "openwire":
        greeting = Greeting(
            broker.name,
            f"ID:{broker.name}",
            f"tcp://{settings.address}",
            provider_version=_version(),
            frame_bytes_max=options.max_frame_size,
            inactivity_ms=options.max_inactivity_duration,
            initial_delay_ms=options.max_inactivity_duration_initial_delay,
            failover_uris=broker.failover_uris if options.update_cluster_clients else (),
            steals_links=options.allow_link_stealing,
        )
        return partial(OpenWireSession, clock=clock, sequences=sequences, greeting=greeting)
    sends, wants = options.default_heart_beat
    return partial(
        StompSession,
        clock=clock,
        limits=Limits(frame_bytes_max=min(options.max_frame_size, options.max_data_length)),
        default_heart_beat=f"{sends},{wants}",
        secret=partial(secrets.token_hex, 16),
    )


def _version() -> str:
    try:
        return version("tandemmq")
    except PackageNotFoundError:
        return ""
