"""Connectors made from the settings: protocol, sessions and limits of each, and the addresses that are advertised to
clients.

Clients of OpenWire and AMQP learn the addresses of all brokers. The operator can set these addresses; otherwise they
are the addresses that the members of the set advertise.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from tandemmq.broker.net.origins import Origins
from tandemmq.broker.net.server import Connector
from tandemmq.broker.net.transport import DEFAULT_LIMITS, TransportLimits
from tandemmq.broker.net.websocket import Subprotocol, WebSocketOptions, of_amqp, of_mqtt, of_stomp
from tandemmq.broker.protocols.session import Session
from tandemmq.broker.protocols.stomp.frames import PASSED_OVER_BYTES_MAX, Limits
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.broker.security.tls import Tls, subject
from tandemmq.config import addresses
from tandemmq.config.addresses import AMQP, MQTT, OPENWIRE, SCHEMES, STOMP, WEBSOCKET, Address, ConnectorOptions
from tandemmq.config.errors import RefusedSetting
from tandemmq.config.mqtt import MqttSettings, WebSocketSettings
from tandemmq.config.settings import BrokerSettings, ConnectorSettings, Settings

if TYPE_CHECKING:
    from tandemmq.broker.protocols.mqtt.conversation import Hooks

# The sessions of OpenWire, MQTT and AMQP are imported only if there is a connector for them, or for WebSocket.

#: The broker closes the connection of a client that is silent for this multiple of its Keep Alive (MQTT-3.1.2-22).
MQTT_GRACE: Final = 1.5

_LOOPBACK: Final = ("127.", "localhost", "::1")
# Schemes of clients, by the protocol of a connector and whether it uses TLS. Of the clients that use WebSocket, only
# those of AMQP get addresses.
_OF_CLIENTS: Final = {
    (OPENWIRE, False): "tcp",
    (OPENWIRE, True): "ssl",
    (AMQP, False): "amqp",
    (AMQP, True): "amqps",
    (WEBSOCKET, False): "amqpws",
    (WEBSOCKET, True): "amqpwss",
}
_AMQP_SCHEMES: Final = tuple([scheme for (protocol, _), scheme in _OF_CLIENTS.items() if protocol != OPENWIRE])


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
    from tandemmq.broker.protocols.openwire.session import OpenWireSession
    from tandemmq.broker.protocols.openwire.wireformat import Greeting

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
        # The protocol inside the WebSocket checks the length of its frames, and answers a frame that is too long.
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


# ---- advertised addresses


def is_everywhere(host: str) -> bool:
    """Return whether the host is a wildcard (all interfaces), which cannot be advertised."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback address, with which a client connects to its own machine."""
    return host.startswith(_LOOPBACK)


def advertised_address(address: Address, advertised: str | None, hostname: str) -> Address:
    """Return the advertised address of the connector at ``address``: ``advertised`` if the operator set it, otherwise
    ``address``, with ``hostname`` in place of a wildcard."""
    if advertised is not None:
        return addresses.advertised(advertised)
    return Address(hostname, address.port) if is_everywhere(address.host) else address


class MemberConnectors(NamedTuple):
    """Host of a member of a set and the addresses where its clients connect, as the member advertises them."""

    host: str
    connectors: tuple[str, ...]


class AdvertisedAddresses:
    """Advertised addresses of all brokers. Connectors refer to the lists that ``of`` returns, which change in place.
    Runs on the loop.

    ``configured``: broker.failover_uris. If it is not empty, the lists do not change.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self._lists = {kind: _chosen(configured, scheme) for kind, scheme in _OF_CLIENTS.items()}
        self._is_configured = bool(configured)
        self._known: dict[str, MemberConnectors] = {}

    def of(self, protocol: str, *, is_tls: bool) -> list[str]:
        """Return the addresses for clients of connectors with that protocol."""
        return self._lists[protocol, is_tls]

    def update(self, voters: Iterable[str], members: Mapping[str, MemberConnectors]) -> bool:
        """Update the lists. ``voters``: store ids of all members; ``members``: the connectors of the reachable ones, by
        store id. Return whether lists of OpenWire changed: only OpenWire clients are informed of changes after they
        have connected. The addresses of a member that is not reachable stay in the lists, because it may return."""
        if self._is_configured:
            return False
        known = {**self._known, **members}
        self._known = {store: known[store] for store in sorted(voters) if store in known}
        if len(self._known) < 2:
            return False
        changed = {kind: list(_urls(self._known.values(), kind)) for kind in self._lists}
        is_news = any(changed[OPENWIRE, is_tls] != self._lists[OPENWIRE, is_tls] for is_tls in (False, True))
        for kind, urls in changed.items():
            self._lists[kind][:] = urls
        return is_news


def _chosen(configured: Sequence[str], scheme: str) -> list[str]:
    """Return the addresses for clients with that scheme. All clients of OpenWire get the same addresses."""
    schemes = {each: each.partition("://")[0] for each in configured}
    if scheme in ("tcp", "ssl"):
        return [each for each in configured if schemes[each] not in _AMQP_SCHEMES]
    return [each for each in configured if schemes[each] == scheme]


def _urls(members: Iterable[MemberConnectors], kind: tuple[str, bool]) -> Iterable[str]:
    for member in members:
        is_on_loopback = is_loopback(member.host)
        for connector in member.connectors:
            parts = urlsplit(connector)
            if SCHEMES.get(parts.scheme) != kind:
                continue
            if is_on_loopback or not is_loopback(parts.hostname or ""):
                yield f"{_OF_CLIENTS[kind]}://{parts.netloc}"
