"""Whatever a client does, the broker's memory stays within ``broker.memory_limit`` and 100 MB of what it takes at rest,
and a good client beside is served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.good_client import GoodClient, living, run
from tests.support.acceptance.memory_attacks import ATTACKS

MIB = 1 << 20
LIMIT = 64 * MIB
#: Those of the default run.
SAMPLE = ("240 transactions of 2 MB",)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path / "data", "a", "--set", f"broker.memory_limit={LIMIT}")
    made.mqtt = free_port()
    with serving(made):
        yield made


def resident(broker: BrokerProcess, line: str) -> int:
    """``VmRSS``: now. ``VmHWM``: the most since ``forget_peak``. Bytes."""
    text = Path(f"/proc/{broker.pid}/status").read_text()
    return next(int(each.split()[1]) * 1024 for each in text.splitlines() if each.startswith(line))


def forget_peak(broker: BrokerProcess) -> None:
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")


@pytest.mark.parametrize(
    "attack",
    [pytest.param(name, marks=pytest.mark.promise("memory-is-bounded") if name in SAMPLE else ()) for name in ATTACKS],
)
async def test_memory_stays_below_its_limit_and_a_good_client_is_served(broker: BrokerProcess, attack: str) -> None:
    async with living(GoodClient(broker)) as client:
        await asyncio.sleep(0.5)
        before = resident(broker, "VmRSS")
        forget_peak(broker)
        await run("memory_attacks", attack, broker.stomp, broker.admin, broker.mqtt or 0)
        await client.goes_on(20)
    most = resident(broker, "VmHWM") - before
    trips = sorted(client.round_trips)
    print(
        f"\n{attack}: at most {most / MIB:.0f} MiB more than at rest ({LIMIT / MIB:.0f} and 100 may be); good client "
        f"p50 {trips[len(trips) // 2] * 1000:.0f} ms, p99 {trips[len(trips) * 99 // 100] * 1000:.0f} ms"
    )
    assert most < LIMIT + 100 * MIB
    after = broker.wait_role("master")
    assert after["counts"]["promotions_total"] == 1
