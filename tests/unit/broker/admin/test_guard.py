"""Permissions of callers of the admin server, over a real socket."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tandemmq.broker.admin import guard as guards
from tandemmq.broker.admin.callers import TOKEN_HOLDER
from tandemmq.broker.admin.guard import Guard
from tandemmq.broker.admin.node_pages import ReplicationPages
from tandemmq.broker.admin.places import HEALTH_PLACES, PLACES
from tandemmq.broker.admin.server import AdminServer
from tandemmq.broker.admin.token import TOKEN, new_token, read_token
from tandemmq.broker.core.access import Access, Credentials, OpenAccess, Operation, refused_login, refused_operation
from tandemmq.broker.core.principal import Principal
from tandemmq.disk import NotRegular
from tandemmq.store.records.message import Destination, DestinationKind

pytestmark = pytest.mark.promise("admin-rights")

MASTER: dict[str, Any] = {"role": "master", "epoch": 3, "name": "a", "store": "/data"}


class Users(OpenAccess):
    """ann is admin of everything, bob of queues alone."""

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None:
        is_known = credentials.login in ("ann", "bob") and credentials.passcode == "secret"
        then(Principal(credentials.login or "") if is_known else refused_login(credentials.login))

    def check(self, principal: Principal, operation: Operation, destination: Destination) -> None:
        if principal.name != "ann" and destination.kind is DestinationKind.TOPIC:
            raise refused_operation(principal, operation, destination)


class Place:
    """An admin server with a page that changes something."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "index" / "a.admin-token"
        self.changes = 0
        self.status = MASTER
        self.replication: dict[str, Any] = {}
        self.server: AdminServer | None = None
        self.guard: Guard | None = None

    async def start(self, access: Access | None = None, *hosts: str) -> aiohttp.ClientSession:
        self.guard = guard = Guard(str(self.file), hosts, access)
        guard.start()
        member: Any = SimpleNamespace(overview=lambda: self.replication)
        routes = [web.post("/change", self.change), *ReplicationPages(member, lambda: None).routes()]
        self.server = AdminServer("127.0.0.1", 0, lambda: self.status, routes, check=guard.check)
        await self.server.start()
        return aiohttp.ClientSession(self.server.url, trust_env=False)

    async def change(self, request: web.Request) -> web.Response:
        self.changes += 1
        return web.json_response({})

    @property
    def token(self) -> str:
        return self.file.read_text().strip()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    if place.server is not None:
        await place.server.stop()


async def code(client: aiohttp.ClientSession, method: str, page: str, **headers: str) -> int:
    async with client.request(method, page, headers=headers) as answer:
        return answer.status


async def test_only_who_has_the_token_changes_something(place: Place) -> None:
    async with await place.start() as client:
        assert await code(client, "GET", "/status") == 200
        for wrong in ("", "Bearer ", "Bearer x", f"Bearer {place.token[:-1]}", f"Basic {place.token}", "Bearer é"):
            async with client.post("/change", headers={"Authorization": wrong}) as answer:
                assert answer.status == 401, wrong
                assert (await answer.json())["token_file"] == str(place.file)
        assert place.changes == 0
        assert await code(client, "POST", "/change", Authorization=f"Bearer {place.token}") == 200
        assert await code(client, "DELETE", "/nothing") == 401, "before it is looked for"
    assert place.changes == 1


STATUS = MASTER | {
    "version": "1.2.3",
    "problems": ["queue SECRET holds back shop"],
    "warnings": ["/data/secret.pem expired"],
    "counts": {"connections": 7},
    "lock": {"type": "file", "where": "/data/lock"},
    "replication": {"role": "master", "followers": {"s" * 32: {"node": "SECRET", "lag_bytes": 5}}},
    "bridges": [{"name": "SECRET", "connected": True, "connects": 1, "received": 0, "sent": 0, "refused": 0}],
}
SHORT = {"role": "master", "epoch": 3, "live": False, "ready": False}
SECRETS = ("SECRET", "/data", "shop", '"a"')


