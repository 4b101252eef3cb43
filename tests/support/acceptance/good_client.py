"""A well-behaved client, while an attacker runs in another process."""

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
    """A client that sends persistent messages to itself, one after the other. At intervals a new connection logs in."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._queue = f"/queue/good-{next(_NUMBERS)}"
        self.round_trips: list[float] = []
        self.logins: list[float] = []

    async def live(self) -> None:
        """Run until cancelled. Fails if there is no answer within 20 s, or the connection is lost."""
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
        """Wait for ``round_trips`` more round trips; the first of them may have started before."""
        wanted = len(self.round_trips) + round_trips
        async with asyncio.timeout(20):
            while len(self.round_trips) < wanted:  # noqa: ASYNC110 - there is no event for this condition
                await asyncio.sleep(0.01)

    async def _log_in(self) -> None:
        """Log in, and repeat it if the broker has no room for the connection, as clients with a failover URL do."""
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
    """Run a module of this directory in a separate process, so that the good client waits only for the broker."""
    command = [sys.executable, "-m", f"{__package__}.{program}", *map(str, words)]
    process = forked.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.kill()
