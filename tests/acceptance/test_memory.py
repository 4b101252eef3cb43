"""The broker's memory stays within ``broker.memory_limit`` and 100 MB above its memory at rest, whatever a client does.

A well-behaved client is served at the same time. The memory in ``status`` agrees with the growth of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.mqtt.packets import Will
from tandemmq.broker.protocols.mqtt.properties import Properties
from tests.support.acceptance import mqtt_attacks
from tests.support.acceptance.attacks import CONNECT
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.good_client import GoodClient, living, run
from tests.support.acceptance.memory_attacks import ATTACKS
from tests.support.samples import sampled

MIB = 1 << 20
LIMIT = 64 * MIB
#: Those of the default run; CI has some of the others.
SAMPLE = ("240 transactions of 2 MB",)
ATTACKS_IN_CI = 4


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path / "data", "a", "--set", f"broker.memory_limit={LIMIT}")
    made.mqtt = free_port()
    with serving(made):
        yield made


def resident(broker: BrokerProcess, line: str = "VmRSS") -> int:
    """``VmRSS``: now. ``VmHWM``: the most since ``forget_peak``. Bytes."""
    text = Path(f"/proc/{broker.pid}/status").read_text()
    return next(int(each.split()[1]) * 1024 for each in text.splitlines() if each.startswith(line))


def forget_peak(broker: BrokerProcess) -> None:
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")


@pytest.mark.parametrize(
    "attack",
    [
        *(pytest.param(name, marks=pytest.mark.promise("memory-is-bounded")) for name in SAMPLE),
        *sampled("memory", [name for name in ATTACKS if name not in SAMPLE], ATTACKS_IN_CI),
    ],
)
async def test_memory_stays_below_its_limit_and_a_good_client_is_served(narrow: BrokerProcess, attack: str) -> None:
    async with living(GoodClient(narrow)) as client:
        await asyncio.sleep(0.5)
        before = resident(narrow)
        forget_peak(narrow)
        await run("memory_attacks", attack, narrow.stomp, narrow.admin, narrow.mqtt or 0)
        await client.goes_on(20)
    most = resident(narrow, "VmHWM") - before
    trips = sorted(client.round_trips)
    print(
        f"\n{attack}: at most {most / MIB:.0f} MiB more than at rest ({LIMIT / MIB:.0f} and 100 may be); good client "
        f"p50 {trips[len(trips) // 2] * 1000:.0f} ms, p99 {trips[len(trips) * 99 // 100] * 1000:.0f} ms"
    )
    assert most < LIMIT + 100 * MIB
    assert narrow.wait_role("master")["counts"]["promotions_total"] == 1


KINDS = {
    "small": (60_000, b"\nhello {number}"),
    "bodies": (8_000, b"content-length:10000\n\n{number}" + b"x" * 9_992),
    "headers": (15_000, b"".join(b"h%d:v{number}-%d\n" % (n, n) for n in range(20)) + b"\nhello"),
    "long headers": (220, b"".join(b"h%d:{number}%b\n" % (n, b"y" * 9_000) for n in range(100)) + b"\nhello"),
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", "a", "--set", "broker.memory_limit=1gb")
    broker.mqtt = free_port()
    with serving(broker):
        yield broker


def counted(broker: BrokerProcess, kind: str = "non_persistent") -> int:
    status = broker.status()
    assert status is not None
    return int(status["counts"][f"memory_{kind}_bytes"])


@pytest.mark.parametrize(
    "kind", [pytest.param("small", marks=pytest.mark.promise("memory-is-counted")), *sorted({*KINDS} - {"small"})]
)
async def test_memory_is_counted_within_a_quarter_of_what_is_held(broker: BrokerProcess, kind: str) -> None:
    count, rest = KINDS[kind]
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.stomp)
    writer.write(CONNECT)
    await reader.readuntil(b"\0")

    async def receipt() -> None:
        writer.write(b"SEND\ndestination:/topic/none\nreceipt:r\n\n\0")
        await reader.readuntil(b"\0")

    await receipt()
    before = resident(broker), counted(broker)
    for number in range(count):
        writer.write(b"SEND\ndestination:/queue/q\n%b\0" % rest.replace(b"{number}", b"%08d" % number))
        await writer.drain()
    await receipt()
    held, lines = resident(broker) - before[0], counted(broker) - before[1]
    print(f"{kind}: {lines / MIB:.0f} MiB counted, {held / MIB:.0f} MiB held")
    assert 0.75 < lines / held < 1.34
    writer.close()


async def retained(port: int) -> None:
    pieces = [mqtt_attacks.publish(f"r/{number}", b"r" * 10_000, retain=True) for number in range(3_000)]
    await mqtt_attacks.send_all(port, "retains", *pieces)


async def packet_ids(port: int) -> None:
    for number in range(3):
        await mqtt_attacks.unreleased(port, 40_000, f"unreleased-{number}")


async def wills(port: int) -> None:
    later = Properties(will_delay=mqtt_attacks.HOUR, user=(("a", "b"),) * 10)
    for number in range(2_000):
        will = Will("w", b"w" * 20_000, 1, False, later)
        _, writer = await mqtt_attacks.connected(port, f"w-{number}", lasts=True, will=will)
        writer.transport.abort()


async def sessions(port: int) -> list[asyncio.StreamWriter]:
    writers = []
    for number in range(1_000):
        reader, writer = await mqtt_attacks.connected(port, f"s-{number}", lasts=True)
        writer.write(mqtt_attacks.subscribe(f"news/{number % 10}", 1))
        await mqtt_attacks.packet(reader)
        writers.append(writer)
    return writers


@pytest.mark.parametrize("kind", [retained, packet_ids, wills, sessions])
async def test_memory_of_mqtt_is_counted_within_a_quarter_of_what_is_held(
    broker: BrokerProcess, kind: Callable[[int], Awaitable[list[asyncio.StreamWriter] | None]]
) -> None:
    assert broker.mqtt is not None
    for number in range(20):
        await mqtt_attacks.send_all(
            broker.mqtt, f"first-{number}", mqtt_attacks.publish("t", b"x", retain=True), lasts=True
        )
    before = resident(broker), counted(broker, "used")
    connected = await kind(broker.mqtt) or []
    held, lines = resident(broker) - before[0], counted(broker, "used") - before[1]
    for writer in connected:
        writer.transport.abort()
    print(f"{kind.__name__}: {lines / MIB:.0f} MiB counted, {held / MIB:.0f} MiB held")
    assert 0.75 < lines / held < 1.34
