"""The end of a master at random moments under load: nothing with a receipt is lost, nothing confirmed comes back.

Most ends are a kill -9; some are a handover, and some a lock file that is deleted under the master.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from broker_process import BrokerProcess
from load import Books, consume, drain, produce

from store.check import check

ROUNDS = int(os.environ.get("TANDEMMQ_PROVE_KILLS", "4"))
SEED = int(os.environ.get("TANDEMMQ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
QUEUE = "/queue/kills"
# Small files and frequent checkpoints, so that a kill meets every kind of moment.
OPTIONS = (
    "--set", "store.journal_max_file_length=1mb",
    "--set", "store.checkpoint_records=500",
    "--set", "store.checkpoint_interval=200ms",
)  # fmt: skip


@pytest.mark.prove
@pytest.mark.timeout(120 + 15 * ROUNDS)
async def test_kills_under_load_lose_nothing_and_undo_nothing(tmp_path: Path) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds (TANDEMMQ_SEED, TANDEMMQ_PROVE_KILLS)")
    dice = random.Random(SEED)
    data = tmp_path / "data"
    brokers = [BrokerProcess(data, "a", *OPTIONS), BrokerProcess(data, "b", *OPTIONS)]
    ports = [broker.stomp for broker in brokers]
    books = Books()
    stop_sending, stop_taking = asyncio.Event(), asyncio.Event()
    try:
        master, standby = brokers
        await asyncio.to_thread(master.start().wait_role, "master")
        await asyncio.to_thread(standby.start().wait_role, "standby")
        clients = [
            *(asyncio.create_task(produce(books, ports, QUEUE, f"p{n}", 20, stop_sending)) for n in range(2)),
            *(asyncio.create_task(consume(books, ports, QUEUE, stop_taking)) for _ in range(2)),
        ]
        for _ in range(ROUNDS):
            await asyncio.sleep(dice.uniform(0.05, 1.2))
            how = dice.choice(["kill", "kill", "kill", "terminate", "lock file"])
            if how == "lock file":  # else who was demoted may be back before the other has begun
                await asyncio.to_thread(standby.wait_role, "standby")
            if how == "kill":
                standby.kill(signal.SIGSTOP)  # so that the directory stands still as the dead master left it
                await asyncio.to_thread(master.kill)
                report = await asyncio.to_thread(check, str(data))
                assert report.is_clean, report.problems
                standby.kill(signal.SIGCONT)
            elif how == "terminate":
                assert await asyncio.to_thread(master.terminate) == 0
            else:
                (data / "lock").unlink()
            await asyncio.to_thread(standby.wait_role, "master")
            if how == "lock file":
                await asyncio.to_thread(master.wait_role, "standby")
            else:
                master.start()
            master, standby = standby, master
        await asyncio.sleep(0.5)
        stop_sending.set()
        stop_taking.set()
        await asyncio.wait_for(asyncio.gather(*clients), 60)
        await asyncio.wait_for(drain(books, ports, QUEUE), 60)
        await asyncio.to_thread(standby.wait_role, "standby")  # it may have begun a moment ago: too early for a signal
        for broker in (standby, master):
            assert await asyncio.to_thread(broker.terminate) == 0
    finally:
        for broker in brokers:
            broker.stop()
    report = check(str(data))
    print(f"{len(books.stored)} stored, {len(books.acknowledged)} acknowledged, {books.reconnects} reconnects")
    assert books.problems() == []
    assert report.is_clean, report.problems
    assert len(books.stored) > 50 * ROUNDS
