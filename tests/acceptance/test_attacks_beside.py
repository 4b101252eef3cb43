"""What one client does to a broker, and what a well-behaved one beside it notices: a table, and no change of role.

How long the good client waits is printed and asserted nowhere: machines differ. What is asserted is that all it asked
for was answered, and that the master stayed master.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from attacks import ATTACKS, DESCRIPTORS
from broker_process import BrokerProcess
from stomp_wire import Wire

from store.check import check

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path_factory.mktemp("attacks") / "data", "a")
    made.runs_under = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
    made.start().wait_role("master")
    yield made
    assert made.terminate() == 0
    made.stop()
    report = check(made.data)
    assert report.is_clean, report.problems


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

    async def _log_in(self) -> None:
        """As clients with a failover URL do: again, when there was no room."""
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(ConnectionError):
                    (await Wire.open(self._broker.stomp)).close()
                    return
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def living(client: GoodClient) -> AsyncIterator[None]:
    life = asyncio.create_task(client.live())
    try:
        yield
        assert not life.done(), life.exception()
    finally:
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await life


async def run(attack: str, broker: BrokerProcess) -> None:
    """In a process of its own: what the good client waits for is the broker alone."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("attacks.py")),
        attack,
        str(broker.stomp),
        str(broker.admin),
    ]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_good_client_beside_it_is_served_and_no_role_changes(broker: BrokerProcess, attack: str) -> None:
    before = broker.wait_role("master")
    client = GoodClient(broker)
    async with living(client):
        await asyncio.sleep(0.2)
        await run(attack, broker)
        count = len(client.round_trips)
        async with asyncio.timeout(20):
            while len(client.round_trips) < count + 20:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)
    after = broker.wait_role("master")
    assert after["epoch"] == before["epoch"]
    assert after["counts"]["promotions_total"] == 1
    trips, logins = sorted(client.round_trips), sorted(client.logins) or [0.0]
    print(
        f"\n{attack}: {len(trips)} round trips, p50 {trips[len(trips) // 2] * 1000:.0f} ms, "
        f"p99 {trips[len(trips) * 99 // 100] * 1000:.0f} ms, longest {trips[-1] * 1000:.0f} ms; "
        f"{len(client.logins)} logins, longest {logins[-1] * 1000:.0f} ms"
    )
