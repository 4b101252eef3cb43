"""Attacks on the admin port: ``python -m tandemmq.bench.port_attackers CASE SECONDS STOMP ADMIN TOKEN_FILE``.

headers  140 messages with 900 long headers each, and their queue is browsed repeatedly
posts    64 requests without a body, each begun again as soon as it is closed
unread   64 requests whose answers are not read
garbage  connections that send invalid requests
addresses  500 addresses that send a part of a request, each again as soon as its connection is closed

A separate program, so that it takes only its own time.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandemmq.bench.driver.stomp import Endpoint, connect, request

HOST: Final = "127.0.0.1"
CONNECTIONS: Final = 64
ADDRESSES: Final = 500
MESSAGES, HEADERS, HEADER_CHARACTERS = 140, 900, 600
DESTINATIONS: Final = 2_000
_POST: Final = (
    b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
)


def _headers(until: float, stomp: int, admin: int, token: str) -> None:
    peer = connect(Endpoint(HOST, stomp))
    headers = [(f"h{number}", "\x01" * HEADER_CHARACTERS) for number in range(HEADERS)]
    for number in range(MESSAGES):
        request(peer, "SEND", [("destination", "/queue/long"), ("persistent", "true"), *headers], f"{number}")
    peer.close()
    longest = 0
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(HOST, admin, timeout=60)
        path = f"/api/v1/destinations/queue/long/messages?limit={MESSAGES}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        longest = max(longest, len(connection.getresponse().read()))
        connection.close()
    print(json.dumps({"answer_bytes_max": longest}))


def _hold(until: float, admin: int, said: bytes) -> None:
    """Keep CONNECTIONS open that have sent these bytes, and read nothing."""

    def hold() -> None:
        while time.monotonic() < until:
            try:
                with socket.create_connection((HOST, admin), 10) as peer:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    peer.sendall(said)
                    peer.settimeout(0.2)
                    while time.monotonic() < until:
                        try:
                            if not peer.recv(1, socket.MSG_PEEK) or b"unread" not in said.lower():
                                break
                            time.sleep(0.2)
                        except TimeoutError:
                            pass
            except OSError:
                time.sleep(0.01)

    threads = [threading.Thread(target=hold) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _posts(until: float, stomp: int, admin: int, token: str) -> None:
    _hold(until, admin, _POST)


def _unread(until: float, stomp: int, admin: int, token: str) -> None:
    peer = connect(Endpoint(HOST, stomp))
    for number in range(DESTINATIONS):
        request(peer, "SEND", [("destination", f"/queue/{'x' * 400}{number}")], f"{number}")
    _hold(until, admin, b"GET /status HTTP/1.1\r\nHost: x\r\nX: unread\r\n\r\n")


def _garbage(until: float, stomp: int, admin: int, token: str) -> None:
    while time.monotonic() < until:
        try:
            with socket.create_connection((HOST, admin), 10) as peer:
                peer.sendall(b"\xff" * 300 + b"\r\n\r\n")
                peer.recv(1)
        except OSError:
            pass


def _addresses(until: float, stomp: int, admin: int, token: str) -> None:
    async def attack(number: int) -> None:
        while time.monotonic() < until:
            with suppress(OSError):
                local = (f"127.3.{number >> 8}.{number & 255}", 0)
                reader, writer = await asyncio.open_connection(HOST, admin, local_addr=local)
                writer.write(_POST[:20])
                try:
                    await reader.read()
                finally:
                    writer.close()

    async def attack_all() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(until - time.monotonic()):
                await asyncio.gather(*(attack(number) for number in range(ADDRESSES)))

    asyncio.run(attack_all())


CASES: Final[Mapping[str, Callable[[float, int, int, str], None]]] = {
    "headers": _headers,
    "posts": _posts,
    "unread": _unread,
    "garbage": _garbage,
    "addresses": _addresses,
}

if __name__ == "__main__":
    case, seconds, stomp, admin, token = sys.argv[1:]
    CASES[case](time.monotonic() + float(seconds), int(stomp), int(admin), Path(token).read_text().strip())
