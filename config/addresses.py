"""Addresses that a broker listens on: HOST:PORT of the command line, and the URIs of connectors with their options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from tandemmq.config.section import count, milliseconds, size

OFF: Final = "off"
HTTP: Final = "http"
HTTPS: Final = "https"
EXPECTED_ADDRESS: Final = 'HOST:PORT, or "off"'
EXPECTED_ADVERTISED: Final = "HOST:PORT, as others connect to it"
STOMP: Final = "stomp"
OPENWIRE: Final = "openwire"
MQTT: Final = "mqtt"
AMQP: Final = "amqp"
#: STOMP, MQTT or AMQP: the client chooses by the subprotocol that it requests.
WEBSOCKET: Final = "websocket"
#: ActiveMQ's schemes: the protocol, and whether it uses TLS. The variants of I/O (nio) are the same here.
SCHEMES: Final = {
    "stomp": (STOMP, False),
    "stomp+nio": (STOMP, False),
    "stomp+ssl": (STOMP, True),
    "stomp+nio+ssl": (STOMP, True),
    "openwire": (OPENWIRE, False),
    "tcp": (OPENWIRE, False),
    "nio": (OPENWIRE, False),
    "openwire+ssl": (OPENWIRE, True),
    "ssl": (OPENWIRE, True),
    "tcp+ssl": (OPENWIRE, True),
    "nio+ssl": (OPENWIRE, True),
    "mqtt": (MQTT, False),
    "mqtt+nio": (MQTT, False),
    "mqtts": (MQTT, True),
    "mqtt+ssl": (MQTT, True),
    "mqtt+nio+ssl": (MQTT, True),
    "amqp": (AMQP, False),
    "amqp+nio": (AMQP, False),
    "amqp+ssl": (AMQP, True),
    "amqp+nio+ssl": (AMQP, True),
    "ws": (WEBSOCKET, False),
    "wss": (WEBSOCKET, True),
}
#: Schemes that this release knows only by name.
LATER: Final = ("auto", "auto+ssl")
PORT_MAX: Final = 65_535
HEART_BEAT_MS_MAX: Final = 24 * 3_600_000
#: Range of the frames of AMQP: each peer must take 512 bytes, and a frame is parsed in one step.
AMQP_FRAME_MIN: Final = 512
AMQP_FRAME_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """Options after the `?` of a connector's URI; sizes in bytes, times in ms, defaults those of ActiveMQ.

    ActiveMQ does not bound max_frame_size of STOMP: here it is that of its other protocols.
    """

    max_frame_size: int = 100 << 20
    max_data_length: int = 100 << 20
    hb_grace_period_multiplier: float = 2.0
    default_heart_beat: tuple[int, int] = (0, 0)
    connect_attempt_timeout: int = 30_000
    maximum_connections: int = 10_000
    max_inactivity_duration: int = 30_000  # OpenWire: the longest silence; 0: no limit
    max_inactivity_duration_initial_delay: int = 10_000
    update_cluster_clients: bool = True  # OpenWire, AMQP: clients are informed of the other brokers
    # True: a client that connects with a client id that is in use takes it over from the other client. None: it does in
    # MQTT, as the specification requires, and is refused in OpenWire and AMQP.
    allow_link_stealing: bool | None = None
    default_keep_alive: int = 0  # MQTT: for clients that request none; 0: no limit
    subscription_prefetch: int | None = None  # MQTT; None: as in [broker]
    publish_dollar_topics: bool = False  # MQTT: clients may send to topics that begin with "$"
    max_amqp_frame_size: int = 128 << 10  # AMQP: of a frame; max_frame_size limits a message
    idle_timeout: int = 30_000  # AMQP: the longest silence; 0: no limit
    allow_non_sasl_connections: bool = True  # AMQP: an anonymous client may connect without SASL
    client_auth: str | None = None  # of TLS; None: as in [tls], here and below
    minimum_version: str | None = None
    certificate: str | None = None
    key: str | None = None
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class Connector:
    """A parsed connector URI. ``scheme`` is as written, ``protocol`` the protocol spoken there."""

    scheme: str
    address: Address
    options: ConnectorOptions

    @property
    def protocol(self) -> str:
        return SCHEMES[self.scheme][0]

    @property
    def is_tls(self) -> bool:
        return SCHEMES[self.scheme][1]


def address(text: str) -> Address:
    """Parse HOST:PORT or [v6]:PORT. Raises ValueError with the expected form."""
    return _address(text, EXPECTED_ADDRESS)


def advertised(text: str) -> Address:
    """Parse an address that other hosts connect to. Raises ValueError with the expected form."""
    found = _address(text, EXPECTED_ADVERTISED)
    if not found.port:
        raise ValueError(EXPECTED_ADVERTISED)
    return found


def connector(uri: str) -> Connector:
    """Parse a connector's URI. Raises ValueError with the expected form."""
    parts = _split(uri, 'a URI like "stomp://127.0.0.1:61613"')
    if parts.scheme in LATER:
        raise ValueError(f"{_EXPECTED_SCHEME}: {parts.scheme} is not in this release")
    if parts.scheme not in SCHEMES:
        raise ValueError(_EXPECTED_SCHEME)
    if parts.path not in ("", "/") or parts.fragment:
        raise ValueError('only options after the port, as "stomp://127.0.0.1:61613?wireFormat.maxFrameSize=1mb"')
    found = Connector(parts.scheme, _address(parts.netloc, f"{parts.scheme}://HOST:PORT"), ConnectorOptions())
    return replace(found, options=_options(parts.query, found.protocol, found.is_tls))


