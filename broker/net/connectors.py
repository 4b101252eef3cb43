"""Connectors made of settings: the protocol, the sessions and the limits of each."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from tandemmq.broker.net.origins import Origins
from tandemmq.broker.net.server import Connector
from tandemmq.broker.net.told_addresses import ToldAddresses, told_address
from tandemmq.broker.net.transport import DEFAULT_LIMITS, TransportLimits
from tandemmq.broker.net.websocket import Subprotocol, WebSocketOptions, of_mqtt, of_stomp
from tandemmq.broker.protocols.session import Session
from tandemmq.broker.protocols.stomp.frames import PASSED_OVER_BYTES_MAX, Limits
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.broker.security.tls import Tls, subject
from tandemmq.config import addresses
from tandemmq.config.addresses import MQTT, OPENWIRE, STOMP, WEBSOCKET, Address, ConnectorOptions
from tandemmq.config.errors import RefusedSetting
from tandemmq.config.mqtt import MqttSettings
from tandemmq.config.settings import BrokerSettings, ConnectorSettings, Settings
from tandemmq.config.websocket import WebSocketSettings

if TYPE_CHECKING:
    from tandemmq.broker.protocols.mqtt.conversation import Hooks

# The sessions of OpenWire and MQTT are imported only if there is a connector for them.

#: A client that is silent for one and a half times its keep alive is gone (MQTT-3.1.2-22).
MQTT_GRACE: Final = 1.5


def url_of(settings: Settings) -> str:
    """Address by which the broker names itself to its clients, in BrokerInfo and advisories: that of the first
    connector that speaks OpenWire, else of the first one."""
    hostname = hostname_of(settings)
    for each in settings.connectors:
        if each.protocol == OPENWIRE:
            return f"{'ssl' if each.is_tls else 'tcp'}://{_told(each, hostname)}"
    return next((f"{each.scheme}://{_told(each, hostname)}" for each in settings.connectors), "")


def urls_of(settings: Settings) -> list[str]:
    """Addresses where clients of all protocols connect."""
    hostname = hostname_of(settings)
    return [f"{each.scheme}://{_told(each, hostname)}" for each in settings.connectors]


def hostname_of(settings: Settings) -> str:
    """Host name that is advertised in place of an address of all interfaces."""
    return socket.gethostname() if settings.replication is None else settings.replication.told_hostname


def _told(connector: ConnectorSettings, hostname: str) -> Address:
    return told_address(connector.address, connector.advertised, hostname)


def make_connector(
    settings: ConnectorSettings,
    broker: BrokerSettings,
    broker_url: str,
    clock: Callable[[], int],
    sequences: Iterator[int],
    tls: Tls | None,
    handshake_seconds_max: float,
    told: ToldAddresses | None = None,
    hostname: str | None = None,
    mqtt: tuple[MqttSettings, Hooks] | None = None,
    websocket: WebSocketSettings | None = None,
) -> Connector:
    """Make the connector of these settings. ``clock`` returns milliseconds since 1970, ``sequences`` the numbers that
    this broker gives to messages. ``told``: the advertised addresses of all brokers; None: those in ``broker``.
    ``hostname``: as ``hostname_of``. ``mqtt``: the limits of MQTT clients, and the part that their sessions share;
    None: MQTT is not served. ``websocket`` None: the defaults."""
    options = settings.options
    make_session: Callable[[str], Session]
    told = told or ToldAddresses(broker.failover_uris)
    if settings.protocol == OPENWIRE:
        make_session = _openwire_sessions(settings, broker, broker_url, clock, sequences, told)
    elif settings.protocol == MQTT:
        if mqtt is None:
            raise RefusedSetting("connectors.uri", settings.uri, "nothing here serves MQTT")
        make_session = _mqtt_sessions(options, clock, mqtt)
    else:
        make_session = _stomp_sessions(options, clock)
    limits = _limits(options, MQTT if settings.protocol == MQTT else STOMP)
    by_websocket = None
    if settings.protocol == WEBSOCKET:
        subprotocols = of_stomp(make_session, limits)
        if mqtt is not None:
            subprotocols |= of_mqtt(_mqtt_sessions(options, clock, mqtt), _limits(options, MQTT))
        by_websocket = _websocket(settings, websocket or WebSocketSettings(), subprotocols)  # type: ignore[call-arg]
    return Connector(
        settings.scheme,
        settings.address.host,
        settings.address.port,
        make_session,
        limits,
        options.maximum_connections,
        None if tls is None else tls.context,
        None if tls is None else handshake_seconds_max,
        subject,
        by_websocket,
        _told(settings, hostname or socket.gethostname()),
    )


def _openwire_sessions(
    settings: ConnectorSettings,
    broker: BrokerSettings,
    broker_url: str,
    clock: Callable[[], int],
    sequences: Iterator[int],
    told: ToldAddresses,
) -> Callable[[str], Session]:
    from tandemmq.broker.protocols.openwire.handshake import Greeting
    from tandemmq.broker.protocols.openwire.session import OpenWireSession

    options = settings.options
    greeting = Greeting(
        broker.name,
        f"ID:{broker.name}",
        broker_url,
        provider_version=_version(),
        frame_bytes_max=options.max_frame_size,
        inactivity_ms=options.max_inactivity_duration,
        initial_delay_ms=options.max_inactivity_duration_initial_delay,
        failover_uris=(told.tls if settings.is_tls else told.plain) if options.update_cluster_clients else (),
        steals_links=bool(options.allow_link_stealing),
    )
    return partial(OpenWireSession, clock=clock, sequences=sequences, greeting=greeting)


def _stomp_sessions(options: ConnectorOptions, clock: Callable[[], int]) -> Callable[[str], Session]:
    sends, wants = options.default_heart_beat
    return partial(
        StompSession,
        clock=clock,
        limits=Limits(frame_bytes_max=min(options.max_frame_size, options.max_data_length)),
        default_heart_beat=f"{sends},{wants}",
        secret=partial(secrets.token_hex, 16),
    )


def _mqtt_sessions(
    options: ConnectorOptions, clock: Callable[[], int], mqtt: tuple[MqttSettings, Hooks]
) -> Callable[[str], Session]:
    from tandemmq.broker.protocols.mqtt.session import MqttLimits, MqttSession

    settings, hooks = mqtt
    expiry = settings.max_session_expiry_interval
    limits = MqttLimits(
        options.max_frame_size,
        settings.receive_maximum,
        settings.topic_alias_maximum,
        None if expiry is None else expiry // 1000,
        options.default_keep_alive // 1000,
        options.subscription_prefetch,
        options.publish_dollar_topics,
        settings.refused_publish == "close",
        options.allow_link_stealing is not False,
    )
    return partial(MqttSession, clock=clock, limits=limits, hooks=hooks)


def _limits(options: ConnectorOptions, protocol: str) -> TransportLimits:
    return DEFAULT_LIMITS._replace(
        heart_beat_grace_seconds_min=0.0 if protocol == MQTT else DEFAULT_LIMITS.heart_beat_grace_seconds_min,
        connect_seconds_max=options.connect_attempt_timeout / 1000,
        heart_beat_grace=MQTT_GRACE if protocol == MQTT else options.hb_grace_period_multiplier,
    )


def _websocket(
    connector: ConnectorSettings, options: WebSocketSettings, subprotocols: Mapping[str | None, Subprotocol]
) -> WebSocketOptions:
    hosts = [connector.address.host, *options.hosts]
    if connector.advertised is not None:
        hosts.append(addresses.advertised(connector.advertised).host)
    return WebSocketOptions(
        subprotocols,
        Origins(options.allowed_origins, hosts),
        # The protocol in it judges its frames, and answers one that is too long.
        max(connector.options.max_frame_size, PASSED_OVER_BYTES_MAX),
        options.handshake_timeout / 1000,
        options.ping_interval / 1000,
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tandemmq")
    except PackageNotFoundError:
        return ""
