"""Attackers of the scenarios attacks, admin-port and logins: a separate program, so that its CPU time is separate.

python -m tandemmq.bench.attackers NAME SEED SECONDS PORTS TOKEN_FILE

PORTS is JSON, by protocol. NAME is one of

ATTACKS         cause much work in the broker with little effort: selectors of some 2 ms, evaluated again and again. The
                seed chooses their number, length and rate. If the broker disconnects, the next connection attacks it.
FLOODS          are only bytes (bench.floods).
PORT_ATTACKS    are for the admin port, and begin again as soon as the broker ends a connection:
    headers     140 messages with 900 long headers each, whose queue is browsed repeatedly; prints the longest answer
    posts       64 requests without a body
    unread      64 requests whose answers are not read
    garbage     connections that send invalid requests
    addresses   500 addresses that send a part of a request
GUESSES         guesses passwords from 1,600 addresses, each as fast as it gets answers; half of them for names of users

The program ends by itself after SECONDS, except for the guesses.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import quote

from tandemmq.bench.driver.stomp import BenchError, Endpoint, command_frame, connect, request
from tandemmq.bench.floods import FLOODS, flood
from tandemmq.bench.peers.server import HOST

Frame = tuple[str, list[tuple[str, str]]]

PATIENCE_SECONDS = 30.0
#: The users of the scenario logins, and those who guess their passwords.
USERS: Final = 20
GUESSERS: Final = 1_600


class Attack:
    """An attack, until the time ``until``."""

    def __init__(self, seed: int, until: float, ports: Mapping[str, int], token: str) -> None:
        self.random = Random(seed)
        self.ends = until
        self.stomp = Endpoint(HOST, ports["stomp"])
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        self.admin = f"http://{HOST}:{ports['admin']}/api/v1"
        self.selector = " AND ".join(["NOT REGEX('(.*a){15}x', a)"] * self.random.randrange(3, 10))
        self.text = "ab" * self.random.randrange(2_000, 5_000)
        self.count = self.random.randrange(40, 120)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends

    # ---- frames and requests

    def subscriptions(self, destination: str, count: int, **headers: str) -> Iterator[Frame]:
        for number in range(count):
            selector = f"{self.selector} AND n <> '{number}'"
            extra = list(headers.items())
            yield "SUBSCRIBE", [("id", f"{number}"), ("destination", destination), ("selector", selector), *extra]

    def send(self, destination: str, persistent: bool = False) -> Frame:
        return "SEND", [("destination", destination), ("persistent", f"{persistent}".lower()), ("a", self.text)]

    def sender(self, frames: Iterator[Frame] | list[Frame], client_id: str | None = None) -> Sender:
        sender = Sender(self.stomp, client_id)
        sender.send_all(frames)
        return sender

    def fill(self, destination: str, count: int) -> None:
        sender = self.sender([self.send(destination, persistent=True) for _ in range(count)])
        sender.wait()
        sender.end()

    def request(self, path: str, method: str = "GET", body: object = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.admin}{path}", data, self.headers, method=method)
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).read()

    # ---- the attacks

    def advisories(self) -> None:
        with self.sender(self.subscriptions("/topic/ActiveMQ.Advisory.TempQueue", 315)), Sender(self.stomp) as other:
            for number in count():
                if self.is_over:
                    return
                destination = ("destination", f"/temp-queue/t{number}")
                other.send_all(
                    [("SUBSCRIBE", [("id", f"{number}"), destination]), ("UNSUBSCRIBE", [("id", f"{number}")])]
                )
                other.wait()

    def topic(self) -> None:
        with self.sender(self.subscriptions("/topic/attacked", self.count)), Sender(self.stomp) as other:
            while not self.is_over:
                other.send_all([self.send("/topic/attacked", self.random.random() < 0.5)])
                other.wait()

    def _subscribes(self, **headers: str) -> None:
        self.fill("/queue/attacked", self.count)
        with Sender(self.stomp) as sender:
            while not self.is_over:
                sender.send_all(self.subscriptions("/queue/attacked", 1, **headers))
                sender.wait()
                time.sleep(self.random.random() / 5)
                sender.send_all([("UNSUBSCRIBE", [("id", "0")])])
                sender.wait()

    def consumer(self) -> None:
        self._subscribes(ack="client")

    def browser(self) -> None:
        self._subscribes(browser="true")

    def consumers(self) -> None:
        with self.sender(self.subscriptions("/queue/chosen", self.count)), Sender(self.stomp) as other:
            while not self.is_over:
                other.send_all([self.send("/queue/chosen")])
                other.wait()

    def durable(self) -> None:
        name = ("activemq.subscriptionName", "d")
        owners = []
        for number in range(20):
            frames = self.subscriptions("/topic/kept", 1, ack="client")
            owners.append(self.sender([(verb, [*headers, name]) for verb, headers in frames], f"c{number}"))
            owners[-1].wait()
        for each in owners[::2]:
            each.end()
        with Sender(self.stomp) as other:
            while not self.is_over:
                other.send_all([self.send("/topic/kept", persistent=True)])
                other.wait()

    def api(self) -> None:
        self.fill("/queue/read", self.count)
        selector = quote(self.selector)
        while not self.is_over:
            self.request(f"/destinations/queue/read/messages?selector={selector}")

    def deletes(self) -> None:
        self.fill("/queue/deleted", self.count)
        while not self.is_over:
            self.request("/destinations/queue/deleted/messages/delete", "POST", {"selector": f"NOT ({self.selector})"})

    def patterns(self) -> None:
        # A header line has 10 KiB at most.
        names = [",".join(f"/topic/{'*.' * (n % 7)}p{n}.>" for n in range(first, first + 450)) for first in (0, 450)]
        frames: list[Frame] = [("SUBSCRIBE", [("id", f"{n}"), ("destination", each)]) for n, each in enumerate(names)]
        frames += [("UNSUBSCRIBE", [("id", f"{n}")]) for n in range(len(names))]
        with Sender(self.stomp) as sender:
            sender.send_all([self.send(f"/topic/a.b.c.{number}") for number in range(500)])
            while not self.is_over:
                sender.send_all(frames)
                sender.wait()

    def floods(self) -> None:
        with Sender(self.stomp) as sender:
            while not self.is_over:
                sender.send_all([("SEND", [("destination", "/topic/unread")])] * 1_000)
                sender.wait()


ATTACKS: dict[str, Callable[[Attack], None]] = {
    "advisories": Attack.advisories,
    "topic": Attack.topic,
    "consumer": Attack.consumer,
    "consumers": Attack.consumers,
    "browser": Attack.browser,
    "durable": Attack.durable,
    "api": Attack.api,
    "delete": Attack.deletes,
    "patterns": Attack.patterns,
    "flood": Attack.floods,
}


class Sender:
    """A STOMP connection that sends frames, and reads and drops the answers on a thread."""

    def __init__(self, endpoint: Endpoint, client_id: str | None = None) -> None:
        self._peer = connect(endpoint, client_id=client_id)
        self._peer.settimeout(PATIENCE_SECONDS)
        self._number = 0
        self._came = threading.Event()
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def send_all(self, frames: Iterator[Frame] | list[Frame]) -> None:
        self._peer.sendall(b"".join(command_frame(verb, headers) for verb, headers in frames))

    def wait(self) -> None:
        """Wait until the broker has processed all sent frames. Raises BenchError if it disconnects."""
        self._number += 1
        self._came.clear()
        self.send_all([("SEND", [("destination", "/topic/unread"), ("receipt", f"sent-{self._number}")])])
        if not self._came.wait(PATIENCE_SECONDS) or self._is_over:
            raise BenchError("the broker closed the connection, or does not answer")

    def _read(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := self._peer.recv(1 << 16):
                rest += data
                if b"receipt-id:sent-%d\n" % self._number in rest:
                    self._came.set()
                rest = rest[-200:]
        self._is_over = True
        self._came.set()

    def end(self) -> None:
        self._peer.close()


# ---- the admin port

CONNECTIONS: Final = 64
ADDRESSES: Final = 500
MESSAGES, HEADERS, HEADER_CHARACTERS = 140, 900, 600
DESTINATIONS: Final = 2_000
_POST: Final = (
    b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
)


def _headers(until: float, ports: Mapping[str, int], token: str) -> None:
    peer = connect(Endpoint(HOST, ports["stomp"]))
    headers = [(f"h{number}", "\x01" * HEADER_CHARACTERS) for number in range(HEADERS)]
    for number in range(MESSAGES):
        request(peer, "SEND", [("destination", "/queue/long"), ("persistent", "true"), *headers], f"{number}")
    peer.close()
    longest = 0
    while time.monotonic() < until:
        connection = http.client.HTTPConnection(HOST, ports["admin"], timeout=60)
        path = f"/api/v1/destinations/queue/long/messages?limit={MESSAGES}"
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        longest = max(longest, len(connection.getresponse().read()))
        connection.close()
    print(json.dumps({"answer_bytes_max": longest}))


def _hold(until: float, admin: int, data: bytes) -> None:
    """Keep CONNECTIONS connections open that have sent these bytes, and do not read."""

    def hold() -> None:
        while time.monotonic() < until:
            try:
                with socket.create_connection((HOST, admin), 10) as peer:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    peer.sendall(data)
                    peer.settimeout(0.2)
                    while time.monotonic() < until:
                        try:
                            if not peer.recv(1, socket.MSG_PEEK) or b"unread" not in data.lower():
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


def _posts(until: float, ports: Mapping[str, int], token: str) -> None:
    _hold(until, ports["admin"], _POST)


def _unread(until: float, ports: Mapping[str, int], token: str) -> None:
    peer = connect(Endpoint(HOST, ports["stomp"]))
    for number in range(DESTINATIONS):
        request(peer, "SEND", [("destination", f"/queue/{'x' * 400}{number}")], f"{number}")
    _hold(until, ports["admin"], b"GET /status HTTP/1.1\r\nHost: x\r\nX: unread\r\n\r\n")


def _garbage(until: float, ports: Mapping[str, int], token: str) -> None:
    while time.monotonic() < until:
        try:
            with socket.create_connection((HOST, ports["admin"]), 10) as peer:
                peer.sendall(b"\xff" * 300 + b"\r\n\r\n")
                peer.recv(1)
        except OSError:
            pass


def _addresses(until: float, ports: Mapping[str, int], token: str) -> None:
    async def attack(number: int) -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                local = (f"127.3.{number >> 8}.{number & 255}", 0)
                reader, writer = await asyncio.open_connection(HOST, ports["admin"], local_addr=local)
                writer.write(_POST[:20])
                try:
                    await reader.read()
                finally:
                    writer.close()

    async def attack_all() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - time.monotonic()):
                await asyncio.gather(*(attack(number) for number in range(ADDRESSES)))

    asyncio.run(attack_all())


# ---- guesses


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, login: str, passcode: str) -> bytes:
    """Log in, and return the broker's answer."""
    headers = [("accept-version", "1.2"), ("host", "/"), ("login", login), ("passcode", passcode)]
    writer.write(command_frame("CONNECT", headers))
    return await reader.readuntil(b"\0")


