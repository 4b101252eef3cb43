"""Requests of the console to a running broker: sessions, and the figures of its pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.acceptance.broker_process import serving
from tests.support.acceptance.console_broker import ConsoleBroker, Letters

Client = aiohttp.ClientSession


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleBroker]:
    with serving(ConsoleBroker(tmp_path_factory.mktemp("console"))) as (broker,):
        asyncio.run(Letters(broker.stomp).write())
        yield broker


@pytest.fixture
async def client(broker: ConsoleBroker) -> AsyncIterator[Client]:
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address
    async with Client(f"http://127.0.0.1:{broker.admin}", cookie_jar=jar, trust_env=False) as session:
        yield session


async def log_in(client: Client, name: str) -> str:
    async with client.post("/api/v1/session", json={"login": name, "passcode": f"{name} secret"}) as answer:
        assert answer.status == 200
        found = await answer.json()
        assert isinstance(found["csrf"], str)
        return found["csrf"]


async def get(client: Client, path: str) -> dict[str, Any]:
    async with client.get(f"/api/v1{path}") as answer:
        assert answer.status == 200, await answer.text()
        found = await answer.json()
        assert isinstance(found, dict)
        return found


@pytest.mark.promise("console-is-protected")
async def test_a_change_without_the_second_secret_of_the_session_is_refused(client: Client) -> None:
    csrf = await log_in(client, "otto")
    paused = {"consumers": True}
    async with client.post("/api/v1/destinations/queue/ORDERS/pause", json=paused) as answer:
        assert answer.status == 401
    async with client.post(
        "/api/v1/destinations/queue/ORDERS/pause", json=paused, headers={"X-CSRF-Token": csrf.swapcase()}
    ) as answer:
        assert answer.status == 401
    assert not (await get(client, "/destinations/queue/ORDERS"))["consumers_paused"]
    for word in ("pause", "resume"):
        async with client.post(
            f"/api/v1/destinations/queue/ORDERS/{word}", json=paused, headers={"X-CSRF-Token": csrf}
        ) as answer:
            assert answer.status == 200


@pytest.mark.promise("console-is-protected")
async def test_the_cookie_is_kept_from_scripts_and_from_other_sites(client: Client, broker: ConsoleBroker) -> None:
    await log_in(client, "vera")
    (cookie,) = client.cookie_jar
    assert cookie.key == f"tandemmq-session-{broker.admin}"  # two brokers of one host have different cookies
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    assert (await get(client, "/session"))["name"] == "vera"


async def test_what_its_pages_ask_is_told(client: Client) -> None:
    """Figures are sums, without a list of destinations; files that stay are named with the reason."""
    await log_in(client, "vera")
    figures = await get(client, "/figures")
    assert figures["messages"] == figures["counts"]["messages"] == Letters.LEFT
    assert figures["counts"]["enqueued_total"] >= Letters.SENT
    assert "queues" in figures
    assert not any(isinstance(value, list) for value in figures.values())
    assert (await get(client, "/store/why"))["files"][0]["name"] == "db-1.log"
