"""Where a broker listens: HOST:PORT of the command line, and the URIs of connectors with their options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from config.units import count, milliseconds, size

OFF: Final = "off"
EXPECTED_ADDRESS: Final = 'HOST:PORT, or "off"'
#: Schemes of ActiveMQ's connectors that this release knows by name only.
LATER: Final = (
    "openwire",
    "tcp",
    "nio",
    "ssl",
    "ws",
    "wss",
    "mqtt",
    "mqtt+ssl",
    "stomp+ssl",
    "stomp+nio",
    "amqp",
    "auto",
)
PORT_MAX: Final = 65_535
HEART_BEAT_MS_MAX: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """What may stand behind the `?` of a connector's URI; sizes in bytes, times in ms, defaults those of ActiveMQ.

    ActiveMQ leaves max_frame_size of STOMP open, which is no bound at all: here it is that of its other protocols.
    """

    max_frame_size: int = 100 << 20
    max_data_length: int = 100 << 20
    hb_grace_period_multiplier: float = 2.0
    default_heart_beat: tuple[int, int] = (0, 0)
    connect_attempt_timeout: int = 30_000
    maximum_connections: int = 10_000


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector's URI, taken apart."""

    scheme: str
    address: Address
    options: ConnectorOptions


def address(text: str) -> Address:
    """HOST:PORT, [v6]:PORT. Raises ValueError with what was expected."""
    return _address(text, EXPECTED_ADDRESS)


def connector(uri: str) -> Connector:
    """Take a connector's URI apart. Raises ValueError with what was expected."""
    parts = _split(uri, 'a URI like "stomp://127.0.0.1:61613"')
    if parts.scheme in LATER:
        raise ValueError(f'a connector of this release, "stomp://HOST:PORT": {parts.scheme} comes with a later release')
    if parts.scheme != "stomp":
        raise ValueError('a connector of this release, "stomp://HOST:PORT"')
    if parts.path not in ("", "/") or parts.fragment:
        raise ValueError(
            'nothing but options behind the port, as "stomp://127.0.0.1:61613?wireFormat.maxFrameSize=1mb"'
        )
    return Connector(parts.scheme, _address(parts.netloc, "stomp://HOST:PORT"), _options(parts.query))


def admin(uri: str) -> Address | None:
    """The address of the admin server; None when it is off. Raises ValueError with what was expected."""
    if uri == OFF:
        return None
    expected = 'a URI like "http://127.0.0.1:8161", or "off"'
    parts = _split(uri, expected)
    if parts.scheme != "http" or parts.path not in ("", "/") or parts.query or parts.fragment:
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
        raise ValueError(f"{expected} (an IPv6 address stands in brackets)")
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


# ActiveMQ sets a STOMP connector's limits through `wireFormat.` and `transport.` alike.
_MAX_FRAME_SIZE: Final = ("max_frame_size", _at_least_one(size))
_MAX_DATA_LENGTH: Final = ("max_data_length", _at_least_one(size))
OPTIONS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "wireFormat.maxFrameSize": _MAX_FRAME_SIZE,
    "transport.maxFrameSize": _MAX_FRAME_SIZE,
    "wireFormat.maxDataLength": _MAX_DATA_LENGTH,
    "transport.maxDataLength": _MAX_DATA_LENGTH,
    "transport.hbGracePeriodMultiplier": ("hb_grace_period_multiplier", _multiplier),
    "transport.defaultHeartBeat": ("default_heart_beat", _heart_beat),
    "transport.connectAttemptTimeout": ("connect_attempt_timeout", _at_least_one(milliseconds)),
    "maximumConnections": ("maximum_connections", _at_least_one(count)),
}


def _options(query: str) -> ConnectorOptions:
    options = ConnectorOptions()
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            near = get_close_matches(name, OPTIONS, 1)
            hint = f" (did you mean {near[0]}?)" if near else f" ({', '.join(OPTIONS)})"
            raise ValueError(f"options that exist, and {name} does not{hint}")
        field, parse = OPTIONS[name]
        try:
            options = replace(options, **{field: parse(value)})  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"for the option {name} {error}") from error
    return options
