"""Masters that fall asleep, or are cut off, while another one takes over; and then wake up.

Real processes, clients at work, a seeded mix of what can happen. After each round: the zombie said no word too much,
what it wrote late lies behind the seal, it stands by in the same process, the store checks clean; it becomes master
again and all that either of them confirmed is there.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from broker_process import BrokerProcess, wait_until
from zombie_clients import Gate, Ledger, consume, drain, produce
from zombie_faults import (
    CutOff,
    CutOffFromAll,
    Fault,
    GivenToBoth,
    GivenTwice,
    GivenTwiceByClock,
    HungJournal,
    HungJournalGivenTwice,
    HungLoop,
    Scene,
    Stopped,
    StoppedHandingOver,
    StoppedWithClocks,
)
from zombie_locks import FileLock, GrantedLock, Lock, SqliteLease
from zombie_pair import LastFile, Pair, fence_of, journal_files
from zombie_servers import Servers
from zombie_shim import built, compiler
from zombie_witness import Witness

from store.check import check

ROUNDS = int(os.environ.get("TANDEMMQ_PROVE_ZOMBIES", "4"))
IS_PROOF = "TANDEMMQ_PROVE_ZOMBIES" in os.environ
SEED = int(os.environ.get("TANDEMMQ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
# A part of a kind's name: only such rounds.
ONLY = os.environ.get("TANDEMMQ_PROVE_ZOMBIES_OF", "")
# Started in a moment: the sample that every run takes.
WITHOUT_SERVERS = ["shared-file", "granted", "lease on SQLite"]
QUEUE = "busy"
# A successor whose files are to be reclaimed has rotated at least so often.
ROTATIONS_MIN = 3
RECLAIM_SECONDS_MAX = 30.0
TAKE_OVER_SECONDS_MAX = 40.0

LOCKS: dict[str, Callable[[Path, Servers], Lock]] = {
    "shared-file": lambda place, servers: FileLock(place / "data"),
    "granted": lambda place, servers: GrantedLock(place, "a"),
    "lease on SQLite": lambda place, servers: SqliteLease(place),
    "lease on PostgreSQL": lambda place, servers: servers.lock("lease on PostgreSQL", "lease-database", "postgres"),
    "lease on MariaDB": lambda place, servers: servers.lock("lease on MariaDB", "lease-database", "mariadb"),
    "database on PostgreSQL": lambda place, servers: servers.lock("database on PostgreSQL", "database", "postgres"),
}
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
}


@dataclass
class Row:
    """What was seen in the rounds of one kind."""

    rounds: int = 0
    reclaimed: int = 0
    receipts: int = 0
    lost: int = 0
    undone: int = 0
    stale: int = 0
    late_bytes: int = 0
    late_rounds: int = 0


@dataclass
class Table:
    rows: dict[str, Row] = field(default_factory=dict)

    def __str__(self) -> str:
        head = f"{'kind':<40}{'rounds':>8}{'reclaimed':>11}{'receipts':>10}{'lost':>6}{'undone':>8}{'stale':>7}"
        lines = [head + f"{'late bytes':>12}{'in rounds':>11}"]
        total = Row()
        for kind, row in [*sorted(self.rows.items()), ("all", total)]:
            lines.append(
                f"{kind:<40}{row.rounds:>8}{row.reclaimed:>11}{row.receipts:>10}{row.lost:>6}{row.undone:>8}"
                f"{row.stale:>7}{row.late_bytes:>12}{row.late_rounds:>11}"
            )
            for name, value in vars(row).items():
                setattr(total, name, getattr(total, name) + value)
        return "\n".join(lines)


@dataclass(frozen=True)
class Plan:
    lock: str
    fault: type[Fault]
    is_reclaimed: bool

    @property
    def kind(self) -> str:
        return f"{self.lock}: {self.fault.name}"


def plan(rounds: int, locks: list[str], dice: random.Random) -> list[Plan]:
    """In half of them the successor reclaims before the zombie wakes; rounds of one lock come together."""
    kinds = [(lock, fault) for lock in locks for fault in FAULTS[lock] if ONLY in f"{lock}: {fault.name}"]
    sleepy = [(lock, fault) for lock, fault in kinds if fault.oversleeps]
    planned = []
    for number in range(rounds):
        lock, fault = dice.choice(sleepy if number % 2 else kinds)
        planned.append(Plan(lock, fault, is_reclaimed=bool(number % 2)))
    return sorted(planned, key=lambda each: list(FAULTS).index(each.lock))


@pytest.fixture(scope="module")
def library(require_service: Callable[[object, str], None]) -> Iterator[Path]:
    require_service(compiler(), "no C compiler (cc, gcc, clang)")
    with built() as made:
        yield made


@pytest.fixture(scope="module")
def servers(library: Path, require_service: Callable[[object, str], None]) -> Iterator[Servers]:
    made = Servers(library, require_service)
    yield made
    made.remove()


@pytest.mark.prove
@pytest.mark.service
@pytest.mark.timeout(180 + 60 * ROUNDS)
async def test_zombies_harm_nobody(tmp_path: Path, library: Path, servers: Servers) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds (TANDEMMQ_SEED, TANDEMMQ_PROVE_ZOMBIES)")
    dice = random.Random(SEED)
    planned = plan(ROUNDS, list(LOCKS) if IS_PROOF else WITHOUT_SERVERS, dice)
    table = Table()
    try:
        for lock in FAULTS:
            mine = [each for each in planned if each.lock == lock]
            if mine:
                place = tmp_path / lock
                place.mkdir()
                await several_rounds(place, library, servers, mine, dice, table)
    finally:
        print(table)
    assert table.rows


async def several_rounds(
    place: Path, library: Path, servers: Servers, rounds: list[Plan], dice: random.Random, table: Table
) -> None:
    """One pair, one lock; clients that work through all rounds."""
    pair = Pair(place / "data", LOCKS[rounds[0].lock](place, servers), library)
    ledger, gate = Ledger(), Gate()
    try:
        await asyncio.to_thread(pair.start)
        clients = [
            asyncio.create_task(produce(ledger, pair.ports, QUEUE, gate)),
            asyncio.create_task(consume(ledger, pair.ports, QUEUE, gate)),
        ]
        for number, each in enumerate(rounds):
            row = table.rows.setdefault(each.kind, Row())
            before = ledger.receipts
            print(f"round {number} of {rounds[0].lock}: {each.kind}{', reclaimed' if each.is_reclaimed else ''}")
            await one_round(pair, ledger, gate, each, f"w{number}", dice, row)
            row.rounds += 1
            row.receipts += ledger.receipts - before
            assert not any(client.done() for client in clients), [client for client in clients if client.done()]
            row.lost += len(ledger.missing(f"w{number}"))
            row.undone += len(ledger.undone)
            assert ledger.problems(f"w{number}") == []
        gate.end()
        await asyncio.wait_for(asyncio.gather(*clients), 60)
        await drain(ledger, pair.ports, QUEUE)
        for broker in reversed(await asyncio.to_thread(pair.settled)):
            assert await asyncio.to_thread(broker.terminate) == 0
    finally:
        pair.stop()
    assert ledger.problems() == []
    report = check(str(pair.data))
    assert report.is_clean, report.problems


async def one_round(
    pair: Pair, ledger: Ledger, gate: Gate, each: Plan, name: str, dice: random.Random, row: Row
) -> None:
    zombie, successor = await asyncio.to_thread(pair.settled)
    scene, fault, pid = Scene(pair, zombie, successor, dice), each.fault(), zombie.pid
    promotions = promotions_of(zombie)
    witness = Witness(ledger, zombie.stomp, name)
    await witness.open()
    await asyncio.sleep(dice.uniform(0.0, 0.3))

    clock = PhaseClock()
    await asyncio.to_thread(fault.strike, scene)
    clock.lap("strike")
    last = LastFile(zombie) if fault.halts else None
    await asyncio.to_thread(successor.wait_role, "master", TAKE_OVER_SECONDS_MAX)
    is_silent = fault.is_silent_with(pair.lock)
    witness.succeeded(is_silent=is_silent)
    clock.lap("take-over")
    fence = fence_of(pair.data, successor.name)
    assert last is None or fence is None or last.number + 1 == fence.file
    if each.is_reclaimed:
        await drain(ledger, pair.ports, witness.queue)
        if fence is not None:
            await asyncio.to_thread(wait_until_reclaimed, pair, fence.file)
        row.reclaimed += 1
    clock.lap("reclaim")
    await asyncio.to_thread(fault.wake, scene)
    await witness.finish()
    clock.lap("witness")
    if fault.may_win_again:
        await asyncio.to_thread(wait_until_demoted, zombie, promotions)
    else:
        await asyncio.to_thread(zombie.wait_role, "standby")
    assert zombie.pid == pid, "it stands by in the same process"
    clock.lap("stand by")
    assert not (is_silent and witness.stale_deliveries), "a deposed master delivers nothing"
    row.stale += len(witness.stale_deliveries)
    if last is not None:
        late_bytes = 0 if fence is None else last.late_bytes(fence.end_before)
        row.late_bytes += late_bytes
        row.late_rounds += late_bytes > 0
        last.close()

    await check_now(pair, gate)
    clock.lap("check")
    await fail_back(pair, zombie, successor, dice)
    clock.lap("fail back")
    await drain(ledger, pair.ports, witness.queue)
    clock.lap("drain")
    await check_now(pair, gate)
    clock.lap("check")
    print("   ", clock)


def wait_until_reclaimed(pair: Pair, fence: int) -> None:
    """The file that fenced the zombie off is gone, with all before it, the zombie's last among them."""

    def are_gone() -> bool:
        files = journal_files(pair.data)
        return bool(files) and files[0] > fence and files[-1] > fence + ROTATIONS_MIN

    wait_until(are_gone, f"db-{fence}.log and all before it are reclaimed", RECLAIM_SECONDS_MAX)


