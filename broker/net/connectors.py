"""Connectors made from the settings: protocol, sessions and limits of each."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from tandemmq.broker.net.advertised_addresses import AdvertisedAddresses, advertised_address
from tandemmq.broker.net.origins import Origins
from tandemmq.broker.net.server import Connector
from tandemmq.broker.net.transport import DEFAULT_LIMITS, TransportLimits
from tandemmq.broker.net.websocket import Subprotocol, WebSocketOptions, of_amqp, of_mqtt, of_stomp
from tandemmq.broker.protocols.session import Session
from tandemmq.broker.protocols.stomp.frames import PASSED_OVER_BYTES_MAX, Limits
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.broker.security.tls import Tls, subject
from tandemmq.config import addresses
from tandemmq.config.addresses import AMQP, MQTT, OPENWIRE, STOMP, WEBSOCKET, Address, ConnectorOptions
from tandemmq.config.errors import RefusedSetting
from tandemmq.config.mqtt import MqttSettings
from tandemmq.config.settings import BrokerSettings, ConnectorSettings, Settings
from tandemmq.config.websocket import WebSocketSettings

if TYPE_CHECKING:
    from tandemmq.broker.protocols.mqtt.conversation import Hooks

# The sessions of OpenWire, MQTT and AMQP are imported only if there is a connector for them, or for WebSocket.

#: The broker closes the connection of a client that is silent for this multiple of its Keep Alive (MQTT-3.1.2-22).
MQTT_GRACE: Final = 1.5


def url_of(settings: Settings) -> str:
    """Return the URL of the broker in BrokerInfo and advisories: the URL of the first OpenWire connector, otherwise of
    the first connector."""
    hostname = hostname_of(settings)
    for each in settings.connectors:
        if each.protocol == OPENWIRE:
            return f"{'ssl' if each.is_tls else 'tcp'}://{_advertised(each, hostname)}"
    return next((f"{each.scheme}://{_advertised(each, hostname)}" for each in settings.connectors), "")


def urls_of(settings: Settings) -> list[str]:
    """Return the URLs of all connectors."""
    hostname = hostname_of(settings)
    return [f"{each.scheme}://{_advertised(each, hostname)}" for each in settings.connectors]


def hostname_of(settings: Settings) -> str:
    """Return the host name that is advertised in place of a wildcard address."""
    return socket.gethostname() if settings.replication is None else settings.replication.advertised_hostname


def _advertised(connector: ConnectorSettings, hostname: str) -> Address:
    return advertised_address(connector.address, connector.advertised, hostname)


def make_connector(
    settings: ConnectorSettings,
    broker: BrokerSettings,
    broker_url: str,
    clock: Callable[[], int],
    sequences: Iterator[int],
    tls: Tls | None,
    handshake_seconds_max: float,
    advertised: AdvertisedAddresses | None = None,
    hostname: str | None = None,
    mqtt: tuple[MqttSettings, Hooks] | None = None,
    websocket: WebSocketSettings | None = None,
) -> Connector:
    """Make a connector. ``clock`` returns milliseconds since 1970, ``sequences`` the numbers that this broker gives to
    messages. ``advertised``: the addresses of all brokers; None: those in ``broker``. ``hostname``: see
    ``hostname_of``. ``mqtt``: settings of MQTT, and the state that MQTT sessions share; None: MQTT is not served.
    ``websocket`` None: the defaults."""
    options = settings.options
    make_session: Callable[[str], Session]
    advertised = advertised or AdvertisedAddresses(broker.failover_uris)
    if settings.protocol == OPENWIRE:
        make_session = _openwire_sessions(settings, broker, broker_url, clock, sequences, advertised)
    elif settings.protocol == MQTT:
        if mqtt is None:
            raise RefusedSetting("connectors.uri", settings.uri, "MQTT is not served")
        make_session = _mqtt_sessions(options, clock, mqtt)
    elif settings.protocol == AMQP:
        make_session = _amqp_sessions(settings, broker.name, clock, advertised)
    else:
        make_session = _stomp_sessions(options, clock)
    limits = _limits(options, MQTT if settings.protocol == MQTT else STOMP)
    by_websocket = None
    if settings.protocol == WEBSOCKET:
        subprotocols = of_stomp(make_session, limits)
        subprotocols |= of_amqp(_amqp_sessions(settings, broker.name, clock, advertised), limits)
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
        handshake_seconds_max,
        subject,
        by_websocket,
        _advertised(settings, hostname or socket.gethostname()),
    )


def _openwire_sessions(
    settings: ConnectorSettings,
    broker: BrokerSettings,
    broker_url: str,
    clock: Callable[[], int],
    sequences: Iterator[int],
    advertised: AdvertisedAddresses,
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
        failover_uris=_failover_uris(settings, advertised),
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


def _amqp_sessions(
    settings: ConnectorSettings, broker_name: str, clock: Callable[[], int], advertised: AdvertisedAddresses
) -> Callable[[str], Session]:
    from tandemmq.broker.protocols.amqp.opening import AmqpLimits
    from tandemmq.broker.protocols.amqp.session import AmqpSession

    options = settings.options
    limits = AmqpLimits(
        broker_name,
        _version(),
        options.max_frame_size,
        options.max_amqp_frame_size,
        options.idle_timeout,
        allows_no_sasl=options.allow_non_sasl_connections,
        steals_links=bool(options.allow_link_stealing),
        failover_uris=_failover_uris(settings, advertised),
    )
    return partial(AmqpSession, clock=clock, limits=limits, secret=partial(secrets.token_hex, 16))


def _failover_uris(settings: ConnectorSettings, advertised: AdvertisedAddresses) -> Sequence[str]:
    """Return the addresses of all brokers that the connector advertises to its clients."""
    if not settings.options.update_cluster_clients:
        return ()
    return advertised.of(settings.protocol, is_tls=settings.is_tls)


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
        # The protocol in the WebSocket checks its own frames, and answers a frame that is too long.
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
