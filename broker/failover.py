"""The addresses of a pair of brokers, as a client is given them.

    stomp://host:port
    failover:(stomp://a:61613,stomp://b:61613)?maxReconnectAttempts=5&randomize=false

The option names, units and defaults are those of ActiveMQ's failover transport ("Failover Transport
Reference"), so that a URL can be moved here as it stands. Pure: it says where to try and how long to wait
before the next round, and knows neither sockets nor clocks.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

__all__ = ["Address", "FailoverUrl", "UrlError"]

DEFAULT_STOMP_PORT = 61613
UNLIMITED = -1
_SCHEMES = ("stomp", "tcp")
_FAILOVER = re.compile(r"failover:(?://)?(?:\((?P<listed>[^()]*)\)|(?P<bare>[^?()]*))(?:\?(?P<options>.*))?", re.DOTALL)


class UrlError(ValueError):
    """The URL cannot be understood; the message names the part and what was expected."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """One broker's STOMP port. Prints as the URL it was read from."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"stomp://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class FailoverUrl:
    """Addresses to try, in this order unless ``randomize``, and how patient to be. Times are milliseconds.

    ``max_reconnect_attempts``: rounds over all addresses after the first; -1 for ever, 0 never again.
    ``timeout_ms``: a send that finds no broker for this long gives up; -1 waits as long as attempts last.
    """

    addresses: tuple[Address, ...]
    initial_reconnect_delay_ms: int = 10
    max_reconnect_delay_ms: int = 30_000
    use_exponential_back_off: bool = True
    back_off_multiplier: float = 2.0
    max_reconnect_attempts: int = UNLIMITED
    randomize: bool = True
    timeout_ms: int = UNLIMITED

    @classmethod
    def parse(cls, text: str) -> "FailoverUrl":
        """Read a ``stomp://`` or a ``failover:`` URL; raises UrlError for all else.

        A plain ``stomp://`` URL is one address tried once: whoever wants reconnects says ``failover:``.
        """
        text = text.strip()
        if not text.startswith("failover:"):
            return cls((_address(text),), max_reconnect_attempts=0, randomize=False)
        matched = _FAILOVER.fullmatch(text)
        if matched is None:
            raise UrlError(f"{text!r}: expected failover:(stomp://host:port,...)?option=value")
        listed = matched["listed"] if matched["listed"] is not None else matched["bare"]
        addresses = tuple(_address(part.strip()) for part in listed.split(",") if part.strip())
        if not addresses:
            raise UrlError(f"{text!r}: failover needs at least one address")
        settings: dict[str, int | float | bool] = {}
        for name, value in parse_qsl(matched["options"] or "", keep_blank_values=True):
            _option(settings, name, value)
        return cls(addresses, **settings)  # type: ignore[arg-type]  # _OPTIONS pairs each field with its reader

    def __str__(self) -> str:
        options = "&".join(
            f"{name}={_written(getattr(self, field))}"
            for name, (field, _) in _OPTIONS.items()
            if getattr(self, field) != getattr(_DEFAULTS, field)
        )
        return f"failover:({','.join(map(str, self.addresses))})" + (f"?{options}" if options else "")

    def delays_seconds(self) -> Iterator[float]:
        """How long to wait before each further round of attempts; ends when they are used up."""
        delay = float(self.initial_reconnect_delay_ms)
        attempt = 0
        while self.max_reconnect_attempts == UNLIMITED or attempt < self.max_reconnect_attempts:
            yield min(delay, self.max_reconnect_delay_ms) / 1000
            attempt += 1
            # Stops growing at the limit: a client that waits for days must not overflow a float.
            if self.use_exponential_back_off and delay < self.max_reconnect_delay_ms:
                delay *= self.back_off_multiplier


def _address(text: str) -> Address:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as problem:
        raise UrlError(f"{text!r}: {problem}") from None
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise UrlError(f"{text!r}: expected stomp://host:port")
    if parts.username or parts.path.strip("/"):
        raise UrlError(f"{text!r}: expected nothing but host and port; give login and passcode as options")
    if port == 0:
        raise UrlError(f"{text!r}: port 0 is not an address")
    return Address(parts.hostname, port if port is not None else DEFAULT_STOMP_PORT)


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _milliseconds(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _limit(text: str) -> int:
    value = int(text)
    if value < UNLIMITED:
        raise ValueError
    return value


def _multiplier(text: str) -> float:
    value = float(text)
    if not 1.0 <= value <= 1000.0:
        raise ValueError
    return value


_OPTIONS = {
    "initialReconnectDelay": ("initial_reconnect_delay_ms", _milliseconds),
    "maxReconnectDelay": ("max_reconnect_delay_ms", _milliseconds),
    "useExponentialBackOff": ("use_exponential_back_off", _flag),
    "backOffMultiplier": ("back_off_multiplier", _multiplier),
    "maxReconnectAttempts": ("max_reconnect_attempts", _limit),
    "randomize": ("randomize", _flag),
    "timeout": ("timeout_ms", _limit),
}
_EXPECTED = {
    _flag: "true or false",
    _milliseconds: "milliseconds",
    _limit: "a number, or -1 for no limit",
    _multiplier: "a number from 1 to 1000",
}
_DEFAULTS = FailoverUrl((Address("localhost", DEFAULT_STOMP_PORT),))


def _option(settings: dict[str, int | float | bool], name: str, value: str) -> None:
    if name not in _OPTIONS:
        raise UrlError(f"option {name!r} is unknown; expected one of {', '.join(_OPTIONS)}")
    field, read = _OPTIONS[name]
    try:
        settings[field] = read(value)
    except (ValueError, KeyError, OverflowError):
        raise UrlError(f"option {name}={value!r}: expected {_EXPECTED[read]}") from None


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
