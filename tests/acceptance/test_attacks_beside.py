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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from broker_process import BrokerProcess
from stomp_wire import Wire

from store.check import check

DESCRIPTORS = 400
SILENT = 500
SENDS = 300_000
SUBSCRIPTIONS = 16_000
SUBSCRIBERS, SUBSCRIPTIONS_EACH = 5_000, 1_000
FANNED = 200
KEPT = 100_000
DESTINATIONS = 90_000
_NUMBERS = itertools.count()
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


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


async def connected(broker: BrokerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.stomp)
    writer.write(CONNECT)
    await reader.readuntil(b"\0")
    return reader, writer


async def says(broker: BrokerProcess, *pieces: bytes) -> None:
    """Says all of it, and waits until it is understood or refused."""
    reader, writer = await connected(broker)
    for piece in (*pieces, b"SEND\ndestination:/queue/last\nreceipt:last\n\n\0"):
        writer.write(piece)
        await writer.drain()
    with contextlib.suppress(ConnectionError, EOFError, asyncio.IncompleteReadError):
        while b"receipt-id:last" not in await reader.readuntil(b"\0"):
            pass
    writer.close()


async def nothing(broker: BrokerProcess) -> None:
    await asyncio.sleep(1)


async def small_sends(broker: BrokerProcess) -> None:
    await says(broker, b"SEND\ndestination:/topic/none\n\n\0" * SENDS)


async def subscribes_and_unsubscribes(broker: BrokerProcess) -> None:
    await says(broker, b"SUBSCRIBE\nid:x\ndestination:/topic/x\n\n\0UNSUBSCRIBE\nid:x\n\n\0" * SUBSCRIPTIONS)


async def a_selector_of_minus_signs(broker: BrokerProcess) -> None:
    # A header line has a bound of its own.
    selector = b"-" * 9_000
    await says(broker, b"SUBSCRIBE\nid:x\ndestination:/topic/x\nselector:%b\n\n\0" % selector)


async def a_long_selector(broker: BrokerProcess) -> None:
    selector = b" or ".join(b"a=%d" % number for number in range(900))
    for _ in range(5):
        await says(broker, b"SUBSCRIBE\nid:x\ndestination:/topic/x\nselector:%b\n\n\0" % selector)


async def blank_lines(broker: BrokerProcess) -> None:
    await says(broker, b"\n" * 20_000_000)


async def fan_out(broker: BrokerProcess) -> None:
    """A topic with thousands of subscribers, all of whom read, and messages without a pause."""
    subscribers = [await connected(broker) for _ in range(SUBSCRIBERS // SUBSCRIPTIONS_EACH)]
    readers = []
    for reader, writer in subscribers:
        frames = (b"SUBSCRIBE\nid:%d\ndestination:/topic/fan\n\n\0" % number for number in range(SUBSCRIPTIONS_EACH))
        writer.write(b"".join(frames))
        await writer.drain()
        readers.append(asyncio.create_task(drain(reader)))
    await says(broker, b"SEND\ndestination:/topic/fan\n\nhello\0" * FANNED)
    for task, (_, writer) in zip(readers, subscribers, strict=True):
        task.cancel()
        writer.close()


async def drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 20):
        pass


async def a_large_composite(broker: BrokerProcess) -> None:
    everywhere = b",".join(b"/queue/part-%d" % number for number in range(100))
    body = b"x" * 4_000_000
    frame = b"SEND\ndestination:%b\npersistent:true\ncontent-length:%d\n\n%b\0" % (everywhere, len(body), body)
    await says(broker, frame)


async def a_durable_subscription_ends(broker: BrokerProcess) -> None:
    """With all that was kept for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.stomp)
    writer.write(CONNECT.replace(b"host:x", b"host:x\nclient-id:gone"))
    await reader.readuntil(b"\0")
    writer.write(b"SUBSCRIBE\nid:0\ndestination:/topic/kept\nactivemq.subscriptionName:d\nreceipt:r\n\n\0")
    await reader.readuntil(b"\0")
    writer.write(b"UNSUBSCRIBE\nid:0\n\n\0")
    await says(broker, b"SEND\ndestination:/topic/kept\npersistent:true\n\nx\0" * KEPT)
    writer.write(b"UNSUBSCRIBE\nid:0\nactivemq.subscriptionName:d\nreceipt:end\n\n\0")
    while b"receipt-id:end" not in await reader.readuntil(b"\0"):
        pass
    writer.close()


async def very_many_destinations(broker: BrokerProcess) -> None:
    await says(broker, b"".join(b"SEND\ndestination:/topic/many.%d\n\n\0" % number for number in range(DESTINATIONS)))


async def what_is_told_of_them(broker: BrokerProcess) -> None:
    for _ in range(3):
        status = await asyncio.to_thread(broker.status, 60)
        assert status is not None
        assert len(status["topics"]) >= DESTINATIONS


async def patterns_over_them(broker: BrokerProcess) -> None:
    names = ["many.>", "*.*", ">", "*.>", *(f"many.{number}" for number in range(96))]
    everywhere = ",".join(f"/topic/{name}" for name in names).encode()
    await says(broker, b"SUBSCRIBE\nid:x\ndestination:%b\n\n\0UNSUBSCRIBE\nid:x\n\n\0" % everywhere)


async def silent_sockets(broker: BrokerProcess) -> None:
    async with contextlib.AsyncExitStack() as held:
        for port in (broker.stomp, broker.admin):
            for _ in range(SILENT):
                with contextlib.suppress(ConnectionError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    held.callback(writer.close)
        await asyncio.sleep(2)
        assert broker.status() is not None, "the admin server answers beside them"


ATTACKS: dict[str, Callable[[BrokerProcess], Awaitable[None]]] = {
    "at rest": nothing,
    f"{SENDS} small SENDs": small_sends,
    f"{SUBSCRIPTIONS} SUBSCRIBE and UNSUBSCRIBE": subscribes_and_unsubscribes,
    "a selector of minus signs": a_selector_of_minus_signs,
    "long selectors": a_long_selector,
    "20 MB of line ends": blank_lines,
    f"{2 * SILENT} silent sockets, {DESCRIPTORS} descriptors": silent_sockets,
    f"{FANNED} messages to {SUBSCRIBERS} subscribers": fan_out,
    "4 MB to 100 queues": a_large_composite,
    f"a durable subscription ends with {KEPT} messages": a_durable_subscription_ends,
    f"{DESTINATIONS} topics begin": very_many_destinations,
    f"status of {DESTINATIONS} topics": what_is_told_of_them,
    f"100 names and patterns over {DESTINATIONS} topics": patterns_over_them,
}


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


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_good_client_beside_it_is_served_and_no_role_changes(broker: BrokerProcess, attack: str) -> None:
    before = broker.wait_role("master")
    client = GoodClient(broker)
    async with living(client):
        await asyncio.sleep(0.2)
        await ATTACKS[attack](broker)
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
