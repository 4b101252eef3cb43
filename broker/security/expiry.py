"""Expiry of the certificates and revocation lists in the settings: warnings before it, in the log, in the status and as
a metric.

The dates are read from the files (RFC 5280, 4.1 and 5.1), because Python's TLS contexts return only the certificates of
authorities.
"""

from __future__ import annotations

import base64
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tandemmq import log_events
from tandemmq.broker.security.file_changes import Watched
from tandemmq.disk import opened

log = logging.getLogger(__name__)

DAY_SECONDS: Final = 86_400.0
#: Remaining time below which a certificate is a warning.
LEFT_SECONDS_MIN: Final = 30 * DAY_SECONDS
#: Remaining part of its lifetime, which is days or weeks, below which a revocation list is a warning.
LEFT_PART_MIN: Final = 0.25
FILE_BYTES_MAX: Final = 4 << 20

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----([^-]+)-----END CERTIFICATE-----")
_LIST_PEM: Final = re.compile(rb"-----BEGIN X509 CRL-----([^-]+)-----END X509 CRL-----")
_VERSION, _INTEGER, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x02, 0x17, 0x18


@dataclass(frozen=True, slots=True)
class _Expiry:
    """First expiry of a kind of certificate or list in a file: it expires ``at``, and is a warning from ``soon``.
    Seconds since 1970."""

    path: str
    kind: str
    at: float
    soon: float

    def level(self, now: float) -> int:
        return logging.NOTSET if now <= self.soon else logging.WARNING if now < self.at else logging.ERROR

    def sentence(self, now: float) -> str:
        date = _date(self.at)
        if self.at <= now:
            return (
                f"{self.path}: a {self.kind} expired on {date}. Connections that need it fail. Replace it in this file"
            )
        days = int((self.at - now) // DAY_SECONDS)
        return f"{self.path}: a {self.kind} expires on {date}, in {days} days. Replace it in this file"


class Expiries:
    """Expiry of the certificates in ``paths`` and of the revocation lists in ``list_paths``. A file may contain
    several. Runs on the loop. Call ``refresh`` once a second."""

    def __init__(
        self, paths: Iterable[str], list_paths: Iterable[str] = (), clock: Callable[[], float] = time.time
    ) -> None:
        """``clock``: seconds since 1970."""
        self._paths = list(dict.fromkeys(paths))
        self._list_paths = list(dict.fromkeys(list_paths))
        self._clock = clock
        self._watched = Watched(list(dict.fromkeys([*self._paths, *self._list_paths])))
        self._found: list[_Expiry] = []
        self._levels: list[int] = []  # level at which each expiry was logged
        self._logged_at = -DAY_SECONDS

    def refresh(self) -> None:
        """Read the files again if one changed. Log certificates and lists that have expired or expire soon, after a
        change and once a day."""
        now = self._clock()
        has_changed = self._watched.has_changed()
        is_news = has_changed or [each.level(now) for each in self._found] != self._levels
        if not is_news and abs(now - self._logged_at) < DAY_SECONDS:
            return
        self._logged_at = now
        self._found = list(self._read())
        self._levels = [each.level(now) for each in self._found]
        for each, level in zip(self._found, self._levels, strict=True):
            if level:
                log.log(level, "%s", each.sentence(now), extra=log_events.CERTIFICATE_EXPIRES)

    def _read(self) -> Iterator[_Expiry]:
        for path in self._paths:
            if (first := first_expiry(path)) is not None:
                yield _Expiry(path, "certificate", first, first - LEFT_SECONDS_MIN)
        for path in self._list_paths:
            if (dates := first_list(path)) is not None:
                began, ends = dates
                yield _Expiry(
                    path, "revocation list", ends, ends - min(LEFT_SECONDS_MIN, (ends - began) * LEFT_PART_MIN)
                )

    def sentences(self) -> list[str]:
        """Return a sentence for each expiry that has passed or is soon."""
        now = self._clock()
        return [each.sentence(now) for each in self._found if each.level(now)]

    def figures(self) -> list[dict[str, Any]]:
        """Return the figures for the status: of each file, the certificate and the revocation list that expire
        first."""
        now = self._clock()
        return [
            {
                "file": each.path,
                "kind": each.kind,
                "expires": _date(each.at),
                "remaining_seconds": round(each.at - now),
                "is_expiring": each.level(now) > logging.NOTSET,
            }
            for each in self._found
        ]


def counts(figures: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return two counts of files: those with a certificate or list that has expired or expires soon, and those with one
    that has expired."""
    found = list(figures)
    return {
        "certificates_expiring": sum(each["is_expiring"] for each in found),
        "certificates_expired": sum(each["remaining_seconds"] <= 0 for each in found),
    }


def first_expiry(path: str) -> float | None:
    """Return the earliest expiry of the certificates in the file, in seconds since 1970. None: a certificate cannot be
    read, or the file has no certificate."""
    return min(_expiries(path), default=None)


def leaf_expiry(path: str) -> float | None:
    """Return the expiry of the first certificate in the file, in seconds since 1970. OpenSSL presents this certificate
    to peers."""
    return next(iter(_expiries(path, 1)), None)


def first_list(path: str) -> tuple[float, float] | None:
    """Return thisUpdate and nextUpdate of the revocation list that expires first, in seconds since 1970. If an issuer
    has several lists, only its list with the latest expiry counts, as for OpenSSL. None: the file has no readable list
    that expires."""
    newest: dict[bytes, tuple[float, float]] = {}
    try:
        for der in _found(path, _LIST_PEM):
            issuer, began, ends = _list(der)
            newest[issuer] = max(newest.get(issuer, (began, ends)), (began, ends), key=lambda dates: dates[1])
    except (OSError, ValueError, IndexError):
        return None
    return min((dates for dates in newest.values() if dates[1] < math.inf), key=lambda dates: dates[1], default=None)


def _expiries(path: str, count: int | None = None) -> list[float]:
    """Return the expiry of the first ``count`` certificates in the file (None: of all); an empty list if one of them
    cannot be read."""
    try:
        return [_expiry(der) for der in _found(path, _PEM)[:count]]
    except (OSError, ValueError, IndexError):
        return []  # the code that uses the file reports the error


def _found(path: str, pem: re.Pattern[bytes]) -> list[bytes]:
    """Return the DER of each match of ``pem`` in the file. Raises OSError or ValueError."""
    with opened(os, os.path.realpath(path), os.O_RDONLY) as descriptor:
        text = os.pread(descriptor, FILE_BYTES_MAX, 0)
    return [base64.b64decode(match) for match in pem.findall(text)]


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- DER


def _expiry(der: bytes) -> float:
    """Return notAfter of a certificate. Raises ValueError or IndexError if ``der`` is not a certificate."""
    ((_, certificate),) = _fields(der)
    (_, signed), *_ = _fields(certificate)
    fields = [value for tag, value in _fields(signed) if tag != _VERSION]
    _, _, _, validity, *_ = fields  # serial number, algorithm, issuer, validity
    _, (tag, text) = _fields(validity)
    return _time(tag, text)


def _list(der: bytes) -> tuple[bytes, float, float]:
    """Return issuer, thisUpdate and nextUpdate (infinity if missing) of a revocation list. Raises ValueError or
    IndexError if ``der`` is not a revocation list."""
    ((_, whole),) = _fields(der)
    (_, signed), *_ = _fields(whole)
    fields = [(tag, value) for tag, value in _fields(signed) if tag != _INTEGER]  # without the version
    _, (_, issuer), began, *rest = fields  # the first is the algorithm
    ends = rest[0] if rest and rest[0][0] in _FORMATS else None
    return issuer, _time(*began), math.inf if ends is None else _time(*ends)


_FORMATS: Final = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


def _time(tag: int, text: bytes) -> float:
    found = datetime.strptime(text.decode("ascii"), _FORMATS.get(tag, "")).replace(tzinfo=UTC)
    if tag == _UTC_TIME and found.year >= 2050:  # RFC 5280, 4.1.2.5.1; strptime begins the century at 1969
        found = found.replace(year=found.year - 100)
    return found.timestamp()


def _fields(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each value in a DER sequence."""
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(der[at : at + count], "big")
            at += count
        if at + length > len(der):
            raise ValueError("a value is longer than its container")
        yield tag, der[at : at + length]
        at += length
