"""The admin server over a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from tandemmq.broker.admin.connections import HEADER_BYTES_MAX, PIECE_BYTES_MAX, Connections
from tandemmq.broker.admin.places import SILENT_SECONDS_MIN, Places, State
from tandemmq.broker.admin.server import AdminServer
from tandemmq.broker.core.slices import Work, pieces

MASTER: dict[str, Any] = {"role": "master", "epoch": 3, "name": "a", "store": "/data"}


class Broker:
    """Broker whose pages are requested; a test changes ``status`` between two requests."""

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
async def test_other_requests_are_refused(client: aiohttp.ClientSession, method: str, page: str, status: int) -> None:
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
    """Return whether the server closes the connection within five seconds. Earlier output is ignored."""
    try:
        async with asyncio.timeout(5):
            await reader.read()
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


class Clock:
    """Is moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Attacked:
    """A server with few places, a page that wants a body, and a clock that is moved by hand."""

    def __init__(self, places: int) -> None:
        async def change(request: web.Request) -> web.Response:
            return web.Response(body=await request.read())

        self.clock = Clock()
        self.connections = Connections(Places(places), self.clock)

        async def large(request: web.Request) -> web.Response:
            return web.Response(body=bytes(32 << 20))  # more than sockets take

        routes = [web.post("/change", change), web.get("/large", large)]
        self.server = AdminServer("127.0.0.1", 0, lambda: MASTER, routes, connections=self.connections)
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, said: bytes, waits: State) -> asyncio.StreamReader:
        """A peer that says that, and for what the server waits then."""
        before = set(self.connections.places)
        reader, writer = await asyncio.open_connection(*self.server.address)
        writer.write(said)
        self.writers.append(writer)
        async with asyncio.timeout(10):
            while {each.state for each in set(self.connections.places) - before} != {waits}:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
        return reader

    async def get(self, page: str) -> tuple[int, str | None]:
        """Status, and what it says of the connection."""
        async with aiohttp.ClientSession(self.server.url, trust_env=False) as client, client.get(page) as answer:
            await answer.read()
            return answer.status, answer.headers.get("Connection")


@pytest.fixture
async def attacked() -> AsyncIterator[Attacked]:
    attacked = Attacked(3)
    await attacked.server.start()
    yield attacked
    for writer in attacked.writers:
        writer.close()
    await attacked.server.stop()


GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
NO_BODY = b"POST /change HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"
SILENT = {
    "nothing": (b"", State.HEAD),
    "a part of a head": (b"GET /status HTT", State.HEAD),
    "no body": (NO_BODY, State.BODY),
    "no second request": (GET, State.IDLE),
    "an answer that is not read": (GET.replace(b"/health", b"/large"), State.WRITE),
}


@pytest.mark.parametrize("peer", SILENT)
async def test_a_peer_that_does_not_go_on_is_hung_up_on(attacked: Attacked, peer: str) -> None:
    reader = await attacked.connect(*SILENT[peer])
    attacked.clock.now = 9.9
    attacked.connections.close_overdue()
    assert len(attacked.connections.places) == 1
    attacked.clock.now = 30.1
    attacked.connections.close_overdue()
    assert await is_cut_off(reader)
    assert len(attacked.connections.places) == 0
    assert await attacked.get("/health") == (200, None)


async def test_a_peer_that_drips_its_second_head_has_the_time_of_one(attacked: Attacked) -> None:
    reader = await attacked.connect(GET, State.IDLE)
    (place,) = attacked.connections.places
    for byte in b"GET /":
        attacked.clock.now += 2.5
        attacked.writers[0].write(bytes([byte]))
        async with asyncio.timeout(10):
            while place.state is not State.HEAD:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
    attacked.connections.close_overdue()
    assert not attacked.writers[0].is_closing()
    assert place.since == 2.5, "the time of its first byte"
    attacked.clock.now = 12.6
    attacked.connections.close_overdue()
    assert await is_cut_off(reader)


async def test_posts_without_bodies_hold_up_no_health_check(attacked: Attacked) -> None:
    """Former fault: 64 posts did. Here the posts are as new as the checks, from the same address, and no time
    passes."""
    for _ in range(3):
        await attacked.connect(NO_BODY, State.BODY)
    for page, status in (("/health/live", 200), ("/health/ready", 200), ("/status", 503)):
        assert await attacked.get(page) == (status, "close")
    assert [place.state for place in attacked.connections.places] == [State.BODY] * 3
    attacked.clock.now = SILENT_SECONDS_MIN
    assert await attacked.get("/status") == (200, None), "in the place of the oldest"


