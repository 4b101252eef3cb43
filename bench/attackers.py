"""Attacks of ``--scenario attacks``: a separate program, so that it uses only its own time.

python -m tandemmq.bench.attackers NAME SEED SECONDS PORTS TOKEN_FILE

PORTS is JSON, by protocol. Each attack causes much work in the broker with little effort: selectors of some 2 ms,
evaluated again and again. The seed chooses their number, length and rate. The program ends by itself; if the broker
hangs up, the next connection attacks it. Attacks that are only bytes are in ``tandemmq.bench.floods``.
"""

import contextlib
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from random import Random
from urllib.parse import quote

from tandemmq.bench.driver.stomp import BenchError, Endpoint, command_frame, connect
from tandemmq.bench.floods import FLOODS, flood
from tandemmq.bench.peers.server import HOST

Frame = tuple[str, list[tuple[str, str]]]

PATIENCE_SECONDS = 30.0


class Attack:
    """An attack that lasts a number of seconds."""

    def __init__(self, seed: int, seconds: float, ports: Mapping[str, int], token: str) -> None:
        self.random = Random(seed)
        self.ends = time.monotonic() + seconds
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

    def says(self, frames: Iterator[Frame] | list[Frame], client_id: str | None = None) -> "Said":
        said = Said(self.stomp, client_id)
        said.say(frames)
        return said

    def fill(self, destination: str, count: int) -> None:
        said = self.says([self.send(destination, persistent=True) for _ in range(count)])
        said.wait()
        said.end()

    def asks(self, path: str, method: str = "GET", body: object = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.admin}{path}", data, self.headers, method=method)
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).read()

    # ---- the attacks

    def advisories(self) -> None:
        with self.says(self.subscriptions("/topic/ActiveMQ.Advisory.TempQueue", 315)), Said(self.stomp) as other:
            for number in count():
                if self.is_over:
                    return
                destination = ("destination", f"/temp-queue/t{number}")
                other.say([("SUBSCRIBE", [("id", f"{number}"), destination]), ("UNSUBSCRIBE", [("id", f"{number}")])])
                other.wait()

    def topic(self) -> None:
        with self.says(self.subscriptions("/topic/attacked", self.count)), Said(self.stomp) as other:
            while not self.is_over:
                other.say([self.send("/topic/attacked", self.random.random() < 0.5)])
                other.wait()

    def _subscribes(self, **headers: str) -> None:
        self.fill("/queue/attacked", self.count)
        with Said(self.stomp) as said:
            while not self.is_over:
                said.say(self.subscriptions("/queue/attacked", 1, **headers))
                said.wait()
                time.sleep(self.random.random() / 5)
                said.say([("UNSUBSCRIBE", [("id", "0")])])
                said.wait()

    def consumer(self) -> None:
        self._subscribes(ack="client")

    def browser(self) -> None:
        self._subscribes(browser="true")

    def consumers(self) -> None:
        with self.says(self.subscriptions("/queue/chosen", self.count)), Said(self.stomp) as other:
            while not self.is_over:
                other.say([self.send("/queue/chosen")])
                other.wait()

    def durable(self) -> None:
        name = ("activemq.subscriptionName", "d")
        owners = []
        for number in range(20):
            frames = self.subscriptions("/topic/kept", 1, ack="client")
            owners.append(self.says([(verb, [*headers, name]) for verb, headers in frames], f"c{number}"))
            owners[-1].wait()
        for each in owners[::2]:
            each.end()
        with Said(self.stomp) as other:
            while not self.is_over:
                other.say([self.send("/topic/kept", persistent=True)])
                other.wait()

    def api(self) -> None:
        self.fill("/queue/read", self.count)
        selector = quote(self.selector)
        while not self.is_over:
            self.asks(f"/destinations/queue/read/messages?selector={selector}")

    def deletes(self) -> None:
        self.fill("/queue/deleted", self.count)
        while not self.is_over:
            self.asks("/destinations/queue/deleted/messages/delete", "POST", {"selector": f"NOT ({self.selector})"})

    def patterns(self) -> None:
        # A header line has 10 KiB at most.
        names = [",".join(f"/topic/{'*.' * (n % 7)}p{n}.>" for n in range(first, first + 450)) for first in (0, 450)]
        frames: list[Frame] = [("SUBSCRIBE", [("id", f"{n}"), ("destination", each)]) for n, each in enumerate(names)]
        frames += [("UNSUBSCRIBE", [("id", f"{n}")]) for n in range(len(names))]
        with Said(self.stomp) as said:
            said.say([self.send(f"/topic/a.b.c.{number}") for number in range(500)])
            while not self.is_over:
                said.say(frames)
                said.wait()

    def floods(self) -> None:
        with Said(self.stomp) as said:
            while not self.is_over:
                said.say([("SEND", [("destination", "/topic/unread")])] * 1_000)
                said.wait()


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


class Said:
    """A connection that sends the given frames, and reads the answers meanwhile."""

    def __init__(self, endpoint: Endpoint, client_id: str | None = None) -> None:
        self._peer = connect(endpoint, client_id=client_id)
        self._peer.settimeout(PATIENCE_SECONDS)
        self._number = 0
        self._came = threading.Event()
        self._is_over = False
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "Said":
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def say(self, frames: Iterator[Frame] | list[Frame]) -> None:
        self._peer.sendall(b"".join(command_frame(verb, headers) for verb, headers in frames))

    def wait(self) -> None:
        """Wait until the broker has handled all that was sent. BenchError if it hangs up."""
        self._number += 1
        self._came.clear()
        self.say([("SEND", [("destination", "/topic/unread"), ("receipt", f"said-{self._number}")])])
        if not self._came.wait(PATIENCE_SECONDS) or self._is_over:
            raise BenchError("the broker hung up, or says nothing")

    def _read(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := self._peer.recv(1 << 16):
                rest += data
                if b"receipt-id:said-%d\n" % self._number in rest:
                    self._came.set()
                rest = rest[-200:]
        self._is_over = True
        self._came.set()

    def end(self) -> None:
        self._peer.close()


def main() -> None:
    name, seed, seconds, ports, token = sys.argv[1:]
    if name in FLOODS:
        flood(name, float(seconds), json.loads(ports))
        return
    attack = Attack(int(seed), float(seconds), json.loads(ports), Path(token).read_text().strip())
    while not attack.is_over:
        with contextlib.suppress(BenchError, OSError):
            ATTACKS[name](attack)


if __name__ == "__main__":
    main()
