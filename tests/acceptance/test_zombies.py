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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

from broker_process import BrokerProcess, wait_until
from zombie_clients import Gate, Ledger, consume, drain, produce
from zombie_faults import Fault, GivenTwice, HungVolume, Scene, Stopped, StoppedWithClocks
from zombie_pair import FileLock, GrantedLock, LastFile, Lock, Pair, fence_of, journal_files
from zombie_shim import build, compiler
from zombie_witness import Witness

from store.check import check

ROUNDS = int(os.environ.get("TANDEMMQ_PROVE_ZOMBIES", "4"))
SEED = int(os.environ.get("TANDEMMQ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
QUEUE = "busy"
# A successor whose files are to be reclaimed has rotated at least so often.
ROTATIONS_MIN = 3
RECLAIM_SECONDS_MAX = 30.0

MakeLock = Callable[[Path], Lock]
LOCKS: dict[str, MakeLock] = {
    "shared-file": lambda place: FileLock(place / "data"),
    "granted": lambda place: GrantedLock(place, "a"),
}
FAULTS: dict[str, list[type[Fault]]] = {
    "shared-file": [Stopped, StoppedWithClocks, GivenTwice, HungVolume],
    "granted": [Stopped, StoppedWithClocks, GivenTwice, HungVolume],
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


def plan(rounds: int, dice: random.Random) -> list[Plan]:
    """In half of them the successor reclaims before the zombie wakes; rounds of one lock come together."""
    kinds = [(lock, fault) for lock, faults in FAULTS.items() for fault in faults]
    sleepy = [(lock, fault) for lock, fault in kinds if fault.sleeps]
    planned = []
    for number in range(rounds):
        lock, fault = dice.choice(sleepy if number % 2 else kinds)
        planned.append(Plan(lock, fault, is_reclaimed=bool(number % 2)))
    return sorted(planned, key=lambda each: list(FAULTS).index(each.lock))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, require_service: Callable[[object, str], None]) -> Path:
    require_service(compiler(), "no C compiler (cc, gcc, clang)")
    return build(tmp_path_factory.mktemp("shim"))


@pytest.mark.prove
@pytest.mark.service
@pytest.mark.timeout(180 + 60 * ROUNDS)
async def test_zombies_harm_nobody(tmp_path: Path, library: Path) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds (TANDEMMQ_SEED, TANDEMMQ_PROVE_ZOMBIES)")
    dice = random.Random(SEED)
    planned = plan(ROUNDS, dice)
    table = Table()
    try:
        for lock in FAULTS:
            mine = [each for each in planned if each.lock == lock]
            if mine:
                place = tmp_path / lock
                place.mkdir()
                await several_rounds(place, library, mine, dice, table)
    finally:
        print(table)
    assert table.rows


async def several_rounds(place: Path, library: Path, rounds: list[Plan], dice: random.Random, table: Table) -> None:
    """One pair, one lock; clients that work through all rounds."""
    pair = Pair(place / "data", LOCKS[rounds[0].lock](place), library)
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
    witness = Witness(ledger, zombie.stomp, name)
    await witness.open()
    await asyncio.sleep(dice.uniform(0.0, 0.3))

    await asyncio.to_thread(fault.strike, scene)
    last = LastFile(zombie) if fault.halts else None
    await asyncio.to_thread(successor.wait_role, "master")
    witness.succeeded()
    fence = fence_of(pair.data, successor.name)
    assert last is None or last.number + 1 == fence.file
    if each.is_reclaimed:
        await drain(ledger, pair.ports, witness.queue)
        await asyncio.to_thread(wait_until_reclaimed, pair, fence.file)
        row.reclaimed += 1
    await asyncio.to_thread(fault.wake, scene)
    await witness.finish()
    await asyncio.to_thread(zombie.wait_role, "standby")
    assert zombie.pid == pid, "it stands by in the same process"
    row.stale += len(witness.stale_deliveries)
    if last is not None:
        late_bytes = last.late_bytes(fence.end_before)
        row.late_bytes += late_bytes
        row.late_rounds += late_bytes > 0
        last.close()

    await check_now(pair, gate)
    await fail_back(pair, zombie, successor, dice)
    await drain(ledger, pair.ports, witness.queue)
    await check_now(pair, gate)
    for shim in pair.shims.values():
        shim.step_wall_clock(0)


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


async def fail_back(pair: Pair, zombie: BrokerProcess, successor: BrokerProcess, dice: random.Random) -> None:
    """The zombie rules again, and its successor is started anew to stand by."""
    pair.lock.give(successor.name, zombie.name) if pair.lock.name == "granted" else None
    await asyncio.to_thread(dice.choice([successor.kill, successor.terminate]))
    await asyncio.to_thread(zombie.wait_role, "master")
    await asyncio.to_thread(successor.start().wait_role, "standby")
