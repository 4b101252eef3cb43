"""Clients of a pair whose masters are stopped and continued, and the ledger of what the brokers confirmed.

After a failure they continue with the broker that answers. One other client, the witness, stays with one broker to the
end (zombie_witness.py).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.support.acceptance.stomp_wire import LOST, Address, Frame, Wire

BODY_BYTES = 1_000
WINDOW = 10
# Pause of a producer after each window, because brokers and test share a small machine.
PACE_SECONDS = 0.01
# After this silence clients leave a broker (they do not use heart-beats).
PATIENCE_SECONDS = 1.0
# Time in which a silent connection ends.
END_SECONDS_MAX = 20.0
# A queue is drained after this time without a message.
QUIET_SECONDS = 0.3
SHOWN_MAX = 10


def body_of(key: str) -> bytes:
    """Return the body of the message with this name. Any other body is damaged."""
    return f"{key} ".ljust(BODY_BYTES, key[-1]).encode()


def queue_of(key: str) -> str:
    return key.partition("/")[0]


class Ledger:
    """Confirmed and received messages; ``problems`` compares them.

    A message is named ``<queue>/<series>-<number>``; a series comes from one producer, in order. ``confirmed``: with a
    receipt. ``sent``: number of sends of each message, which is the maximum number of copies: a message without a
    receipt is sent again. ``forbidden``: sent to a deposed master, so that it must not be stored. ``owed``: ids of
    messages whose acknowledgement was sent to a deposed master; they must come again.
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
        """Record a MESSAGE that the rightful master delivered; return its id."""
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
        """Return the confirmed messages that have not come, of these queues or of all."""
        return sorted(key for key in self.confirmed if key not in self.ids and (not queues or queue_of(key) in queues))

    def problems(self, *queues: str) -> list[str]:
        """Return the broken promises as sentences. Lost messages are reported only for these queues, which must be
        drained."""
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
    """While open, clients work. While closed, producers send nothing new, and clients do not leave a silent broker."""

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
        """End the clients as soon as everything they sent is answered."""
        self.is_over = True
        self._open.set()

    async def passed(self) -> None:
        await self._open.wait()


async def connect(ports: Iterator[Address], seconds: float = 180.0) -> Wire:
    """Return a connection to the first broker that answers."""
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
    """Send until the gate ends. Messages without a receipt are sent again, in order, over the next connection."""
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
    """Acknowledge each message, with a receipt, until the gate ends."""
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
                    # An empty queue is also silent; trying another broker is harmless then.
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
    """Acknowledge a message, with its id as receipt id."""
    wire.send("ACK", {"id": frame.headers["ack"], "receipt": frame.headers["message-id"].replace(":", "\\c")})


async def drain(ledger: Ledger, ports: Sequence[Address], queue: str, seconds: float = 30.0) -> None:
    """Take all messages of ``queue``, until all confirmed ones have come, and no more come."""
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
