"""Certificates that expire are told of while there is time."""

from __future__ import annotations

import logging
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from tandemmq.broker.security import expiry
from tandemmq.broker.security.expiry import DAY_SECONDS, Expiries, first_expiry
from tandemmq.broker.security.tls import Tls, TlsPlan
from tests.support.security.authority import Authority

pytestmark = pytest.mark.promise("certificates-are-reloaded")


class Clock:
    """Of a test: seconds since 1970."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("days", [1, 45, 20_000, 40_000])  # the last two are beyond 2049: another form of the date
def test_the_date_is_openssls(authority: Authority, days: int) -> None:
    path = authority.certificate("broker", days=days)
    shown = subprocess.run(["openssl", "x509", "-enddate", "-noout", "-in", str(path)], capture_output=True, text=True)
    assert first_expiry(str(path)) == ssl.cert_time_to_seconds(shown.stdout.strip().removeprefix("notAfter="))


@pytest.mark.parametrize("text", [b"", b"none", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_has_no_date(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.pem").write_bytes(text)
    assert [first_expiry(str(tmp_path / name)) for name in ("a.pem", "none.pem", ".")] == [None] * 3


def test_of_a_file_the_first_that_expires_counts(authority: Authority) -> None:
    long, short = authority.certificate("long", days=90), authority.certificate("short", days=20)
    both = authority.directory / "both.pem"
    both.write_bytes(long.read_bytes() + short.read_bytes())
    assert first_expiry(str(both)) == first_expiry(str(short))


def test_it_is_told_at_the_start_daily_and_until_the_file_is_replaced(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    path = authority.certificate("broker", days=40)
    clock = Clock()
    expiries = Expiries([str(path), str(path)], clock)
    told = []
    for days in (0, 11, 11.5, 12.1, 41):
        clock.now = time.time() + days * DAY_SECONDS
        caplog.clear()
        expiries.look()
        told.append([each.levelno for each in caplog.records])
    assert told == [[], [logging.WARNING], [], [logging.WARNING], [logging.ERROR]]
    assert ["expired on" in each for each in expiries.sentences()] == [True]
    assert expiry.counts(expiries.figures()) == {"certificates_expiring": 1, "certificates_expired": 1}
    authority.certificate("renewed", at="broker", days=90)
    for _ in range(2):
        expiries.look()
    assert expiries.sentences() == []
    assert expiry.counts(expiries.figures()) == {"certificates_expiring": 0, "certificates_expired": 0}


def test_one_that_has_expired_does_not_take_the_place_of_one_that_has_not(authority: Authority) -> None:
    path, clock = authority.certificate("broker", days=9), Clock()
    tls = Tls(TlsPlan(str(path)), clock)
    clock.now += 5 * DAY_SECONDS
    behind = b""
    for days, is_refused in ((2, True), (20, False)):
        renewed = authority.certificate(f"of-{days}", at="broker", days=days)
        renewed.write_bytes(renewed.read_bytes() + behind)
        behind = (authority.directory / "of-2.crt").read_bytes()  # of a chain: its own certificate is the first
        tls.reload()
        assert (tls.problem is not None) == is_refused