_EXPECTED_SCHEME: Final = (
    'a connector of this release: one of stomp, openwire, mqtt, amqp and ws, as "stomp://HOST:PORT"'
)


def admin(uri: str) -> Address | None:
    """Return the address of the admin server; None when it is off. Raises ValueError with the expected form."""
    if uri == OFF:
        return None
    expected = 'a URI like "http://127.0.0.1:8161" or "https://0.0.0.0:8161", or "off"'
    parts = _split(uri, expected)
    if parts.scheme not in (HTTP, HTTPS) or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(expected)
    return _address(parts.netloc, expected)


def _split(uri: str, expected: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise ValueError(expected) from error


def _address(text: str, expected: str) -> Address:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{expected} (an IPv6 address is in brackets)")
    if (
        not (colon and host and port.isascii() and port.isdigit() and int(port) <= PORT_MAX)
        or "@" in host
        or " " in host
    ):
        raise ValueError(expected)
    return Address(host, int(port))


def _multiplier(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 1.0 <= number < math.inf:
        raise ValueError("a number of at least 1")
    return number


def _heart_beat(value: str) -> tuple[int, int]:
    parts = [part.strip() for part in value.split(",")]
    if len(parts) != 2 or not all(
        part.isascii() and part.isdigit() and int(part) <= HEART_BEAT_MS_MAX for part in parts
    ):
        raise ValueError('two times in ms like "10000,10000"')
    return int(parts[0]), int(parts[1])


def _at_least_one(parse: Callable[[object], int]) -> Callable[[str], int]:
    def read(value: str) -> int:
        number = parse(value)
        if number < 1:
            raise ValueError("more than 0")
        return number

    return read


def _amqp_frame_size(value: str) -> int:
    number = size(value)
    if not AMQP_FRAME_MIN <= number <= AMQP_FRAME_MAX:
        raise ValueError(f"{AMQP_FRAME_MIN} to {AMQP_FRAME_MAX} bytes")
    return number


def _boolean(value: str) -> bool:
    text = value.lower()
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _prefetch(value: str) -> int | None:
    """Parse a prefetch; ActiveMQ's -1 means: as for other clients."""
    return None if value.strip() == "-1" else _at_least_one(count)(value)


def _client_auth(kind: str) -> Callable[[str], str]:
    return lambda value: kind if _boolean(value) else "none"


def _protocols(value: str) -> str:
    """Return the oldest of ActiveMQ's enabledProtocols: newer ones are always enabled."""
    text = {part.strip() for part in value.split(",")}
    if not text or not text <= set(TLS_VERSIONS):
        raise ValueError(f"some of {', '.join(TLS_VERSIONS)}")
    if TLS_VERSIONS[-1] not in text:
        raise ValueError(f"{TLS_VERSIONS[-1]} among them: the newest is never left out")
    return next(version for version in TLS_VERSIONS if version in text)


def _path(value: str) -> str:
    if not value or "\0" in value:
        raise ValueError("a path")
    return value


TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
TLS: Final = "TLS"


@dataclass(frozen=True, slots=True)
class Option:
    """Field that an option sets, its parser, and the protocols, or TLS, that it is restricted to (none: valid
    everywhere)."""

    field: str
    read: Callable[[str], object]
    only: tuple[str, ...] = ()


_OF_STOMP: Final = (STOMP, WEBSOCKET)
_OF_OPENWIRE: Final = (OPENWIRE,)
_OF_MQTT: Final = (MQTT, WEBSOCKET)
_OF_AMQP: Final = (AMQP, WEBSOCKET)
# ActiveMQ sets a STOMP connector's limits equally through `wireFormat.` and `transport.`.
_MAX_FRAME_SIZE: Final = Option("max_frame_size", _at_least_one(size))
_MAX_DATA_LENGTH: Final = Option("max_data_length", _at_least_one(size), _OF_STOMP)
_CONNECT_TIMEOUT: Final = Option("connect_attempt_timeout", _at_least_one(milliseconds))
_INITIAL_DELAY: Final = Option("max_inactivity_duration_initial_delay", milliseconds, _OF_OPENWIRE)
_NEED: Final = Option("client_auth", _client_auth("need"), (TLS,))
_WANT: Final = Option("client_auth", _client_auth("want"), (TLS,))
OPTIONS: Final[dict[str, Option]] = {
    "wireFormat.maxFrameSize": _MAX_FRAME_SIZE,
    "transport.maxFrameSize": _MAX_FRAME_SIZE,
    "wireFormat.maxDataLength": _MAX_DATA_LENGTH,
    "transport.maxDataLength": _MAX_DATA_LENGTH,
    "transport.hbGracePeriodMultiplier": Option("hb_grace_period_multiplier", _multiplier, _OF_STOMP),
    "transport.defaultHeartBeat": Option("default_heart_beat", _heart_beat, _OF_STOMP),
    "transport.connectAttemptTimeout": _CONNECT_TIMEOUT,
    "wireFormat.connectAttemptTimeout": _CONNECT_TIMEOUT,
    "maximumConnections": Option("maximum_connections", _at_least_one(count)),
    "wireFormat.maxInactivityDuration": Option("max_inactivity_duration", milliseconds, _OF_OPENWIRE),
    "wireFormat.maxInactivityDurationInitalDelay": _INITIAL_DELAY,  # ActiveMQ's spelling
    "wireFormat.maxInactivityDurationInitialDelay": _INITIAL_DELAY,
    "updateClusterClients": Option("update_cluster_clients", _boolean, (OPENWIRE, AMQP, WEBSOCKET)),
    "allowLinkStealing": Option("allow_link_stealing", _boolean, (OPENWIRE, MQTT, AMQP, WEBSOCKET)),
    "transport.defaultKeepAlive": Option("default_keep_alive", milliseconds, _OF_MQTT),
    "transport.activeMQSubscriptionPrefetch": Option("subscription_prefetch", _prefetch, _OF_MQTT),
    "transport.publishDollarTopics": Option("publish_dollar_topics", _boolean, _OF_MQTT),
    "wireFormat.maxAmqpFrameSize": Option("max_amqp_frame_size", _amqp_frame_size, _OF_AMQP),
    "wireFormat.idleTimeout": Option("idle_timeout", milliseconds, _OF_AMQP),
    "wireFormat.allowNonSaslConnections": Option("allow_non_sasl_connections", _boolean, _OF_AMQP),
    "needClientAuth": _NEED,
    "transport.needClientAuth": _NEED,
    "wantClientAuth": _WANT,
    "transport.wantClientAuth": _WANT,
    "transport.enabledProtocols": Option("minimum_version", _protocols, (TLS,)),
    "tls.certificate": Option("certificate", _path, (TLS,)),
    "tls.key": Option("key", _path, (TLS,)),
    "tls.ca": Option("ca", _path, (TLS,)),
}

#: Options of ActiveMQ that have no effect here: the values that are accepted, and the reason.
ALWAYS: Final[dict[str, tuple[str, str]]] = {
    "wireFormat.maxFrameSizeEnabled": ("true", "a frame without an end takes all memory"),
    "wireFormat.tightEncodingEnabled": ("false", "messages are sent as they are in the journal, in loose encoding"),
    "wireFormat.cacheEnabled": ("false", "messages are sent as they are in the journal, without a cache"),
    "wireFormat.sizePrefixDisabled": ("false", "each frame begins with its length"),
    "wireFormat.stackTraceEnabled": ("false", "an error gives the reason, but no internal details"),
    "wireFormat.tcpNoDelayEnabled": ("true", "all output of one turn is written at once"),
    "transport.tcpNoDelay": ("true", "all output of one turn is written at once"),
    "transport.keepAlive": ("true", "the system detects clients that vanished"),
    "transport.useInactivityMonitor": (
        "true",
        "set wireFormat.maxInactivityDuration=0, or of AMQP wireFormat.idleTimeout=0, to allow silence",
    ),
    "transport.verifyHostName": ("false", "a client's certificate is identified by its subject"),
    "rebalanceClusterClients": ("false", "only the master of a pair serves clients, so there is no choice"),
    "updateClusterClientsOnRemove": ("false", "clients need a broker's address most when it is away"),
    "transport.subscriptionStrategy": (
        "mqtt-default-subscriptions",
        "queues of virtual topics are for STOMP and JMS clients; MQTT has shared subscriptions",
    ),
    "transport.transformer": ("native or jms", "messages are stored whole, and other protocols get what jms makes"),
    "auditNetworkProducers": ("false", "there are no networks of brokers here"),
}
_CREDIT: Final = "a client that sends has credit for 500 messages"
_TRACE: Final = "`tandemmq log-level` shows more while the broker runs"
#: Options of ActiveMQ that are refused, and the reason.
NEVER: Final[dict[str, str]] = {
    "transport.producerCredit": _CREDIT,
    "wireFormat.producerCredit": _CREDIT,
    "transport.prefetch": "a client that receives grants its own credit",
    "transport.trace": _TRACE,
    "trace": _TRACE,
}


def _options(query: str, protocol: str, is_tls: bool) -> ConnectorOptions:
    options = ConnectorOptions()
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in ALWAYS:
            only, reason = ALWAYS[name]
            if value.lower() not in only.split(" or "):
                raise ValueError(f"{name}={only}, nothing else here: {reason}")
            continue
        if name in NEVER:
            raise ValueError(f"no {name}: {NEVER[name]}")
        option = OPTIONS.get(name)
        if option is None:
            near = get_close_matches(name, OPTIONS, 1)
            hint = f" (did you mean {near[0]}?)" if near else f" ({', '.join(OPTIONS)})"
            raise ValueError(f"a known option, not {name}{hint}")
        if option.only and protocol not in option.only and not (TLS in option.only and is_tls):
            raise ValueError(f"options of this connector; {name} is only for {' and '.join(option.only)}")
        try:
            read = option.read(value)
        except ValueError as error:
            raise ValueError(f"for the option {name} {error}") from error
        if option is _WANT and options.client_auth == "need":
            continue  # ActiveMQ: "need" includes "want", in any order
        options = replace(options, **{option.field: read})  # type: ignore[arg-type]
    return options
