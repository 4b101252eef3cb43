"""A queue of many messages of mixed priorities, across kill -9, and with the policy switched on over it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.stomp_wire import Wire
from tests.support.prove import IS_THOROUGH

# Several windows of 2,000.
MESSAGES = 12_000 if IS_THOROUGH else 4_800
QUEUE = "/queue/urgent"
ON = '[[destinations]]\nqueue = "urgent"\nprioritized_messages = true\n'


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, ...]]:
    """Master and standby; ``settings.toml`` beside their data is read at each start."""
    settings = tmp_path / "settings.toml"
    settings.write_text(ON)
    with serving(*(BrokerProcess(tmp_path / "data", name, "--config", str(settings)) for name in "ab")) as pair:
        yield pair


async def store(wire: Wire, messages: list[tuple[int, int]]) -> None:
    for number, priority in messages:
        headers = {"destination": QUEUE, "persistent": "true", "priority": str(priority)}
        if number % 500 == 499 or number == messages[-1][0]:
            headers["receipt"] = str(number)
        wire.send("SEND", headers, str(number).encode())
        if "receipt" in headers:
            while (await wire.read()).command != "RECEIPT":
                pass


async def take(wire: Wire, count: int, *, prefetch: int = 100) -> list[int]:
    """Each is acknowledged as it comes."""
    subscribe = {"id": "0", "destination": QUEUE, "ack": "client-individual", "activemq.prefetchSize": str(prefetch)}
    wire.send("SUBSCRIBE", subscribe)
    found: list[int] = []
    while len(found) < count:
        frame = await asyncio.wait_for(wire.read(), 30)
        found.append(int(frame.body))
        wire.send("ACK", {"id": frame.headers["ack"]})
    wire.send("DISCONNECT", {"receipt": "end"})
    while (await wire.read()).command != "RECEIPT":
        pass
    return found


def mixed(first: int, count: int) -> list[tuple[int, int]]:
    chance = random.Random(first)
    return [(number, chance.choice((4, 4, 4, 9, 0, 7, 1))) for number in range(first, first + count)]


def by_priority(messages: list[tuple[int, int]]) -> list[int]:
    return [number for number, priority in sorted(messages, key=lambda each: (-each[1], each[0]))]


@pytest.mark.promise("priorities-hold")
async def test_a_queue_goes_by_priority_over_failovers(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    master, standby = pair
    messages = mixed(0, MESSAGES)
    await store(await Wire.open(master.stomp), messages)
    expected = by_priority(messages)
    # A third of it from the first master, a third from the second, which got more, and the rest from the first again.
    found = await take(await Wire.open(master.stomp), MESSAGES // 3, prefetch=1)
    master.kill()
    standby.wait_role("master")
    assert found == expected[: len(found)]

    more = mixed(MESSAGES, MESSAGES // 6)
    await store(await Wire.open(standby.stomp), more)
    left = [each for each in messages if each[0] not in found] + more
    expected = by_priority(left)
    found = await take(await Wire.open(standby.stomp), len(left) // 2, prefetch=1)
    assert found == expected[: len(found)]
    standby.kill()
    master.start().wait_role("master")
    assert await take(await Wire.open(master.stomp), len(left) - len(found)) == expected[len(found) :]
