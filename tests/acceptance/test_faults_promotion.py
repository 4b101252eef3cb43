"""Brokers that are stopped between two steps of a promotion, and continued after another broker became master.

When they are stopped, they have the lock; the fence may exist while the header is not written. Clients work all the
time.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.zombie_clients import Gate, Ledger, consume, drain, produce
from tests.support.acceptance.zombie_locks import FileLock, GrantedLock, Lock, SqliteLease
from tests.support.acceptance.zombie_pair import Pair, fence_of, journal_files, stop_all_threads
from tests.support.acceptance.zombie_shim import Verb
from tests.support.acceptance.zombie_shim import library as library
from tests.support.prove import IS_PROOF, SEED, rounds

pytestmark = pytest.mark.fence

ROUNDS = rounds(1, 100) if IS_PROOF else 1
QUEUE = "busy"
# Before the fence is put up; before the last file is synced that others wrote, or the header; before it is written.
POINTS = [Verb.LINK, Verb.SYNC, Verb.WRITE]
SECONDS_MAX = 30.0

LOCKS: dict[str, Callable[[Path], Lock]] = {
    "shared-file": lambda place: FileLock(place / "data"),
    "granted": lambda place: GrantedLock(place, "a"),
    "lease on SQLite": SqliteLease,
}


@pytest.mark.prove
@pytest.mark.service
@pytest.mark.timeout(120 + 30 * ROUNDS)
@pytest.mark.parametrize("kind", LOCKS if IS_PROOF else ["shared-file"])
async def test_zombies_that_were_becoming_master_harm_nobody(tmp_path: Path, library: Path, kind: str) -> None:
    rounds = -(-ROUNDS // len(LOCKS))
    print(f"seed {SEED}, {rounds} rounds of {kind} (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    pair = Pair(tmp_path / "data", LOCKS[kind](tmp_path), library)
    ledger, gate = Ledger(), Gate()
    try:
        await asyncio.to_thread(pair.start)
        clients = [
            asyncio.create_task(produce(ledger, pair.ports, QUEUE, gate)),
            asyncio.create_task(consume(ledger, pair.ports, QUEUE, gate)),
        ]
        for number in range(rounds):
            await asyncio.to_thread(one_round, pair, POINTS[number % len(POINTS)], dice)
            gate.close()
            assert await asyncio.to_thread(pair.check) == []
            gate.open()
            assert not any(client.done() for client in clients), [client for client in clients if client.done()]
        gate.end()
        await asyncio.wait_for(asyncio.gather(*clients), 60)
        await drain(ledger, pair.ports, QUEUE)
        for broker in reversed(await asyncio.to_thread(pair.settled)):
            assert await asyncio.to_thread(broker.terminate) == 0
    finally:
        pair.stop()
    print(f"{ledger.receipts} receipts, {ledger.reconnects} reconnects")
    assert ledger.problems() == []
    report = check(str(pair.data))
    assert report.is_clean, report.problems


def one_round(pair: Pair, point: Verb, dice: random.Random) -> None:
    """The standby falls asleep when the master is dead; who was killed comes back and rules; then the sleeper does."""
    other, zombie = pair.settled()
    pid, shim = zombie.pid, pair.shims[zombie.name]
    before = shim.held
    shim.hold(point)
    pair.lock.give_back(other.name, zombie.name)
    other.kill()
    wait_until(lambda: shim.held > before, f"{zombie.name} promotes itself, to {point!r}", SECONDS_MAX)
    stop_all_threads(zombie, pair.lock.directory)
    shim.let_go()
    pair.lock.give(zombie.name, other.name)
    other.start().wait_role("master", SECONDS_MAX)
    fence = fence_of(pair.data, other.name)
    if fence is not None and dice.random() < 0.5:
        wait_until(lambda: journal_files(pair.data)[0] > fence.file, "the fence and all before it are reclaimed")
    zombie.kill(signal.SIGCONT)
    zombie.wait_role("standby")
    assert zombie.pid == pid, "it stands by in the same process"
    pair.lock.give_back(other.name, zombie.name)
    other.kill()
    zombie.wait_role("master")
    other.start()