async def ask(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> tuple[asyncio.StreamReader, list[int]]:
    """A peer that says that at once, and the lengths of the pieces that aiohttp gets."""
    pieces: list[int] = []
    parse = RequestHandler.data_received

    def note(self: RequestHandler, data: bytes) -> None:
        pieces.append(len(data))
        parse(self, data)

    monkeypatch.setattr(RequestHandler, "data_received", note)
    reader, writer = await asyncio.open_connection(*attacked.server.address)
    attacked.writers.append(writer)
    writer.write(said)
    return reader, pieces


async def test_a_body_of_one_byte_chunks_is_parsed_in_pieces(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 5_000
    head = b"POST /change HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader, pieces = await ask(attacked, monkeypatch, head + b"1\r\nx\r\n" * count + b"0\r\n\r\n")
    async with asyncio.timeout(20):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await reader.readexactly(count) == b"x" * count
    assert max(pieces) == PIECE_BYTES_MAX
    assert sum(pieces) == len(head) + 6 * count + 5


async def test_requests_that_come_together_wait_outside_of_aiohttp(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await may_end.wait()
        return web.Response(text=request.query["n"])

    attacked.server._routes = [web.get("/wait", wait)]
    await attacked.server.stop()
    await attacked.server.start()
    count = 1_000
    requests = [b"GET /wait?n=%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(count)]
    reader, pieces = await ask(attacked, monkeypatch, b"".join(requests))
    async with asyncio.timeout(20):
        while not pieces:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        (connection,) = attacked.connections._of.values()
        assert len(connection._messages) * len(requests[0]) < PIECE_BYTES_MAX
        assert sum(pieces) <= 2 * PIECE_BYTES_MAX
        may_end.set()
        for number in range(count):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(str(number))) == b"%d" % number


async def test_a_read_ends_with_its_connection_and_a_change_goes_on(attacked: Attacked) -> None:
    begun, may_end = asyncio.Queue[str](), asyncio.Event()
    ends: dict[str, asyncio.Future[str]] = {}

    async def work(request: web.Request) -> web.Response:
        how = ends[request.method] = asyncio.get_running_loop().create_future()
        begun.put_nowait(request.method)
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            how.set_result("cancelled")
            raise
        how.set_result("done")
        return web.Response()

    server = AdminServer("127.0.0.1", 0, lambda: MASTER, [web.get("/work", work), web.post("/work", work)])
    await server.start()
    try:
        for method in ("GET", "POST"):
            _, writer = await asyncio.open_connection(*server.address)
            writer.write(f"{method} /work HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert await begun.get() == method
            writer.close()
        async with asyncio.timeout(10):
            assert await ends["GET"] == "cancelled"
            may_end.set()
            assert await ends["POST"] == "done"
    finally:
        await server.stop()


@pytest.mark.parametrize("page", ["/status", "/metrics"])
async def test_those_who_ask_at_the_same_time_have_one_answer(page: str) -> None:
    made = 0

    def details() -> Work[dict[str, Any]]:
        nonlocal made
        made += 1
        for _ in range(1_000):
            yield
        return {}

    server = AdminServer("127.0.0.1", 0, lambda: MASTER, details=details)
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url, trust_env=False) as client:

            async def ask() -> bytes:
                async with client.get(page) as answer:
                    return await answer.read()

            answers = await asyncio.gather(*(ask() for _ in range(20)))
    finally:
        await server.stop()
    assert all(answers)
    assert made < 20


BROKEN = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "a strange head": b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
    "a long head": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2 * HEADER_BYTES_MAX + b"\r\n\r\n",
    "chunks that are none": b"POST /change HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a foreign site": b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://[::1\r\n\r\n",
    "an end within the body": NO_BODY,
}


@pytest.mark.parametrize("said", BROKEN)
async def test_invalid_requests_are_logged_once_a_minute(
    attacked: Attacked, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    for round_ in range(2):
        for _ in range(10):
            reader, writer = await asyncio.open_connection(*attacked.server.address)
            writer.write(BROKEN[said])
            writer.write_eof() if said == "an end within the body" else None
            writer.close() if said == "an end within the body" else None
            if not writer.is_closing():
                assert (await reader.readuntil(b"\r\n")).split()[1].startswith(b"4")
                writer.close()
        assert await attacked.get("/health") == (200, None)
        lines = [record for record in caplog.records if record.name.startswith(("tandemmq", "aiohttp", "asyncio"))]
        assert len(lines) <= round_ + 1
        assert not any(record.exc_info for record in lines)
        attacked.clock.now += 61


async def test_a_status_with_very_many_destinations_lets_others_have_their_turns() -> None:
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
