"""A driver of Spark is killed repeatedly while a broker writes under load: each message is in Parquet once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tandemmq.client.client import Client
from tests.support.acceptance.broker_process import ROOT, BrokerProcess, wait_until
from tests.support.prove import SEED, rounds
from tests.support.tree import TESTS

pytestmark = [pytest.mark.service, pytest.mark.timeout(1800), pytest.mark.promise("pipeline-reads-beside")]

KILLS = rounds(1, 120)
# After so many batches of one life, and so many seconds at most, it dies.
BATCHES_BEFORE_DEATH = 2
SECONDS_BEFORE_DEATH_MAX = 1.0
START_SECONDS_MAX = 240.0
FILE_BYTES = 64 << 10
DRIVER = TESTS / "support" / "pipeline" / "stream_driver.py"


class Load(threading.Thread):
    """A producer that notes which bodies the broker confirmed, and a consumer that takes them."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.confirmed: set[str] = set()
        self._url = f"failover:({url})"
        self._is_over = threading.Event()

    def run(self) -> None:
        asyncio.run(self._story())

    def finish(self) -> None:
        self._is_over.set()
        if self.is_alive():
            self.join()

    async def _story(self) -> None:
        async with Client(self._url) as producer, Client(self._url) as consumer:
            subscription = await consumer.subscribe("/queue/orders")
            number = 0
            while not self._is_over.is_set():
                bodies = [f"{number + index} " + "x" * 900 for index in range(10)]
                number += len(bodies)
                await asyncio.gather(*(producer.send_confirmed("/queue/orders", body) for body in bodies))
                self.confirmed.update(bodies)
                for _ in bodies[1:]:  # one of ten stays
                    message = await subscription.receive(0.01)
                    if message is not None:
                        await consumer.acknowledge(message)
                await asyncio.sleep(0.05)


def family(pid: int) -> list[int]:
    """A process and its descendants: the driver's Python, its Java, and Spark's workers."""
    found = [pid]
    for member in found:
        with suppress(OSError):
            for task in Path(f"/proc/{member}/task").iterdir():
                with suppress(OSError):
                    found += [int(child) for child in (task / "children").read_text().split()]
    return found


@contextmanager
def driver(act: str, store: Path, lake: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that runs; at the end it and all that it started are killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (lake / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), act, str(store), str(lake)],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=lake,
            env=environment,
        )
    try:
        yield process
    finally:
        for pid in family(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def batches(lake: Path) -> int:
    """Return the number of committed batches."""
    return len(list(lake.glob("checkpoint/commits/[0-9]*")))


@pytest.mark.prove
@pytest.mark.thorough
@pytest.mark.usefixtures("spark_installed")
def test_each_message_is_stored_once_however_often_the_driver_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"TANDEMMQ_SEED={SEED}")
    lake = tmp_path / "lake"
    lake.mkdir()
    broker = BrokerProcess(tmp_path / "store", "a")
    broker.environment = {
        "TANDEMMQ_STORE__JOURNAL_MAX_FILE_LENGTH": str(FILE_BYTES),
        "TANDEMMQ_STORE__ARCHIVE_DATA_LOGS": "true",
    }
    broker.start()
    load = Load(broker.url)
    try:
        broker.wait_role("master")
        load.start()
        wait_until(lambda: load.confirmed, "something is confirmed")
        for life in range(KILLS):
            before = batches(lake)
            with driver("follow", tmp_path / "store", lake) as running:

                def has_written(running: subprocess.Popen[bytes] = running, before: int = before) -> bool:
                    assert running.poll() is None, (lake / "driver.log").read_text()[-4000:]
                    return batches(lake) >= before + BATCHES_BEFORE_DEATH

                wait_until(has_written, "batches are committed", START_SECONDS_MAX)
                time.sleep(chance.uniform(0, SECONDS_BEFORE_DEATH_MAX))
            if life % 2:
                broker.kill()
                broker.start().wait_role("master")
        load.finish()
        broker.terminate()
        with driver("finish", tmp_path / "store", lake) as last:
            out, _ = last.communicate(timeout=START_SECONDS_MAX)
            assert last.returncode == 0, (lake / "driver.log").read_text()[-4000:]
    finally:
        load.finish()
        broker.stop()
    told = json.loads(out.splitlines()[-1])
    ids = Counter(message_id for message_id, _ in told["lake"])
    assert [message_id for message_id, count in ids.items() if count > 1] == []
    assert told["lake"] == told["store"]
    assert load.confirmed <= {text for _, text in told["lake"]}
    assert len(list((tmp_path / "store" / "data-archive").glob("db-*.log"))) > 1, "files were moved below the stream"
    assert len(load.confirmed) > 100