async def check_now(pair: Pair, gate: Gate) -> None:
    gate.close()
    assert await asyncio.to_thread(pair.check) == []
    gate.open()


class PhaseClock:
    """How long each part of a round took."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._laps: list[str] = []

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps.append(f"{name} {now - self._last:.1f} s")
        self._last = now

    def __str__(self) -> str:
        return ", ".join(self._laps)


def promotions_of(broker: BrokerProcess) -> int:
    return int((broker.status() or {}).get("counts", {}).get("promotions_total", 0))


def wait_until_demoted(zombie: BrokerProcess, promotions: int) -> None:
    """It stands by, or did, and became master anew."""

    def is_or_was_standby() -> bool:
        return (zombie.status() or {}).get("role") == "standby" or promotions_of(zombie) > promotions

    wait_until(is_or_was_standby, f"{zombie.name} stands by, or did")


async def fail_back(pair: Pair, zombie: BrokerProcess, successor: BrokerProcess, dice: random.Random) -> None:
    """The zombie rules again, and its successor is started anew to stand by."""
    pair.lock.give_back(successor.name, zombie.name)
    ends: list[Callable[[], object]] = [successor.kill, successor.terminate]
    await asyncio.to_thread(dice.choice(ends))
    await asyncio.to_thread(zombie.wait_role, "master")
    pair.set_clocks_right()  # with a lease, who has the later clock may have it at once
    successor.start()
    await asyncio.to_thread(pair.settled)