def _guess(until: float, ports: Mapping[str, int], token: str) -> None:
    """Try passwords at each of ``ports``, until the process is killed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

    async def guesser(number: int) -> None:
        chance = Random(number)
        address = (f"127.2.{number >> 8}.{number & 255}", 0)
        while True:
            login = f"user{chance.randrange(USERS)}" if number % 2 else f"unknown{chance.randrange(1_000)}"
            for port in ports.values():
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    reader, writer = await asyncio.open_connection(HOST, port, local_addr=address)
                    try:
                        await answer(reader, writer, login, f"guess {chance.random()}")
                    finally:
                        writer.close()
            await asyncio.sleep(0.05)

    async def all_of_them() -> None:
        await asyncio.gather(*(guesser(number) for number in range(GUESSERS)))

    asyncio.run(all_of_them())


PORT_ATTACKS: Final[Mapping[str, Callable[[float, Mapping[str, int], str], None]]] = {
    "headers": _headers,
    "posts": _posts,
    "unread": _unread,
    "garbage": _garbage,
    "addresses": _addresses,
}
GUESSES: Final = "guesses"


def main() -> None:
    name, seed, seconds, ports_text, token_file = sys.argv[1:]
    ports: Mapping[str, int] = json.loads(ports_text)
    if name in FLOODS:
        flood(name, float(seconds), ports)
        return
    until, token = time.monotonic() + float(seconds), Path(token_file).read_text().strip()
    if name == GUESSES:
        _guess(until, ports, token)
    elif name in PORT_ATTACKS:
        PORT_ATTACKS[name](until, ports, token)
    else:
        attack = Attack(int(seed), until, ports, token)
        while not attack.is_over:
            with contextlib.suppress(BenchError, OSError):
                ATTACKS[name](attack)


if __name__ == "__main__":
    main()
