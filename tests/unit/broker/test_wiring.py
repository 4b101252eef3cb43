"""The parts of a broker together: other threads get the interpreter soon while a body is prepared, and the address of
the admin server that a broker advertises."""

from __future__ import annotations

import asyncio
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tandemmq.broker.process.switch_interval import SHORT_SECONDS, start
from tandemmq.broker.wiring import _admin_url, _prepare_in_thread
from tandemmq.config.load import load


async def test_the_loop_gets_the_interpreter_soon_while_a_body_is_prepared() -> None:
    start()
    usual, is_over = sys.getswitchinterval(), asyncio.Event()
    seen: list[float] = []
    with ThreadPoolExecutor(1) as threads:
        for work in (lambda: seen.append(1.0), lambda: 1 / 0):
            is_over.clear()
            _prepare_in_thread(threads, work, is_over.set)
            seen.append(sys.getswitchinterval())
            await is_over.wait()
            assert sys.getswitchinterval() == usual, "also after an error"
    assert round(seen[-1], 6) == SHORT_SECONDS


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
