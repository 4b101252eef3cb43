"""A well-behaved client beside one that is not, which has a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator

from tests.support import forked
from tests.support.acceptance.broker_process import ROOT, BrokerProcess
from tests.support.acceptance.stomp_wire import Wire

_NUMBERS = itertools.count()


class GoodClient:
    """Sends persistent messages to itself, one after the other, and now and then a newcomer logs in."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._queue = f"/queue/good-{next(_NUMBERS)}"
        self.round_trips: list[float] = []
        self.logins: list[float] = []

    async def live(self) -> None:
        """Until it is cancelled. Fails if it is not answered within 20 s, or loses its connection."""
        wire = await Wire.open(self._broker.stomp)
        wire.send("SUBSCRIBE", {"id": "0", "destination": self._queue, "receipt": "s"})
        assert (await wire.read()).command == "RECEIPT"
        number = 0
        while True:
            number += 1
            began = time.monotonic()
            headers = {"destination": self._queue, "persistent": "true", "receipt": str(number)}
            wire.send("SEND", headers, b"%d" % number)
            async with asyncio.timeout(20):
                frames = {(await wire.read()).command for _ in range(2)}
                assert frames == {"RECEIPT", "MESSAGE"}
            self.round_trips.append(time.monotonic() - began)
            if number % 10 == 0:
                began = time.monotonic()
                await self._log_in()
                self.logins.append(time.monotonic() - began)
            await asyncio.sleep(0.01)

    async def goes_on(self, round_trips: int = 2) -> None:
        """So many more, of which the first may have begun before."""
        wanted = len(self.round_trips) + round_trips
        async with asyncio.timeout(20):
            while len(self.round_trips) < wanted:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)

    async def _log_in(self) -> None:
        """As clients with a failover URL do: again, when there was no room."""
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(ConnectionError):
                    (await Wire.open(self._broker.stomp)).close()
                    return
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def living(client: GoodClient) -> AsyncIterator[GoodClient]:
    life = asyncio.create_task(client.live())
    try:
        yield client
        assert not life.done(), life.exception()
    finally:
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await life


async def run(program: str, *words: str | int) -> None:
    """A module of this directory, in a process of its own: what the good client waits for is the broker alone."""
    command = [sys.executable, "-m", f"{__package__}.{program}", *map(str, words)]
    process = forked.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.kill()
