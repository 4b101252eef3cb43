"""Clients of a pair whose masters sleep and wake, and the ledger in which they write what they were promised.

They go on at whichever broker answers. Another one, the witness, stays with one broker to the end (zombie_witness.py).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.support.acceptance.stomp_wire import LOST, Address, Frame, Wire

BODY_BYTES = 1_000
WINDOW = 10
# A producer pauses so long for each window, so that brokers and test share a small machine.
PACE_SECONDS = 0.01
# Silent for so long, a broker is given up by its clients (which ask for no heart-beats).
PATIENCE_SECONDS = 1.0
# A wire over which nothing more comes ends within this.
END_SECONDS_MAX = 20.0
# Nothing for so long: a queue is drained.
QUIET_SECONDS = 0.3
SHOWN_MAX = 10


def body_of(key: str) -> bytes:
    """What is sent under this name: any other body of that name is damaged."""
    return f"{key} ".ljust(BODY_BYTES, key[-1]).encode()


def queue_of(key: str) -> str:
    return key.partition("/")[0]


class Ledger:
    """What was promised and what came; ``problems`` compares the two.

    A message is called ``<queue>/<series>-<number>``; a series comes from one producer, in order. ``confirmed``: with a
    receipt. ``sent`` counts how often: what had no receipt is sent again, and may be there as often.
    ``forbidden``: sent to a master after its successor had begun to rule, so that it must not count. ``owed``: ids of
    messages whose acknowledgement was sent so late; they have to come again.
    """

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.confirmed: set[str] = set()
        self.forbidden: set[str] = set()
        self.acknowledged: set[str] = set()
        self.owed: set[str] = set()
        self.ids: defaultdict[str, set[str]] = defaultdict(set)
        self.receipts = 0
        self.reconnects = 0
        self.undone: list[str] = []
        self.broken: list[str] = []
        self.arrivals: Counter[str] = Counter()
        self._last_number: dict[str, int] = {}

    def arrived(self, frame: Frame) -> str:
        """Note a MESSAGE that a broker in office delivered; its id."""
        key = frame.body.partition(b" ")[0].decode(errors="replace")
        message = frame.headers["message-id"]
        if frame.body != body_of(key):
            self.broken.append(f"{key}: not the body that was sent")
        if message in self.acknowledged:
            self.undone.append(f"{key} ({message}) came again after its acknowledgement was confirmed")
        if not self.ids[key]:
            series, _, number = key.rpartition("-")
            if int(number) < self._last_number.get(series, 0):
                self.broken.append(f"{key} came for the first time after {series}-{self._last_number[series]}")
            self._last_number[series] = int(number)
        self.ids[key].add(message)
        self.arrivals[queue_of(key)] += 1
        self.owed.discard(message)
        return message

    def missing(self, *queues: str) -> list[str]:
        """Messages with a receipt that have not come, in any queue or in these."""
        return sorted(key for key in self.confirmed if key not in self.ids and (not queues or queue_of(key) in queues))

    def problems(self, *queues: str) -> list[str]:
        """Broken promises, in words; of lost messages those in these queues only, which were drained."""
        more = sorted(key for key, ids in self.ids.items() if len(ids) > self.sent[key])
        return [
            *(f"lost: {key} had a receipt and never came" for key in self.missing(*queues)[:SHOWN_MAX]),
            *(f"undone: {text}" for text in self.undone[:SHOWN_MAX]),
            *(f"counts: {key} was sent to a deposed master" for key in sorted(self.forbidden & self.ids.keys())),
            *(f"gone: {message} was acknowledged to a deposed master only" for message in sorted(self.owed)),
            *(f"more: {key} is there {len(self.ids[key])} times, and was sent {self.sent[key]} times" for key in more),
            *self.broken[:SHOWN_MAX],
        ]


class Gate:
    """Open: clients work. Closed: producers send nothing new, and silence is no reason to go elsewhere."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.is_over = False

    @property
    def is_open(self) -> bool:
        return self._open.is_set() and not self.is_over

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def end(self) -> None:
        """Clients end when all they sent was answered."""
        self.is_over = True
        self._open.set()

    async def passed(self) -> None:
        await self._open.wait()


