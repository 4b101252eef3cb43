"""Address of the admin server that a broker advertises."""

from __future__ import annotations

import socket

import pytest

from tandemmq.broker.wiring import _admin_url
from tandemmq.config.load import load


@pytest.mark.parametrize(
    ("admin", "hostname", "told"),
    [
        ("0.0.0.0:8161", "one.example.org", "http://one.example.org:8161"),
        ("10.0.0.1:8161", "one.example.org", "http://10.0.0.1:8161"),
        ("127.0.0.1:8161", "one.example.org", None),
        ("127.0.0.1:8161", "127.0.0.1", "http://127.0.0.1:8161"),
        ("off", "one.example.org", None),
    ],
)
def test_an_address_that_others_cannot_reach_is_not_advertised(admin: str, hostname: str, told: str | None) -> None:
    admin_uri = admin if admin == "off" else f"http://{admin}"
    overrides = ("broker.name=orders", f"replication.hostname={hostname}", f"admin.uri={admin_uri}")
    assert _admin_url(load(None, {}, overrides)) == told


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ((), "http://127.0.0.1:8161"),
        (("admin.uri=http://0.0.0.0:8161",), f"http://{socket.gethostname()}:8161"),
        (("admin.uri=http://[::]:8161",), f"http://{socket.gethostname()}:8161"),
        (("admin.uri=http://0.0.0.0:8161", "admin.advertised=one.example.org:80"), "http://one.example.org:80"),
        (("admin.uri=http://127.0.0.1:8161", "admin.advertised=[fd00::1]:81"), "http://[fd00::1]:81"),
        (
            ("broker.name=a", "replication.hostname=h.example.org", "admin.advertised=one.example.org:80"),
            "http://one.example.org:80",
        ),
    ],
)
def test_the_configured_address_is_advertised_and_never_a_wildcard(overrides: tuple[str, ...], told: str) -> None:
    assert _admin_url(load(None, {}, overrides)) == told
