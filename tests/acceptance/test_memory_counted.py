"""What is counted is what is held: the figures of ``status`` beside the growth of the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.acceptance.attacks import CONNECT
from tests.acceptance.broker_process import BrokerProcess

MIB = 1 << 20
PAGE_BYTES = 4096

KINDS = {
    "small": (60_000, b"\nhello {number}"),
    "bodies": (8_000, b"content-length:10000\n\n{number}" + b"x" * 9_992),
    "headers": (15_000, b"".join(b"h%d:v{number}-%d\n" % (n, n) for n in range(20)) + b"\nhello"),
    "long headers": (25, b"".join(b"h%d:{number}%b\n" % (n, b"y" * 9_000) for n in range(900)) + b"\nhello"),
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", "a", "--set", "broker.memory_limit=1gb").start()
    await asyncio.to_thread(broker.wait_role, "master")
    yield broker
    broker.stop()


def resident(broker: BrokerProcess) -> int:
    return int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def counted(broker: BrokerProcess) -> int:
    status = broker.status()
    assert status is not None
    return int(status["counts"]["memory_non_persistent_bytes"])


@pytest.mark.parametrize("kind", KINDS)
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
    held, said = resident(broker) - before[0], counted(broker) - before[1]
    print(f"{kind}: {said / MIB:.0f} MiB counted, {held / MIB:.0f} MiB held")
    assert 0.75 < said / held < 1.34
    writer.close()