async def test_without_a_login_pages_name_nothing_once_there_are_users(place: Place) -> None:
    # proves: pages-are-for-viewers, metrics-without-a-login-name-nothing
    place.status = STATUS
    async with await place.start(Users()) as client:
        for page in ("/status", "/metrics", "/health", "/health/live"):
            async with client.get(page) as answer:
                text = await answer.text()
                assert not [each for each in SECRETS if each in text], page
                if page != "/metrics":
                    more = {"version": "1.2.3"} if page == "/status" else {}
                    assert await answer.json() == SHORT | more
                else:
                    assert "tandemmq_connections 7.0" in text
                    assert 'tandemmq_replication_follower_lag_bytes{node="1",store="1"} 5.0' in text
        for page in ("/lock", "/events", "/store/why", "/log-level", "/nothing"):
            assert await code(client, "GET", page) == 401, page
        assert await code(client, "GET", "/") == 404, "the console needs no login"
        for wrong in (basic("ann", "wrong"), "Bearer x", ""):
            assert await code(client, "GET", "/status", Authorization=wrong) == 401
        for right in (basic("ann", "secret"), f"Bearer {place.token}"):
            async with client.get("/status", headers={"Authorization": right}) as answer:
                assert (await answer.json())["warnings"] == STATUS["warnings"]
            assert await code(client, "GET", "/nothing", Authorization=right) == 404
        for page, status in (("/status", 200), ("/metrics", 200), ("/lock", 403), ("/nothing", 403)):
            async with client.get(page, headers={"Authorization": basic("bob", "secret")}) as answer:
                assert answer.status == status, "a user without a role gets what no login gets"
                text = await answer.text()
                assert not [each for each in SECRETS if each in text], page


async def test_a_probe_learns_whether_a_node_is_in_its_set_and_no_name(place: Place) -> None:
    place.replication = {"role": "follower", "epoch": 3, "is_whole": True, "position": [3, 3, 9], "node": "SECRET"}
    async with await place.start(Users()) as client:
        for headers, is_whole in (({}, False), ({"Authorization": basic("ann", "secret")}, True)):
            async with client.get("/replication", headers=headers) as answer:
                told = await answer.json()
            assert ("node" in told) is is_whole
            assert told["position"] == [3, 3, 9]


async def test_without_users_pages_are_for_everybody(place: Place) -> None:
    async with await place.start() as client, client.get("/status") as answer:
        assert (await answer.json())["name"] == "a"


@pytest.mark.parametrize(
    ("remote", "is_told"), [("127.0.0.1", True), ("::1", True), ("10.0.0.7", False), ("2001:db8::1", False)]
)
async def test_the_path_of_the_token_is_shown_only_on_this_machine(place: Place, remote: str, is_told: bool) -> None:
    # proves: the-place-of-the-token-is-for-this-machine
    async with await place.start():
        assert place.guard is not None
        headers = {"Host": "localhost", "Authorization": "Bearer wrong"}
        request = make_mocked_request("POST", "/change", headers).clone(remote=remote)
        answer = await place.guard.check(request, place.change)
    assert isinstance(answer, web.Response)
    assert answer.body is not None
    assert answer.status == 401
    assert (str(place.file).encode() in bytes(answer.body)) is is_told


async def test_a_token_that_is_no_text_is_wrong(place: Place) -> None:
    async with await place.start():
        assert place.server is not None
        reader, writer = await asyncio.open_connection(*place.server.address)
        writer.write(b"POST /change HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"401"
        writer.close()


async def test_the_token_is_its_owners_and_stays(place: Place) -> None:
    async with await place.start():
        token = place.token
    assert TOKEN.fullmatch(token)
    assert stat.S_IMODE(place.file.stat().st_mode) == 0o600
    place.file.chmod(0o640)
    async with await place.start():
        assert place.token == token, "a group was let in"
    place.file.chmod(0o644)
    async with await place.start():
        assert place.token != token, "everybody could read it"
    assert stat.S_IMODE(place.file.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "secret", "tandemmq-admin-short", "x" * 100_000])
async def test_an_invalid_token_is_replaced(place: Place, content: str) -> None:
    place.file.parent.mkdir()
    place.file.write_text(content)
    place.file.chmod(0o600)
    async with await place.start():
        assert TOKEN.fullmatch(place.token)


async def test_another_token_holds_from_the_next_look_on_and_sessions_of_the_former_end(place: Place) -> None:
    async with await place.start() as client:
        assert place.guard is not None
        former, sessions = place.token, place.guard.sessions
        sessions.begin(TOKEN_HOLDER)
        for text, expected in (("", former), ("no token", former), (f"{new_token()}\n", None)):
            place.file.write_text(text)
            place.guard.refresh()
            place.guard.refresh()
            token = expected or place.token
            assert await code(client, "POST", "/change", Authorization=f"Bearer {token}") == 200
            assert sessions.ends_of(TOKEN_HOLDER.name) == (0 if expected else 1)
        assert await code(client, "POST", "/change", Authorization=f"Bearer {former}") == 401


