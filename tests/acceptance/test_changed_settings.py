"""A broker that runs reads its settings again at SIGHUP, and takes over what it can."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.stomp_wire import Wire, send

SETTINGS = """
[broker]
queue_prefetch = 2
[[destinations]]
queue = "few"
queue_prefetch = 1
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    with serving(BrokerProcess(tmp_path / "data", "a", "--config", str(tmp_path / "settings.toml"))) as (broker,):
        yield broker


def _reload(broker: BrokerProcess, text: str, output_text: str) -> str:
    """SIGHUP with that file, until ``said`` is in the log: what was logged for it."""
    before = len(broker.log.read_text())
    Path(broker.data).with_name("settings.toml").write_text(text)
    broker.kill(signal.SIGHUP)

    def logged() -> str | None:
        new = broker.log.read_text()[before:]
        return new if output_text in new else None

    found = wait_until(logged, output_text)
    assert isinstance(found, str)
    return found


async def _subscribed(broker: BrokerProcess, destination: str, **headers: str) -> Wire:
    wire = await Wire.open(broker.stomp)
    for number in range(6):
        await send(wire, destination, str(number))
        await wire.read()
    wire.send("SUBSCRIBE", {"id": "s", "destination": destination, "ack": "client-individual", **headers})
    await wire.flush()
    return wire


async def _bodies(wire: Wire, count: int) -> list[str]:
    return [(await asyncio.wait_for(wire.read(), 20)).body.decode() for _ in range(count)]


async def _nothing_more(wire: Wire) -> None:
    """The next that it is told is what it asks for now."""
    await send(wire, "/queue/aside", "aside")
    assert (await wire.read()).command == "RECEIPT"


@pytest.mark.promise("settings-are-reloaded")
async def test_a_changed_prefetch_holds_for_consumers_that_are_on(broker: BrokerProcess) -> None:
    few = await _subscribed(broker, "/queue/few")
    other = await _subscribed(broker, "/queue/other")
    own = await _subscribed(broker, "/queue/own", **{"activemq.prefetchSize": "1"})
    assert await _bodies(few, 1) == ["0"]
    assert await _bodies(other, 2) == ["0", "1"]
    assert await _bodies(own, 1) == ["0"]
    changed = SETTINGS.replace("queue_prefetch = 2", "queue_prefetch = 4").replace("= 1", "= 3\nmemory_limit = 70000")
    logged = await asyncio.to_thread(_reload, broker, changed, "prefetches are as the settings say")
    assert "destinations[queue few].memory_limit was changed, and holds from the next start" in logged
    assert await _bodies(few, 2) == ["1", "2"]
    assert await _bodies(other, 2) == ["2", "3"]
    await _nothing_more(own)
    for wire in (few, other, own):
        wire.close()


@pytest.mark.promise("settings-are-reloaded")
async def test_a_file_that_is_wrong_changes_nothing(broker: BrokerProcess) -> None:
    few = await _subscribed(broker, "/queue/few")
    assert await _bodies(few, 1) == ["0"]
    wrong = SETTINGS.replace("queue_prefetch = 1", "queue_prefetch = -5").replace("= 2", "= 4")
    logged = await asyncio.to_thread(_reload, broker, wrong, "the settings stay as they were")
    for text in ("queue_prefetch", "-5", "expected"):
        assert text in logged
    other = await _subscribed(broker, "/queue/other")
    assert await _bodies(other, 2) == ["0", "1"]
    for wire in (few, other):
        await _nothing_more(wire)
        wire.close()
