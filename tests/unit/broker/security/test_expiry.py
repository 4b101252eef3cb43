"""Certificates that expire soon are reported in time."""

from __future__ import annotations

import logging
import ssl
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.broker.security import expiry
from tandemmq.broker.security.expiry import DAY_SECONDS, Expiries, first_expiry, first_list
from tandemmq.broker.security.tls import Tls, TlsPlan
from tests.support.security.authority import Authority

pytestmark = pytest.mark.promise("certificates-are-reloaded")


class Clock:
    """Clock that the test sets, in seconds since 1970."""

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
def test_a_file_without_a_valid_certificate_has_no_date(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.pem").write_bytes(text)
    (tmp_path / "b.pem").write_bytes(text.replace(b"CERTIFICATE", b"X509 CRL"))
    assert [first_expiry(str(tmp_path / name)) for name in ("a.pem", "none.pem", ".")] == [None] * 3
    assert [first_list(str(tmp_path / name)) for name in ("b.pem", "none.pem", ".")] == [None] * 3


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
    expiries = Expiries([str(path), str(path)], clock=clock)
    told = []
    for days in (0, 11, 11.5, 12.1, 41):
        clock.now = time.time() + days * DAY_SECONDS
        caplog.clear()
        expiries.refresh()
        told.append([each.levelno for each in caplog.records])
    assert told == [[], [logging.WARNING], [], [logging.WARNING], [logging.ERROR]]
    assert ["expired on" in each for each in expiries.sentences()] == [True]
    assert expiry.counts(expiries.figures()) == {"certificates_expiring": 1, "certificates_expired": 1}
    authority.certificate("renewed", at="broker", days=90)
    for _ in range(2):
        expiries.refresh()
    assert expiries.sentences() == []
    assert expiry.counts(expiries.figures()) == {"certificates_expiring": 0, "certificates_expired": 0}


@pytest.mark.parametrize("days", [2, 20, 40_000])
def test_the_date_of_a_revocation_list_is_openssls(authority: Authority, days: int) -> None:
    # Beside a certificate, and a list of the same issuer that holds for less long.
    authority.root.write_bytes(authority.root.read_bytes() + b"".join(map(authority.revocations, (days, 1, days))))
    made = authority.directory / f"{authority.name}.crl"
    openssl = ["openssl", "crl", "-lastupdate", "-nextupdate", "-noout", "-in", str(made)]
    shown = subprocess.run(openssl, capture_output=True, text=True).stdout.splitlines()
    began, ends = (ssl.cert_time_to_seconds(line.partition("=")[2]) for line in shown)
    found = first_list(str(authority.root))
    assert found is not None
    assert (found[0] == pytest.approx(began, abs=2), found[1] == pytest.approx(ends, abs=2)) == (True, True)


def test_a_revocation_list_is_told_of_when_a_quarter_of_its_time_is_left(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    broker, lists = authority.certificate("broker", days=90), authority.directory / "trusted.pem"
    lists.write_bytes(authority.root.read_bytes() + authority.revocations(8))
    plan, clock = TlsPlan(str(broker), ca=str(lists), client_auth="need", check_revocation=True), Clock()
    expiries = Expiries([str(broker)], Tls(plan).revocation_lists, clock)
    assert Tls(replace(plan, check_revocation=False)).revocation_lists == []
    told = []
    for days in (0, 5.9, 6.1, 6.2, 7.9, 8.1):  # a new level does not wait for the next day
        clock.now = time.time() + days * DAY_SECONDS
        caplog.clear()
        expiries.refresh()
        told.append([each.levelno for each in caplog.records])
    assert told == [[], [], [logging.WARNING], [], [logging.WARNING], [logging.ERROR]]
    assert [each.partition(" on ")[0] for each in expiries.sentences()] == [f"{lists}: a revocation list expired"]
    assert [each["kind"] for each in expiries.figures()] == ["certificate", "revocation list"]
    assert expiry.counts(expiries.figures()) == {"certificates_expiring": 1, "certificates_expired": 1}
    lists.write_bytes(authority.root.read_bytes() + authority.revocations(40))
    for _ in range(2):
        expiries.refresh()
    assert expiries.sentences() == []


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
