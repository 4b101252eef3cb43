"""A client that stays with one broker to the end, to find answers that a deposed broker must not give."""

from __future__ import annotations

import asyncio
import itertools

from tests.support.acceptance.stomp_wire import LOST, Frame, Wire
from tests.support.acceptance.zombie_clients import END_SECONDS_MAX, Ledger, acknowledge, send, subscribe

KEPT = 10  # messages that are confirmed before the fault
HELD = 5  # of them delivered to the witness
TRANSACTED = 2
LATE_MAX = 30
PACE_SECONDS = 0.01


class Witness:
    """Call ``open`` before the fault, ``succeeded`` when another broker is master, ``finish`` when this broker runs
    again.

    Its messages go to ``queue``, which no other client uses. Frames it sends after ``succeeded`` must have no effect,
    and no answer.
    """

    def __init__(self, ledger: Ledger, port: int, queue: str) -> None:
        self.queue = queue
        self.stale_deliveries: list[str] = []
        self._ledger = ledger
        self._port = port
        self._numbers = itertools.count(1)
        self._held: list[Frame] = []
        self._transacted: list[str] = []
        self._late: set[str] = set()
        self._is_late = False
        self._is_silent = False
        self._is_answered = asyncio.Event()

    async def open(self) -> None:
        """Send some messages with receipts, take and acknowledge one, begin a transaction, and continue to send."""
        ledger = self._ledger
        self._sender = await Wire.open(self._port)
        self._taker = await Wire.open(self._port)
        kept = [self._send("kept") for _ in range(KEPT)]
        await self._sender.flush()
        for _ in kept:
            self._heard(await asyncio.wait_for(self._sender.read(), END_SECONDS_MAX))
        subscribe(self._taker, self.queue, prefetch=HELD)
        self._held = [await asyncio.wait_for(self._taker.read(), END_SECONDS_MAX) for _ in range(HELD)]
        for frame in self._held:
            ledger.arrived(frame)
        acknowledge(self._taker, self._held.pop(0))
        while not self._is_answered.is_set():  # one more message comes for the acknowledged one
            self._heard(await asyncio.wait_for(self._taker.read(), END_SECONDS_MAX))
        self._sender.send("BEGIN", {"transaction": "t"})
        self._transacted = [self._send("transacted", transaction="t") for _ in range(TRANSACTED)]
        self._working = [
            asyncio.create_task(self._read(self._sender)),
            asyncio.create_task(self._read(self._taker)),
            asyncio.create_task(self._go_on_sending()),
        ]

    def succeeded(self, *, is_silent: bool) -> None:
        """The broker is deposed from now on, even if it does not know: acknowledge, commit and subscribe there.

        ``is_silent``: it must send nothing any more. Otherwise it may for a moment deliver messages it has, and answer
        requests that need no store.
        """
        self._is_late = True
        self._is_silent = is_silent
        self._late.add("commit")
        self._ledger.forbidden.update(self._transacted)
        try:
            for frame in self._held:
                message = frame.headers["message-id"]
                self._late.add(message)
                self._ledger.owed.add(message)
                acknowledge(self._taker, frame)
            subscribe(self._taker, self.queue, prefetch=100, identity="late")
            loose = {"destination": f"/queue/{self.queue}", "receipt": "not persistent"}
            self._sender.send("SEND", loose, b"not persistent")
            self._sender.send("COMMIT", {"transaction": "t", "receipt": "commit"})
        except LOST:
            pass  # it has already closed the connection, which is also correct

    async def finish(self) -> None:
        """Read until the broker closes the connection."""
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                await asyncio.gather(*self._working)
        except TimeoutError:
            self._ledger.broken.append(f"{self.queue}: the deposed master did not hang up in {END_SECONDS_MAX:.0f} s")
        for task in self._working:
            task.cancel()
        self._sender.close()
        self._taker.close()

    def _send(self, series: str, **headers: str) -> str:
        key = f"{self.queue}/{series}-{next(self._numbers)}"
        self._ledger.sent[key] += 1
        if self._is_late:
            self._late.add(key)
            self._ledger.forbidden.add(key)
        if "transaction" not in headers:
            headers["receipt"] = key
        send(self._sender, key, **headers)
        return key

    async def _go_on_sending(self) -> None:
        late = 0
        try:
            while late < LATE_MAX:
                self._send("flight")
                late += self._is_late
                await self._sender.flush()
                await asyncio.sleep(PACE_SECONDS)
        except LOST:
            pass

    async def _read(self, wire: Wire) -> None:
        try:
            while True:
                self._heard(await wire.read())
        except LOST:
            pass

    def _heard(self, frame: Frame) -> None:
        ledger = self._ledger
        if self._is_silent and frame.command != "ERROR":
            ledger.broken.append(f"{self.queue}: a deposed master sent {frame.command} {frame.headers}")
        if frame.command == "MESSAGE":
            message = frame.headers["message-id"]
            if not self._is_late:
                ledger.arrived(frame)
                self._held.append(frame)
            elif message in ledger.acknowledged:
                self.stale_deliveries.append(message)
            return
        if frame.command != "RECEIPT":
            return  # an ERROR states why it closes the connection
        receipt = frame.headers["receipt-id"]
        if receipt in self._late:
            ledger.broken.append(f"{self.queue}: a deposed master sent a receipt for {receipt}")
        ledger.receipts += 1
        if receipt in ledger.sent:
            ledger.confirmed.add(receipt)
        else:
            ledger.acknowledged.add(receipt)
            self._is_answered.set()
