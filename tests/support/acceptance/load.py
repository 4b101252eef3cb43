"""Clients that record what the broker confirmed, and check it."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence

from tests.support.acceptance.stomp_wire import LOST, Address, Wire, connect_any


class Books:
    """Records of the clients.

    ``stored``: bodies whose SEND has a receipt; ``received``: number of deliveries of each body. ``acknowledged``: ids
    of messages whose ACK has a receipt. A body may come twice under two ids, because a message without a receipt is
    sent again.
    """

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.stored: set[str] = set()
        self.received: Counter[str] = Counter()
        self.acknowledging: set[str] = set()
        self.acknowledged: set[str] = set()
        self.undone: list[str] = []
        self.reconnects = 0

    def problems(self) -> list[str]:
        """Return the broken promises as sentences. Call it after all queues are drained."""
        lost = sorted(self.stored - set(self.received))
        found = [f"lost: {body} had a receipt and never came" for body in lost[:10]]
        found += [f"undone: {body} came again after its acknowledgement was confirmed" for body in self.undone[:10]]
        return found


async def produce(
    books: Books,
    ports: Sequence[Address],
    queue: str,
    name: str,
    window: int,
    stop: asyncio.Event,
    patience_seconds: float = 20,
) -> None:
    """Send numbered messages until ``stop`` is set, at most ``window`` without a receipt; after a reconnect those are
    sent again."""
    numbers = itertools.count(1)
    waiting: dict[str, None] = {}
    while True:
        wire = await connect_any(ports)
        try:
            for body in waiting:
                _send(wire, queue, body)
            while True:
                while len(waiting) < window and not stop.is_set():
                    body = f"{name}-{next(numbers)}"
                    waiting[body] = None
                    books.sent.add(body)
                    _send(wire, queue, body)
                if not waiting:
                    wire.close()
                    return
                await wire.flush()
                frame = await asyncio.wait_for(wire.read(), patience_seconds)
                assert frame.command == "RECEIPT", frame
                body = frame.headers["receipt-id"]
                waiting.pop(body, None)
                books.stored.add(body)
        except LOST:
            books.reconnects += 1
            wire.close()


def _send(wire: Wire, queue: str, body: str) -> None:
    headers = {"destination": queue, "persistent": "true", "receipt": body, "content-length": str(len(body))}
    wire.send("SEND", headers, body.encode())


async def consume(books: Books, ports: Sequence[Address], queue: str, stop: asyncio.Event, prefetch: int = 50) -> None:
    """Acknowledge each message, with a receipt, until ``stop`` is set."""
    while not stop.is_set():
        wire = await connect_any(ports)
        try:
            wire.send(
                "SUBSCRIBE",
                {"id": "0", "destination": queue, "ack": "client-individual", "activemq.prefetchSize": str(prefetch)},
            )
            while not stop.is_set():
                try:
                    frame = await asyncio.wait_for(wire.read(), 0.2)
                except TimeoutError:
                    continue
                if frame.command == "MESSAGE":
                    body = frame.body.decode()
                    books.received[body] += 1
                    message_id = frame.headers["message-id"]
                    if message_id in books.acknowledged:
                        books.undone.append(f"{message_id} ({body})")
                    books.acknowledging.add(message_id)
                    wire.send("ACK", {"id": frame.headers["ack"], "receipt": message_id.replace(":", "\\c")})
                    await wire.flush()
                elif frame.command == "RECEIPT":
                    books.acknowledged.add(frame.headers["receipt-id"])
                else:
                    raise AssertionError(frame)
        except LOST:
            books.reconnects += 1
        wire.close()


async def drain(books: Books, ports: Sequence[Address], queue: str, quiet_seconds: float = 1.0) -> None:
    """Take all remaining messages, until none has come for ``quiet_seconds``."""
    stop = asyncio.Event()
    task = asyncio.create_task(consume(books, ports, queue, stop))
    before = -1
    while (now := sum(books.received.values())) != before:
        before = now
        await asyncio.sleep(quiet_seconds)
    stop.set()
    await task
