"""When the certificates that the settings name expire: said in the log, in status and as a metric while there is time.

The dates are read from the files (RFC 5280, 4.1), not from OpenSSL's contexts, which hand out authorities only.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from tandemmq import log_events
from tandemmq.broker.security.file_changes import Watched
from tandemmq.disk import opened

log = logging.getLogger(__name__)

DAY_SECONDS: Final = 86_400.0
#: A certificate that has less left is a warning.
LEFT_SECONDS_MIN: Final = 30 * DAY_SECONDS
FILE_BYTES_MAX: Final = 4 << 20

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


class Expiries:
    """Of some files, each with one certificate or several. On the loop: ``look`` once a second."""

    def __init__(self, paths: Iterable[str], clock: Callable[[], float] = time.time) -> None:
        """``clock``: seconds since 1970."""
        self._paths = list(dict.fromkeys(paths))
        self._clock = clock
        self._watched = Watched(self._paths)
        self._expires: dict[str, float] = {}
        self._logged_at = -DAY_SECONDS

    def look(self) -> None:
        """Read the files again if one changed; log what expires soon, then and once a day."""
        now = self._clock()
        if not self._watched.has_changed() and abs(now - self._logged_at) < DAY_SECONDS:
            return
        self._logged_at = now
        self._expires = {path: first for path in self._paths if (first := first_expiry(path)) is not None}
        for path, at in self._expires.items():
            if at - now < LEFT_SECONDS_MIN:
                level = logging.WARNING if at > now else logging.ERROR
                log.log(level, "%s", _sentence(path, at, now), extra=log_events.CERTIFICATE_EXPIRES)

    def sentences(self) -> list[str]:
        """What expired, or soon does."""
        now = self._clock()
        return [_sentence(path, at, now) for path, at in self._expires.items() if at - now < LEFT_SECONDS_MIN]

    def figures(self) -> list[dict[str, Any]]:
        """For status: of each file the certificate that expires first."""
        now = self._clock()
        return [
            {"file": path, "expires": _date(at), "remaining_seconds": round(at - now)}
            for path, at in self._expires.items()
        ]


def counts(figures: Iterable[dict[str, Any]]) -> dict[str, int]:
    """How many files have a certificate that expires soon, those that have expired among them, and how many these."""
    left = [each["remaining_seconds"] for each in figures]
    return {
        "certificates_expiring": sum(each < LEFT_SECONDS_MIN for each in left),
        "certificates_expired": sum(each <= 0 for each in left),
    }


def first_expiry(path: str) -> float | None:
    """Seconds since 1970, of the certificate in the file that expires first. None: there is none that can be read."""
    return min(_expiries(path), default=None)


def leaf_expiry(path: str) -> float | None:
    """As ``first_expiry``, of the first certificate in the file, which is the one that OpenSSL shows as its owner's."""
    return next(iter(_expiries(path, 1)), None)


def _expiries(path: str, count: int | None = None) -> list[float]:
    """Of the first ``count`` certificates in the file; empty if one of them cannot be read."""
    try:
        with opened(os, os.path.realpath(path), os.O_RDONLY) as descriptor:
            text = os.pread(descriptor, FILE_BYTES_MAX, 0)
        return [_expiry(base64.b64decode(match)) for match in _PEM.findall(text)[:count]]
    except (OSError, ValueError, IndexError, binascii.Error):
        return []  # whoever uses the file says what is wrong with it


def _sentence(path: str, at: float, now: float) -> str:
    if at <= now:
        return f"{path}: a certificate expired on {_date(at)}. Connections that need it fail. Replace it in this file"
    days = int((at - now) // DAY_SECONDS)
    return f"{path}: a certificate expires on {_date(at)}, in {days} days. Replace it in this file"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- DER


def _expiry(der: bytes) -> float:
    """notAfter of a certificate. Raises ValueError or IndexError if it is none."""
    ((_, certificate),) = _fields(der)
    (_, signed), *_ = _fields(certificate)
    fields = [value for tag, value in _fields(signed) if tag != _VERSION]
    _, _, _, validity, *_ = fields  # serial number, algorithm, issuer, validity
    _, (tag, text) = _fields(validity)
    formats = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
    found = datetime.strptime(text.decode("ascii"), formats.get(tag, "")).replace(tzinfo=UTC)
    if tag == _UTC_TIME and found.year >= 2050:  # RFC 5280, 4.1.2.5.1; strptime begins the century at 1969
        found = found.replace(year=found.year - 100)
    return found.timestamp()


def _fields(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of one value after the other."""
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(der[at : at + count], "big")
            at += count
        if at + length > len(der):
            raise ValueError("a value is longer than what holds it")
        yield tag, der[at : at + length]
        at += length
