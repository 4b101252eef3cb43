"""``tandemmq status`` against a real admin server."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandemmq.broker.admin.server import AdminServer
from tandemmq.cli.status import status

STANDBY: dict[str, Any] = {
    "role": "standby",
    "epoch": 4,
    "name": "b",
    "store": "/data",
    "code": "plain Python: no C compiler (cc)",
    "connectors": ["stomp://127.0.0.1:61613", "openwire://127.0.0.1:61616"],
    "holder": {"name": "a", "epoch": 4, "pid": 17, "host": "left", "admin": "http://127.0.0.1:8161"},
    "queues": [{"name": "orders[1]", "messages": 1234, "consumers": 2}],
    "standby": {
        "has_caught_up": True,
        "messages": 1234,
        "lag": {"bytes": 5600, "records": 4, "seconds": 0.1},
        "takeover": {"total_seconds": 0.31, "lock_seconds": 0.22, "replay_seconds": 0.08, "is_within_budget": False},
    },
    "bridges": [
        {"name": "factory", "connected": True, "address": "mqtt://m:1883", "received": 12_345, "sent": 0, "refused": 1},
        {"name": "cloud", "connected": False, "last_error": "Connection refused"},
    ],
    "phase": "handing-over",
    "lock": {"type": "lease-database", "where": "x", "proof_age_seconds": 0.24, "proof_holds_seconds": 1.66},
    "demotions": {"LOCK_LOST": 2},
    "last_takeover_seconds": 0.2345,
    "counts": {"connections": 0},
    "warnings": ["unsafe: no keep-alive"],
    "replication": {
        "role": "master",
        "voters": {"aa": "n1", "bb": "n2", "cc": "n3"},
        "is_voter": True,
        "is_whole": True,
        "followers": {"bb": {"node": "n2", "lag_bytes": 4096}, "cc": {"node": "n3", "lag_bytes": 0}},
    },
}


@pytest.fixture
def admin() -> Iterator[str]:
    """The URL of a standby's admin server that runs on a separate loop, because the command blocks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = AdminServer("127.0.0.1", 0, lambda: STANDBY)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    yield server.url
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(status, arguments)


def test_json_is_what_the_broker_said(admin: str) -> None:
    """An address needs no scheme."""
    for address in (admin, admin.removeprefix("http://")):
        result = run("--admin", address, "--json")
        assert result.exit_code == 0
        assert json.loads(result.output) == STANDBY


def test_people_read_role_epoch_holder_store_and_queues(admin: str) -> None:
    result = run("--admin", admin)
    assert result.exit_code == 0
    for word in (
        "standby",
        "4",
        "a (epoch 4, host left, pid 17",
        "/data",
        "orders[1]",
        "1,234",
        "caught up",
        "plain Python: no C compiler (cc)",
        "5,600 bytes, 4 records",
        "0.310 s (lock 0.220",
        "failover_budget",
        "handing-over",
        "lease-database; proved 0.2 s ago, holds for 1.7 s",
        "LOCK_LOST 2",
        "0.234 s",
        "no keep-alive",
        "will serve",
        "openwire://127.0.0.1:61616",
        "master, one of 3 voters, whole",
        "n2 by 4,096 bytes",
        "factory connected to mqtt://m:1883; 12,345 received, 1 refused",
        "cloud NOT connected: Connection refused",
    ):
        assert word in result.output


def test_people_read_where_the_queues_are_that_had_no_room(admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STANDBY, "left_out", {"queues": {"rows": 1234, "all_at": "/api/v1/destinations/queue"}})
    assert "and 1234 more: tandemmq queues list" in run("--admin", admin).output


def test_no_broker_ends_with_3_and_says_where_it_was_sought() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and no process listens
        port = unused.getsockname()[1]
        result = run("--admin", f"http://127.0.0.1:{port}")
    assert result.exit_code == 3
    assert f"no broker answers at http://127.0.0.1:{port}" in result.output


def test_a_stranger_is_not_taken_for_a_broker() -> None:
    class NotABroker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing on the test's output."""

    with HTTPServer(("127.0.0.1", 0), NotABroker) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        result = run("--admin", f"http://127.0.0.1:{server.server_port}")
        thread.join()
    assert result.exit_code == 1
    assert "is that a broker's admin address?" in result.output


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://", "http://127.0.0.1:http"])
def test_a_wrong_address_ends_with_2(address: str) -> None:
    result = run("--admin", address)
    assert result.exit_code == 2
    assert "is not an address like" in result.output