async def test_a_pipe_in_its_place_holds_nobody_up(place: Place) -> None:
    place.file.parent.mkdir()
    os.mkfifo(place.file, 0o600)
    async with await place.start():
        assert TOKEN.fullmatch(place.token)


async def test_a_link_is_not_followed(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "target"
    former = f"tandemmq-admin-{'x' * 43}"
    target.write_text(former)
    target.chmod(0o600)
    place.file.parent.mkdir()
    place.file.symlink_to(target)
    with pytest.raises(NotRegular, match="symbolic link"):
        read_token(str(place.file))
    async with await place.start() as client:
        assert await code(client, "POST", "/change", Authorization=f"Bearer {former}") == 401
        assert await code(client, "POST", "/change", Authorization=f"Bearer {place.token}") == 200
    assert target.read_text() == former


async def test_users_can_continue_if_no_token_can_be_stored(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.file.parent.write_text("no directory")
    async with await place.start(Users()) as client:
        assert "the admin token cannot be stored" in caplog.text
        assert await code(client, "POST", "/change", Authorization="Bearer ") == 401
        assert await code(client, "POST", "/change", Authorization=basic("ann", "secret")) == 200
        assert place.guard is not None
        place.guard.refresh()
        place.file.parent.unlink()
        place.guard.refresh()
        assert await code(client, "POST", "/change", Authorization=f"Bearer {place.token}") == 200


def basic(login: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{login}:{password}'.encode()).decode()}"


async def test_a_user_with_all_rights_changes_something(place: Place) -> None:
    async with await place.start(Users()) as client:
        for login, password in (("ann", "wrong"), ("ann", ""), ("", "secret"), ("bob", "secret"), ("zoe", "secret")):
            assert await code(client, "POST", "/change", Authorization=basic(login, password)) == 401, login
        assert place.changes == 0
        assert await code(client, "POST", "/change", Authorization=basic("ann", "secret")) == 200


class Undecided(Users):
    """Access in which no password is ever decided."""

    def connect(self, credentials: Credentials, then: Callable[[Any], None]) -> None: ...


async def test_a_login_that_is_not_decided_is_no_wrong_password(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_LOGIN_SECONDS_MAX", 0.01)
    headers = {"Authorization": basic("ann", "secret")}
    async with await place.start(Undecided()) as client, client.post("/change", headers=headers) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
        assert "not decided" in (await answer.json())["error"]


async def test_guesses_take_no_place_from_who_has_the_token(place: Place) -> None:
    guess = f"GET /api/ HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('ann', 'guess')}\r\n\r\n".encode()
    async with await place.start(Undecided()) as client:
        assert place.server is not None
        writers = []
        for _ in range(PLACES + HEALTH_PLACES):
            _, writer = await asyncio.open_connection(*place.server.address)
            writer.write(guess)
            writers.append(writer)
        for _ in range(3):
            assert await code(client, "POST", "/change", Authorization=f"Bearer {place.token}") == 200
        for writer in writers:
            writer.close()


async def test_without_users_a_name_proves_nothing(place: Place) -> None:
    async with await place.start() as client:
        assert await code(client, "POST", "/change", Authorization=basic("ann", "secret")) == 401


async def test_a_page_of_a_foreign_site_learns_nothing(place: Place) -> None:
    async with await place.start() as client:
        assert place.server is not None
        own = place.server.url.removeprefix("http://")
        for origin in ("http://evil.example", "null", f"https://{own}:1", "http://127.0.0.1:1"):
            assert await code(client, "GET", "/status", Origin=origin) == 403, origin
            assert await code(client, "GET", "/health", Origin=origin) == 403, origin
            assert await code(client, "POST", "/change", Origin=origin, Authorization=f"Bearer {place.token}") == 403
        assert await code(client, "GET", "/status", Origin=f"http://{own}") == 200
    assert place.changes == 0


async def test_a_foreign_name_for_this_address_is_refused(place: Place) -> None:
    async with await place.start(None, "broker.example.com") as client:
        for host in ("evil.example", "evil.example:8161", "127.0.0.1.evil.example", "localhost.evil.example", "", "["):
            assert await code(client, "GET", "/status", Host=host) == 403, host
        assert await code(client, "GET", "/health/live", Host="evil.example") == 200, "a balancer's"
        known = ("127.0.0.1", "127.0.0.1:1", "[::1]:8161", "[fe80::1%25eth0]", "LOCALHOST:1", "broker-a:8161")
        for host in (*known, "Broker.Example.com:8161"):
            assert await code(client, "GET", "/status", Host=host) == 200, host
