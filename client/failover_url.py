"""The URL of one broker, or of a pair: its contents, and the order and times of attempts. Pure.

    stomp://host:port
    stomp+ssl://host:port
    failover:(stomp://a:61613,stomp://b:61613)?initialReconnectDelay=10&randomize=false

Option names, defaults and meanings are those of ActiveMQ's failover transport (FailoverTransport.java, 5.17).
``OPTIONS`` lists them: each is supported, ignored with its reason in ``FailoverUrl.remarks``, or refused with its
reason; docs/clients.md shows the same table. Uses neither sockets nor clocks.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

__all__ = ["OPTIONS", "Address", "FailoverUrl", "Option", "Treatment", "UrlError"]

DEFAULT_STOMP_PORT = 61613
DEFAULT_STOMP_SSL_PORT = 61614
UNLIMITED = -1
_SCHEMES = ("stomp", "tcp")
_ENCRYPTED_SCHEMES = ("stomp+ssl", "stomp+nio+ssl", "ssl", "nio+ssl")
_FAILOVER = re.compile(r"failover:(?://)?(?:\((?P<listed>[^()]*)\)|(?P<bare>[^?()]*))(?:\?(?P<options>.*))?", re.DOTALL)
# Larger numbers of milliseconds are mistakes, and would overflow the timers.
_MILLISECONDS_MAX = 2**31 - 1


class UrlError(ValueError):
    """The URL cannot be understood; the message names the part and what was expected."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """STOMP address of one broker. Prints as the URL that it was read from."""

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"stomp{'+ssl' if self.is_tls else ''}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class FailoverUrl:
    """Addresses to try, and limits of the attempts. Times are milliseconds.

    A *round* is one attempt at each address. ``max_reconnect_attempts``: number of rounds after a loss; -1: no limit,
    0: none. For the first connection, ``startup_max_reconnect_attempts`` applies unless it is -1, with at least one
    round. ``timeout_ms``: a send fails after this time without a broker; -1: after the last round. ``heart_beat_ms``:
    interval of the heart-beats of both sides; 0: none. ``remarks``: options that have no effect, each with the reason.
    """

    addresses: tuple[Address, ...]
    initial_reconnect_delay_ms: int = 10
    max_reconnect_delay_ms: int = 30_000
    use_exponential_back_off: bool = True
    back_off_multiplier: float = 2.0
    max_reconnect_attempts: int = UNLIMITED
    startup_max_reconnect_attempts: int = UNLIMITED
    randomize: bool = True
    timeout_ms: int = UNLIMITED
    warn_after_reconnect_attempts: int = 10
    connect_timeout_ms: int = 5_000
    heart_beat_ms: int = 10_000
    remarks: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def parse(cls, text: str) -> FailoverUrl:
        """Read a ``stomp://``, ``stomp+ssl://`` or ``failover:`` URL. Raises UrlError for anything else.

        A URL without ``failover:`` is one address tried once: for reconnects use ``failover:``.
        """
        text = text.strip()
        if not text.startswith("failover:"):
            return cls((_address(text),), max_reconnect_attempts=0, randomize=False)
        matched = _FAILOVER.fullmatch(text)
        if matched is None:
            raise UrlError(f"{text!r}: expected failover:(stomp://host:port,...)?option=value")
        listed = matched["listed"] if matched["listed"] is not None else matched["bare"]
        addresses = tuple(dict.fromkeys(_address(part.strip()) for part in listed.split(",") if part.strip()))
        if not addresses:
            raise UrlError(f"{text!r}: failover needs at least one address")
        settings: dict[str, int | float | bool] = {}
        remarks: list[str] = []
        for name, value in parse_qsl(matched["options"] or "", keep_blank_values=True):
            option = _option(name)
            if option.treatment is Treatment.IGNORED:
                remarks.append(f"{name} does nothing here: {option.meaning}")
            else:
                settings[option.field] = _value(name, option, value)
        # OPTIONS pairs each field with its reader.
        return cls(addresses, **settings, remarks=tuple(remarks))  # type: ignore[arg-type]

    def pauses_seconds(self, *, is_first: bool) -> Iterator[float]:
        """Yield the pause before each round; ends when the rounds are used up.

        The first connection is tried at once, a reconnect after ``initial_reconnect_delay_ms``; then each pause grows
        by the multiplier.
        """
        limit = self.max_reconnect_attempts
        if is_first:
            if self.startup_max_reconnect_attempts != UNLIMITED:
                limit = self.startup_max_reconnect_attempts
            limit = limit if limit == UNLIMITED else max(1, limit)
        delay = float(self.initial_reconnect_delay_ms)
        made = 0
        while limit == UNLIMITED or made < limit:
            if is_first and made == 0:
                yield 0.0
            else:
                yield min(delay, self.max_reconnect_delay_ms) / 1000
                # The delay stops growing at the limit, so it does not overflow a float after days.
                if self.use_exponential_back_off and delay < self.max_reconnect_delay_ms:
                    delay *= self.back_off_multiplier
            made += 1

    def order(self, failed: Address | None, chance: random.Random) -> list[Address]:
        """Return the addresses in the order to try: shuffled if ``randomize``; ``failed`` is the last."""
        addresses = [address for address in self.addresses if address != failed]
        if self.randomize:
            chance.shuffle(addresses)
        if failed in self.addresses:
            addresses.append(failed)
        return addresses


class Treatment(Enum):
    """Treatment of an option by the client."""

    SUPPORTED = "supported"
    IGNORED = "ignored"
    REFUSED = "refused"


Read = Callable[[str], int | float | bool]


class Reader(NamedTuple):
    """The function that reads a value, and the expected form for its error message."""

    read: Read
    expected: str


class Option(NamedTuple):
    """Option of the URL. ``meaning``: its effect, or the reason why it has no effect or is refused."""

    treatment: Treatment
    meaning: str
    field: str = ""
    reader: Reader | None = None


def _supported(meaning: str, field: str, reader: Reader) -> Option:
    return Option(Treatment.SUPPORTED, meaning, field, reader)


def _ignored(meaning: str) -> Option:
    return Option(Treatment.IGNORED, meaning)


def _refused(meaning: str) -> Option:
    return Option(Treatment.REFUSED, meaning)


def _address(text: str) -> Address:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as problem:
        raise UrlError(f"{text!r}: {problem}") from None
    is_tls = parts.scheme in _ENCRYPTED_SCHEMES
    if not (is_tls or parts.scheme in _SCHEMES) or not parts.hostname:
        raise UrlError(f"{text!r}: expected stomp://host:port or stomp+ssl://host:port")
    if parts.username or parts.path.strip("/"):
        raise UrlError(f"{text!r}: expected only host and port; give login and passcode as options")
    if parts.query or parts.fragment:
        raise UrlError(
            f"{text!r}: options of one address are ignored; to set an option for all addresses, use ?nested.<option>="
        )
    if port == 0:
        raise UrlError(f"{text!r}: port 0 is not an address")
    if port is None:
        port = DEFAULT_STOMP_SSL_PORT if is_tls else DEFAULT_STOMP_PORT
    return Address(parts.hostname, port, is_tls)


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _number_from(low: float, high: float = _MILLISECONDS_MAX, kind: type[int] | type[float] = int) -> Read:
    def read(text: str) -> int | float:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return read


_FLAG = Reader(_flag, "true or false")
_MILLISECONDS = Reader(_number_from(0), "milliseconds")
_MILLISECONDS_FROM_1 = Reader(_number_from(1), "milliseconds, at least 1")
_LIMIT = Reader(_number_from(UNLIMITED), "a number, or -1 for no limit")
_MULTIPLIER = Reader(_number_from(1.0, 1000.0, float), "a number from 1 to 1000")

_NO_CONTROL = "a STOMP broker cannot advertise other addresses"
_ONE_LISTENS = "only the master of a pair listens"
_KEPT_ANYHOW = "the client keeps each message until its receipt, at most `window` messages"

OPTIONS: Final[Mapping[str, Option]] = {
    "initialReconnectDelay": _supported(
        "pause after a lost connection, and first pause between two rounds",
        "initial_reconnect_delay_ms",
        _MILLISECONDS,
    ),
    "maxReconnectDelay": _supported("longest pause between two rounds", "max_reconnect_delay_ms", _MILLISECONDS),
    "useExponentialBackOff": _supported("whether pauses increase", "use_exponential_back_off", _FLAG),
    "backOffMultiplier": _supported("factor by which pauses increase", "back_off_multiplier", _MULTIPLIER),
    "reconnectDelayExponent": _supported("older name of backOffMultiplier", "back_off_multiplier", _MULTIPLIER),
    "maxReconnectAttempts": _supported(
        "rounds over all addresses after a lost connection; -1: no limit, 0: none (as ActiveMQ 5.6 and later)",
        "max_reconnect_attempts",
        _LIMIT,
    ),
    "startupMaxReconnectAttempts": _supported(
        "rounds for the first connection, at least one; -1: the value of maxReconnectAttempts",
        "startup_max_reconnect_attempts",
        _LIMIT,
    ),
    "randomize": _supported(
        "try the addresses in random order; the address that was just lost is always last", "randomize", _FLAG
    ),
    "timeout": _supported("time without a broker after which a send, flush or commit fails", "timeout_ms", _LIMIT),
    "warnAfterReconnectAttempts": _supported(
        "log the first failed round, then each n-th one; 0 or less: none", "warn_after_reconnect_attempts", _LIMIT
    ),
    "nested.connectionTimeout": _supported(
        "time limit for CONNECTED, default 5000 (ActiveMQ: 30000, for the TCP connection)",
        "connect_timeout_ms",
        _MILLISECONDS_FROM_1,
    ),
    "nested.wireFormat.maxInactivityDuration": _supported(
        "interval of heart-beats in both directions; after 1.5 intervals of silence the connection is lost; "
        "0: no heart-beats (default of ActiveMQ: 30000)",
        "heart_beat_ms",
        _MILLISECONDS,
    ),
    "nested.tcpNoDelay": _ignored("always on"),
    "nested.keepAlive": _ignored("heart-beats detect a dead peer sooner than TCP keep-alive"),
    "backup": _ignored(_ONE_LISTENS),
    "backupPoolSize": _ignored(_ONE_LISTENS),
    "priorityBackup": _ignored(_ONE_LISTENS),
    "priorityURIs": _ignored(_ONE_LISTENS),
    "trackMessages": _ignored(_KEPT_ANYHOW),
    "maxCacheSize": _ignored(_KEPT_ANYHOW),
    "trackTransactionProducers": _ignored("STOMP does not register producers"),
    "updateURIsSupported": _ignored(_NO_CONTROL),
    "rebalanceUpdateURIs": _ignored(_NO_CONTROL),
    "reconnectSupported": _ignored(_NO_CONTROL),
    "connectionInterruptProcessingTimeout": _ignored(
        "deliveries of a lost connection are dropped at once, because they are redelivered"
    ),
    "reconnectDelay": _ignored("internal state of ActiveMQ; use initialReconnectDelay"),
    "updateURIsURL": _refused("list the addresses in the URL"),
    "nested.*": _refused("only the nested options of docs/clients.md are supported"),
    "jms.*": _refused("an option of ActiveMQ's Java client"),
}


def _option(name: str) -> Option:
    """Return the option of this name, supported or ignored. Raises UrlError if it is refused or unknown."""
    option = OPTIONS.get(name)
    if option is None:
        option = OPTIONS.get(f"{name.partition('.')[0]}.*")
    if option is None:
        supported = (known for known, option in OPTIONS.items() if option.treatment is Treatment.SUPPORTED)
        raise UrlError(f"option {name!r} is unknown; expected one of {', '.join(supported)}")
    if option.treatment is Treatment.REFUSED:
        raise UrlError(f"option {name!r} is refused: {option.meaning}")
    return option


def _value(name: str, option: Option, text: str) -> int | float | bool:
    assert option.reader is not None, f"option {name} is done and has a reader"
    try:
        return option.reader.read(text)
    except (ValueError, KeyError, OverflowError):
        raise UrlError(f"option {name}={text!r}: expected {option.reader.expected}") from None