async def connect(ports: Iterator[Address], seconds: float = 180.0) -> Wire:
    """A connection to the first that answers."""
    deadline = asyncio.get_running_loop().time() + seconds
    for port in ports:
        try:
            return await Wire.open(port, seconds_max=PATIENCE_SECONDS)
        except LOST:
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() < deadline, f"no broker answers in {seconds} s"
    raise AssertionError("ports never end")


def send(wire: Wire, key: str, **headers: str) -> None:
    wire.send("SEND", {"destination": f"/queue/{queue_of(key)}", "persistent": "true", **headers}, body_of(key))


async def produce(ledger: Ledger, ports: Sequence[Address], queue: str, gate: Gate) -> None:
    """Send until the gate ends it; what has no receipt is sent again, in order, over the next connection."""
    numbers = itertools.count(1)
    waiting: dict[str, None] = {}
    addresses = itertools.cycle(ports)
    while True:
        wire = await connect(addresses)
        try:
            for key in waiting:
                ledger.sent[key] += 1
                send(wire, key, receipt=key)
            while True:
                while gate.is_open and len(waiting) < WINDOW:
                    key = f"{queue}/load-{next(numbers)}"
                    waiting[key] = None
                    ledger.sent[key] += 1
                    send(wire, key, receipt=key)
                await wire.flush()
                while waiting:
                    frame = await asyncio.wait_for(wire.read(), PATIENCE_SECONDS)
                    assert frame.command == "RECEIPT", frame
                    waiting.pop(frame.headers["receipt-id"], None)
                    ledger.confirmed.add(frame.headers["receipt-id"])
                    ledger.receipts += 1
                if gate.is_over:
                    wire.close()
                    return
                await gate.passed()
                await asyncio.sleep(PACE_SECONDS)
        except LOST:
            ledger.reconnects += 1
            wire.close()


async def consume(ledger: Ledger, ports: Sequence[Address], queue: str, gate: Gate) -> None:
    """Acknowledge each message, with a receipt, until the gate ends it."""
    addresses = itertools.cycle(ports)
    while not gate.is_over:
        wire = await connect(addresses)
        unconfirmed: set[str] = set()
        try:
            subscribe(wire, queue, prefetch=50)
            last_heard = asyncio.get_running_loop().time()
            while not gate.is_over or unconfirmed:
                try:
                    frame = await asyncio.wait_for(wire.read(), 0.1)
                except TimeoutError:
                    # An empty queue is silent, too: to ask elsewhere does no harm then.
                    silent = asyncio.get_running_loop().time() - last_heard
                    if silent > PATIENCE_SECONDS and (gate.is_open or unconfirmed):
                        raise ConnectionError("silent") from None
                    continue
                last_heard = asyncio.get_running_loop().time()
                if frame.command == "MESSAGE":
                    message = ledger.arrived(frame)
                    unconfirmed.add(message)
                    acknowledge(wire, frame)
                    await wire.flush()
                else:
                    assert frame.command == "RECEIPT", frame
                    unconfirmed.discard(frame.headers["receipt-id"])
                    ledger.acknowledged.add(frame.headers["receipt-id"])
                    ledger.receipts += 1
        except LOST:
            ledger.reconnects += 1
        wire.close()


def subscribe(wire: Wire, queue: str, *, prefetch: int, identity: str = "0") -> None:
    size = str(prefetch)
    headers = {
        "id": identity,
        "destination": f"/queue/{queue}",
        "ack": "client-individual",
        "activemq.prefetchSize": size,
    }
    wire.send("SUBSCRIBE", headers)


def acknowledge(wire: Wire, frame: Frame) -> None:
    """With the message's id as receipt."""
    wire.send("ACK", {"id": frame.headers["ack"], "receipt": frame.headers["message-id"].replace(":", "\\c")})


async def drain(ledger: Ledger, ports: Sequence[Address], queue: str, seconds: float = 30.0) -> None:
    """Take all that is in ``queue``: until what was confirmed is there, and nothing more comes."""
    gate = Gate()
    taking = asyncio.create_task(consume(ledger, ports, queue, gate))
    deadline = asyncio.get_running_loop().time() + seconds
    before = -1
    while asyncio.get_running_loop().time() < deadline:
        arrived = ledger.arrivals[queue]
        if arrived == before and not ledger.missing(queue):
            break
        before = arrived
        await asyncio.sleep(QUIET_SECONDS)
    gate.end()
    await taking
