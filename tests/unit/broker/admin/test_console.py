"""The files of the console, over a real socket, and content that they must not have."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest

from tandemmq.broker.admin.console import (
    CONTENT_SECURITY_POLICY,
    FIRST_PAGE,
    FIRST_PAGE_SCRIPT,
    console_files,
    console_routes,
)
from tandemmq.broker.admin.server import AdminServer
from tests.support.tree import ROOT

STATIC = ROOT / "broker" / "admin" / "console" / "static"
FIRST_PAGE_BYTES_MAX = 200_000
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in STATIC.iterdir()}


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    status = {"role": "standby", "epoch": 0, "name": "a", "store": "/data"}
    server = AdminServer("127.0.0.1", 0, lambda: status, console_routes())
    await server.start()
    async with aiohttp.ClientSession(server.url, trust_env=False) as session:
        yield session
    await server.stop()


@pytest.mark.parametrize("page", ["/", "/console", "/console/", f"/console/{FIRST_PAGE}"])
async def test_the_first_page_says_what_it_may_load(client: aiohttp.ClientSession, page: str) -> None:
    async with client.get(page) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert await answer.text() == TEXTS[FIRST_PAGE]
        policy = answer.headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", f"script-src 'self' {FIRST_PAGE_SCRIPT}", "style-src 'self'"} <= set(policy)
        assert "connect-src 'self'" in policy
        assert {"frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"} <= set(policy)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-cache"


async def test_a_client_with_a_cached_file_gets_not_modified(client: aiohttp.ClientSession) -> None:
    async with client.get("/console/app.js") as answer:
        assert answer.content_type == "text/javascript"
        etag = answer.headers["ETag"]
    async with client.get("/console/app.js", headers={"If-None-Match": f'"other", {etag}'}) as answer:
        assert answer.status == 304
        assert await answer.read() == b""
        assert answer.headers["ETag"] == etag
    async with client.get("/console/app.js", headers={"If-None-Match": '"other"'}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("name", ["nowhere.js", "..%2Ffiles.py", "%2e%2e/files.py", "app.js/", "__init__.py"])
async def test_other_files_are_not_served(client: aiohttp.ClientSession, name: str) -> None:
    async with client.get(f"/console/{name}") as answer:
        assert answer.status == 404
        assert "console_files" not in await answer.text()


def test_every_file_is_served_and_all_together_are_small() -> None:
    found = console_files()
    assert set(found) == set(TEXTS)
    assert sum(len(file.content) for file in found.values()) < FIRST_PAGE_BYTES_MAX


def test_the_console_loads_nothing_from_other_sites() -> None:
    for name, text in TEXTS.items():
        addresses = set(re.findall(r"https?://[^\s\"'`]*", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
    for loaded in re.findall(r'(?:src|href)="([^"]+)"', TEXTS[FIRST_PAGE]):
        assert loaded.startswith(("/console/", "#"))
        assert not loaded.startswith("/") or Path(loaded).name in TEXTS


def test_text_never_becomes_markup() -> None:
    """The browser refuses it, too (Trusted Types); this test names the line."""
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|\.style\b|srcdoc"
    for name, text in TEXTS.items():
        if name.endswith(".js"):
            assert not re.search(ways, text), name
    assert not re.search(r"<style|\sstyle=|\son\w+=", TEXTS[FIRST_PAGE])
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_the_script_within_the_first_page_is_the_one_that_may_run() -> None:
    """CSP level 2, 7.2.2: the hash of what stands between the tags."""
    (script,) = re.findall(r"<script>(.*?)</script>", TEXTS[FIRST_PAGE], re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" == FIRST_PAGE_SCRIPT
