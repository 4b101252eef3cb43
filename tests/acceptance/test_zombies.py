"""Masters that are suspended, or disconnected, while another broker takes over, and then resume.

The test runs real processes, clients under load, and a seeded mix of faults. After each round, the former master sent
no wrong answer, its late writes are after the sealed end, it is a standby in the same process, and the store is clean.
Then it becomes master again, and all operations that either broker confirmed are there.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.acceptance.zombie_clients import Gate, Ledger, consume, drain, produce
from tests.support.acceptance.zombie_faults import (
    CutOff,
    CutOffFromAll,
    Fault,
    GivenToBoth,
    GivenTwice,
    GivenTwiceByClock,
    HungJournal,
    HungJournalGivenTwice,
    HungLoop,
    Stopped,
    StoppedHandingOver,
    StoppedWithClocks,
)
from tests.support.acceptance.zombie_locks import FileLock, GrantedLock, Lock, SqliteLease
from tests.support.acceptance.zombie_pair import Pair
from tests.support.acceptance.zombie_rounds import Plan, Round, Row, Table
from tests.support.acceptance.zombie_servers import Servers
from tests.support.acceptance.zombie_shim import library as library
from tests.support.prove import IS_PROOF, SEED, rounds

pytestmark = pytest.mark.fence

ROUNDS = rounds(2, 100)
# A part of a kind's name: only such rounds.
ONLY = os.environ.get("TANDEMMQ_ZOMBIES_OF", "")
QUEUE = "busy"
# So many rounds have seen what there is to be seen.
PROOF_ROUNDS_MIN = 20

LOCKS: dict[str, Callable[[Path, Servers], Lock]] = {
    "shared-file": lambda place, servers: FileLock(place / "data"),
    "shared-file, several stores": lambda place, servers: FileLock(place / "data"),
    "granted": lambda place, servers: GrantedLock(place, "a"),
    "lease on SQLite": lambda place, servers: SqliteLease(place),
    "lease on PostgreSQL": lambda place, servers: servers.database("lease-database", "postgres"),
    "lease on MariaDB": lambda place, servers: servers.database("lease-database", "mariadb"),
    "database on PostgreSQL": lambda place, servers: servers.database("database", "postgres"),
    "ZooKeeper": lambda place, servers: servers.zookeeper(),
}
# Started in a moment: the sample that every run takes.
WITHOUT_SERVERS = ["shared-file", "granted", "lease on SQLite"]
SEVERAL_STORES = "several stores"
ON_A_SERVER: list[type[Fault]] = [
    Stopped,
    Stopped,
    StoppedWithClocks,
    GivenTwiceByClock,
    HungJournal,
    HungLoop,
    CutOff,
    CutOffFromAll,
]
FAULTS: dict[str, list[type[Fault]]] = {
    "shared-file": [
        Stopped,
        StoppedHandingOver,
        StoppedWithClocks,
        GivenTwice,
        HungJournal,
        HungJournalGivenTwice,
        HungLoop,
    ],
    "shared-file, several stores": [Stopped, GivenTwice, HungJournal],
    "granted": [Stopped, StoppedWithClocks, GivenTwice, GivenToBoth, HungJournalGivenTwice],
    "lease on SQLite": [
        Stopped,
        Stopped,
        StoppedHandingOver,
        StoppedWithClocks,
        GivenTwiceByClock,
        HungJournal,
        HungLoop,
    ],
    "lease on PostgreSQL": ON_A_SERVER,
    "lease on MariaDB": ON_A_SERVER,
    "database on PostgreSQL": [Stopped, CutOff, CutOffFromAll],
    "ZooKeeper": [Stopped, StoppedWithClocks, HungLoop, CutOff, CutOffFromAll],
}


def plan(rounds: int, locks: list[str], dice: random.Random) -> list[Plan]:
    """In half of them the successor reclaims before the zombie wakes; rounds of one lock come together."""
    kinds = [(lock, fault) for lock in locks for fault in FAULTS[lock] if ONLY in f"{lock}: {fault.name}"]
    sleepy = [(lock, fault) for lock, fault in kinds if fault.oversleeps and SEVERAL_STORES not in lock]
    planned = []
    for number in range(rounds):
        is_reclaimed = bool(number % 2 and sleepy)
        lock, fault = dice.choice(sleepy if is_reclaimed else kinds)
        planned.append(Plan(lock, fault, is_reclaimed))
    return sorted(planned, key=lambda each: list(FAULTS).index(each.lock))


@pytest.fixture(scope="module")
def servers(library: Path, require_service: Callable[[object, str], None]) -> Iterator[Servers]:
    made = Servers(library, require_service)
    yield made
    made.remove()


@pytest.mark.promise("confirmed-survives", "one-master-counts")
@pytest.mark.thorough
@pytest.mark.prove
@pytest.mark.service
@pytest.mark.timeout(180 + 60 * ROUNDS)
async def test_zombies_harm_nobody(tmp_path: Path, library: Path, servers: Servers) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    planned = plan(ROUNDS, list(LOCKS) if IS_PROOF else WITHOUT_SERVERS, dice)
    table = Table()
    try:
        for lock in FAULTS:
            mine = [each for each in planned if each.lock == lock]
            if mine:
                place = tmp_path / lock
                place.mkdir()
                pair = Pair(place / "data", LOCKS[lock](place, servers), library, lock.endswith(SEVERAL_STORES))
                await several_rounds(pair, mine, dice, table)
    finally:
        print(table)
    if ROUNDS >= PROOF_ROUNDS_MIN and not ONLY:
        assert sum(row.reclaimed for row in table.rows.values()) >= ROUNDS // 2
        assert sum(row.late_rounds for row in table.rows.values()) > 0, "no zombie wrote late: that proves nothing"


async def several_rounds(pair: Pair, rounds: list[Plan], dice: random.Random, table: Table) -> None:
    """Run a pair with one lock, and clients that work through all rounds."""
    ledger, gate = Ledger(), Gate()
    try:
        await asyncio.to_thread(pair.start)
        clients = [
            asyncio.create_task(produce(ledger, pair.ports, QUEUE, gate)),
            asyncio.create_task(consume(ledger, pair.ports, QUEUE, gate)),
        ]
        for number, each in enumerate(rounds):
            row = table.rows.setdefault(each.kind, Row())
            print(f"{each.kind}, round {number + 1} of {len(rounds)}{', reclaimed' if each.is_reclaimed else ''}")
            await noted_round(Round(pair, ledger, gate, each, f"w{number}", dice), ledger, f"w{number}", row)
            assert not any(client.done() for client in clients), [client for client in clients if client.done()]
        gate.end()
        await asyncio.wait_for(asyncio.gather(*clients), 60)
        await drain(ledger, pair.ports, QUEUE)
        for broker in reversed(await asyncio.to_thread(pair.settled)):
            assert await asyncio.to_thread(broker.terminate) == 0
    finally:
        pair.stop()
    assert ledger.problems() == []
    assert pair.check_stopped() == []


async def noted_round(each: Round, ledger: Ledger, queue: str, row: Row) -> None:
    receipts = ledger.receipts
    await each.run(row)
    row.rounds += 1
    row.receipts += ledger.receipts - receipts
    row.lost += len(ledger.missing(queue))
    row.undone += len(ledger.undone)
    assert ledger.problems(queue) == []
