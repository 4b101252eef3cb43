"""The admin server as a tool sees it: over a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tandemmq.broker.admin import server as admin_server
from tandemmq.broker.admin.server import HEADER_BYTES_MAX, AdminServer
from tandemmq.broker.core.slices import Work, pieces

MASTER: dict[str, Any] = {"role": "master", "epoch": 3, "name": "a", "store": "/data"}


class Broker:
    """What the pages are about; a test changes ``status`` between two requests."""

    def __init__(self) -> None:
        self.status = dict(MASTER)

    def __call__(self) -> dict[str, Any]:
        return self.status


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
async def server(broker: Broker) -> AsyncIterator[AdminServer]:
    server = AdminServer("127.0.0.1", 0, broker)
    server.bind()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: AdminServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, trust_env=False) as client:
        yield client


async def test_status_is_what_the_broker_says(broker: Broker, client: aiohttp.ClientSession) -> None:
    broker.status |= {"queues": [{"name": "orders", "messages": 2, "consumers": 1}]}
    async with client.get("/status") as answer:
        assert answer.status == 200
        assert answer.content_type == "application/json"
        assert await answer.json() == broker.status


async def test_a_page_that_fails_answers_with_a_sentence(client: aiohttp.ClientSession, broker: Broker) -> None:
    broker.status = {"epoch": 3}  # without a role
    async with client.get("/health") as answer:
        assert answer.status == 500
        assert "KeyError" in (await answer.json())["error"]


STANDBY = {"role": "standby"}
BETWEEN = "the broker is neither master nor standby, but"
PROBLEM, WARNING = "storage: write failed with errno 28", "unsafe: no keep-alive"


@pytest.mark.parametrize(
    ("changes", "page", "status", "reply"),
    [
        ({}, "/health", 200, {"live": True, "ready": True, "role": "master", "epoch": 3}),
        ({}, "/health?ready", 200, {}),
        (STANDBY, "/health", 200, {"live": True, "ready": False, "standby": True}),
        (STANDBY, "/health?ready", 503, {}),
        ({"role": "starting"}, "/health", 503, {"live": False, "problems": [f"{BETWEEN} starting"]}),
        ({"role": "demoted"}, "/health", 503, {"live": False, "problems": [f"{BETWEEN} demoted"]}),
        ({"problems": [PROBLEM]}, "/health", 503, {"problems": [PROBLEM]}),
        ({"warnings": [WARNING]}, "/health", 200, {"warnings": [WARNING]}),
    ],
)
async def test_health_is_that_of_the_role_and_its_problems(
    broker: Broker,
    client: aiohttp.ClientSession,
    changes: dict[str, Any],
    page: str,
    status: int,
    reply: dict[str, Any],
) -> None:
    broker.status |= changes
    async with client.get(page) as answer:
        assert answer.status == status
        found = await answer.json()
    assert found | reply == found


TAKEOVER = {"total_seconds": 0.25, "lock_seconds": 0.2, "replay_seconds": 0.04, "load_seconds": 0.01}
PREDICTED = ("tandemmq_takeover_predicted_seconds 0.25", "tandemmq_takeover_predicted_lock_seconds 0.2")
LAG = {"bytes": 1300, "records": 1, "seconds": None}


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, ('tandemmq_broker_info{name="a",version=""} 1.0', "tandemmq_epoch 3.0")),
        ({}, ('tandemmq_role{role="master"} 1.0', 'tandemmq_role{role="standby"} 0.0')),
        (
            {"counts": {"connections": 4, "journal_syncs_total": 17}},
            ("tandemmq_connections 4.0", "tandemmq_journal_syncs_total 17.0"),
        ),
        (
            {"queue_sums": {"queues": 2, "messages": 7, "consumers": 1}},
            ("tandemmq_queues 2.0", "tandemmq_queue_messages 7.0"),
        ),
        (STANDBY | {"standby": {"has_caught_up": True}}, ("tandemmq_standby_caught_up 1.0",)),
        (STANDBY | {"standby": {"has_caught_up": False}}, ("tandemmq_standby_caught_up 0.0",)),
        ({"takeover": TAKEOVER}, PREDICTED),
        (
            STANDBY | {"standby": {"has_caught_up": False, "lag": LAG, "takeover": TAKEOVER}},
            (*PREDICTED, "tandemmq_standby_lag_bytes 1300.0"),
        ),
    ],
)
async def test_metrics_show_what_the_status_says(
    broker: Broker, client: aiohttp.ClientSession, changes: dict[str, Any], lines: tuple[str, ...]
) -> None:
    broker.status |= changes
    async with client.get("/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        shown = (await answer.text()).splitlines()
    assert set(lines) <= set(shown)
    names = [line.partition(" ")[0] for line in shown]
    assert ("tandemmq_standby_lag_bytes" in names) is ("tandemmq_standby_lag_bytes 1300.0" in lines)
    assert "tandemmq_standby_lag_seconds" not in names, "never at the end: not known"


async def test_a_bound_server_does_not_listen_before_start_and_has_metrics_of_its_own(
    client: aiohttp.ClientSession,
) -> None:
    other = AdminServer("127.0.0.1", 0, lambda: MASTER | {"epoch": 9})
    other.bind()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(other.address, timeout=5)
    await other.start()
    async with client.get(f"{other.url}/metrics") as answer:
        assert "tandemmq_epoch 9.0" in await answer.text()
    await other.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(other.address, timeout=5)
    async with client.get("/metrics") as answer:
        assert "tandemmq_epoch 3.0" in await answer.text()


@pytest.mark.parametrize(
    ("method", "page", "status"),
    [("GET", "/etc/passwd", 404), *((each, "/status", 405) for each in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"))],
)
async def test_nothing_else_is_answered(client: aiohttp.ClientSession, method: str, page: str, status: int) -> None:
    async with client.request(method, page) as answer:
        assert answer.status == status


async def test_a_header_over_the_bound_is_refused_and_the_next_peer_is_served(client: aiohttp.ClientSession) -> None:
    async with client.get("/status", headers={"X-Long": "x" * (HEADER_BYTES_MAX + 1)}) as answer:
        assert answer.status == 400
    async with client.get("/status") as answer:
        assert answer.status == 200


async def test_a_taken_port_fails_at_bind_and_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"admin server: 127.0.0.1:{port}"):
            AdminServer("127.0.0.1", port, lambda: MASTER).bind()


async def is_cut_off(reader: asyncio.StreamReader) -> bool:
    """Within a while; what comes before is passed over."""
    try:
        async with asyncio.timeout(5):
            await reader.read()
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


async def test_who_does_not_finish_his_request_is_hung_up_on(
    server: AdminServer, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_server, "IDLE_CONNECTION_SECONDS_MAX", 0.2)
    monkeypatch.setattr(admin_server, "LOOK_SECONDS", 0.05)
    await server.stop()
    await server.start()
    host, port = server.address
    silent = await asyncio.open_connection(host, port)
    slow = await asyncio.open_connection(host, port)
    slow[1].write(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await slow[0].readuntil(b"}")
    slow[1].write(b"GET /status HTT")
    assert await is_cut_off(silent[0])
    assert await is_cut_off(slow[0])
    async with aiohttp.ClientSession(server.url, trust_env=False) as other, other.get("/health") as answer:
        assert answer.status == 200
    for _, writer in (silent, slow):
        writer.close()


async def test_who_is_silent_makes_room_for_others(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_server, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(admin_server, "SILENT_SECONDS_MIN", 0.05)
    host, port = server.address
    silent = [await asyncio.open_connection(host, port) for _ in range(3)]
    refused = await asyncio.open_connection(host, port)
    assert await is_cut_off(refused[0]), "nobody has been silent for long"
    await asyncio.sleep(0.1)
    async with aiohttp.ClientSession(server.url, trust_env=False) as client, client.get("/health") as answer:
        assert answer.status == 200
    assert await is_cut_off(silent[0][0])
    for _, writer in (*silent, refused):
        writer.close()


async def test_what_is_told_of_very_many_destinations_leaves_others_their_turns() -> None:
    count = 50_000

    def details() -> Work[dict[str, Any]]:
        queues = []
        for piece in pieces(range(count)):
            queues += [{"name": f"queue-{number}", "messages": number} for number in piece]
            yield
        return {"queues": queues, "queue_sums": {"queues": count}, "counts": {"messages": 7}}

    server = AdminServer("127.0.0.1", 0, lambda: MASTER | {"counts": {"clients": 2}}, details=details)
    await server.start()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    try:
        async with aiohttp.ClientSession(server.url, trust_env=False) as client:
            async with client.get("/health") as answer:
                await answer.read()
            before = turns
            async with client.get("/status") as answer:
                told = await answer.json()
            assert turns - before > 10
            async with client.get("/metrics") as answer:
                assert f"tandemmq_queues {count}.0" in (await answer.text()).splitlines()
    finally:
        turning.cancel()
        await server.stop()
    assert told["counts"] == {"clients": 2, "messages": 7}
    assert [each["name"] for each in told["queues"]] == [f"queue-{number}" for number in range(count)]
