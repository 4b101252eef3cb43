"""One round: a master is stopped, another broker becomes master, the first continues, and is master again in the
end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.zombie_clients import Gate, Ledger, drain
from tests.support.acceptance.zombie_faults import Fault, Scene
from tests.support.acceptance.zombie_pair import Fence, LastFile, Pair, fence_of, journal_files
from tests.support.acceptance.zombie_witness import Witness

# Minimum number of rotations of a successor whose files are to be reclaimed.
ROTATIONS_MIN = 3
RECLAIM_SECONDS_MAX = 30.0
TAKE_OVER_SECONDS_MAX = 40.0
# State of the master's work when the fault starts.
HEAD_START_SECONDS_MAX = 0.3


@dataclass
class Row:
    """Results of the rounds of one kind."""

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
        head = f"{'kind':<52}{'rounds':>8}{'reclaimed':>11}{'receipts':>10}{'lost':>6}{'undone':>8}{'stale':>7}"
        lines = [head + f"{'late bytes':>12}{'in rounds':>11}"]
        total = Row()
        for kind, row in [*sorted(self.rows.items()), ("all", total)]:
            lines.append(
                f"{kind:<52}{row.rounds:>8}{row.reclaimed:>11}{row.receipts:>10}{row.lost:>6}{row.undone:>8}"
                f"{row.stale:>7}{row.late_bytes:>12}{row.late_rounds:>11}"
            )
            for name, value in vars(row).items():
                setattr(total, name, getattr(total, name) + value)
        return "\n".join(lines)


@dataclass(frozen=True)
class Plan:
    """``is_reclaimed``: the successor reclaims the zombie's files, and those of the fence, before the zombie
    continues."""

    lock: str
    fault: type[Fault]
    is_reclaimed: bool

    @property
    def kind(self) -> str:
        return f"{self.lock}: {self.fault.name}"


class Laps:
    """Duration of each part of a round."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._laps: list[str] = []

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps.append(f"{name} {now - self._last:.1f} s")
        self._last = now

    def __str__(self) -> str:
        return ", ".join(self._laps)


class Round:
    """Call ``run`` once. It records confirmations in ``ledger``, and other results in ``row``."""

    def __init__(self, pair: Pair, ledger: Ledger, gate: Gate, plan: Plan, queue: str, dice: random.Random) -> None:
        self._pair = pair
        self._ledger = ledger
        self._gate = gate
        self._plan = plan
        self._queue = queue
        self._dice = dice
        self._fault = plan.fault()
        self._is_silent = self._fault.is_silent_with(pair.lock)

    async def run(self, row: Row) -> None:
        laps = Laps()
        zombie, successor = await asyncio.to_thread(self._pair.settled)
        promotions, pid = promotions_of(zombie), zombie.pid
        scene = Scene(self._pair, zombie, successor, self._dice)
        witness = Witness(self._ledger, zombie.stomp, self._queue)
        await witness.open()
        await asyncio.sleep(self._dice.uniform(0.0, HEAD_START_SECONDS_MAX))
        last, fence = await self._put_to_sleep(scene, witness)
        laps.lap("asleep after")
        if self._plan.is_reclaimed:
            await self._reclaim(fence)
            row.reclaimed += 1
        laps.lap("reclaimed after")
        await self._wake(scene, witness, promotions)
        assert zombie.pid == pid, "it is standby in the same process"
        row.stale += len(witness.stale_deliveries)
        if last is not None:
            late_bytes = 0 if fence is None else last.late_bytes(fence.ends[last.number])
            row.late_bytes += late_bytes
            row.late_rounds += late_bytes > 0
            last.close()
        laps.lap("awake after")
        await self._check()
        await self._fail_back(zombie, successor)
        await drain(self._ledger, self._pair.ports, self._queue)
        await self._check()
        laps.lap("back after")
        print("   ", laps)

    async def _put_to_sleep(self, scene: Scene, witness: Witness) -> tuple[LastFile | None, Fence | None]:
        """Start the fault, and wait until another broker is master. Return the file that the zombie wrote last, if
        known, and the fence after it."""
        await asyncio.to_thread(self._fault.strike, scene)
        has_one_journal = not self._pair.has_several_stores
        last = LastFile(scene.zombie) if self._fault.halts and has_one_journal else None
        await asyncio.to_thread(scene.successor.wait_role, "master", TAKE_OVER_SECONDS_MAX)
        witness.succeeded(is_silent=self._is_silent)
        fence = fence_of(self._pair.data, scene.successor.name) if has_one_journal else None
        # Two if it had created its next file, but not opened it yet.
        assert last is None or fence is None or fence.file - last.number in (1, 2)
        return last, fence

    async def _reclaim(self, fence: Fence | None) -> None:
        await drain(self._ledger, self._pair.ports, self._queue)
        if fence is not None:  # otherwise the files are reclaimed already
            await asyncio.to_thread(wait_until_reclaimed, self._pair, fence.file)

    async def _wake(self, scene: Scene, witness: Witness, promotions: int) -> None:
        await asyncio.to_thread(self._fault.wake, scene)
        await witness.finish()
        if self._fault.may_win_again:
            await asyncio.to_thread(wait_until_demoted, scene.zombie, promotions)
        else:
            await asyncio.to_thread(scene.zombie.wait_role, "standby")
        assert not (self._is_silent and witness.stale_deliveries), (
            "a stopped broker delivers nothing before it has checked the lock"
        )

    async def _fail_back(self, zombie: BrokerProcess, successor: BrokerProcess) -> None:
        """Make the zombie master again, and restart its successor."""
        pair = self._pair
        pair.lock.give_back(successor.name, zombie.name)
        ends: list[Callable[[], object]] = [successor.kill, successor.terminate]
        await asyncio.to_thread(self._dice.choice(ends))
        await asyncio.to_thread(zombie.wait_role, "master")
        pair.set_clocks_right()  # otherwise the broker with the later clock may get a lease at once
        successor.start()
        await asyncio.to_thread(pair.settled)

    async def _check(self) -> None:
        self._gate.close()
        assert await asyncio.to_thread(self._pair.check) == []
        self._gate.open()


def promotions_of(broker: BrokerProcess) -> int:
    return int((broker.status() or {}).get("counts", {}).get("promotions_total", 0))


def wait_until_demoted(zombie: BrokerProcess, promotions: int) -> None:
    """Wait until the zombie is standby, or was, and is master again."""

    def is_or_was_standby() -> bool:
        return (zombie.status() or {}).get("role") == "standby" or promotions_of(zombie) > promotions

    wait_until(is_or_was_standby, f"{zombie.name} stands by, or did")


def wait_until_reclaimed(pair: Pair, fence: int) -> None:
    """Wait until the file of the fence and all earlier files are removed, including the zombie's last file."""

    def are_gone() -> bool:
        files = journal_files(pair.data)
        return bool(files) and files[0] > fence and files[-1] > fence + ROTATIONS_MIN

    wait_until(are_gone, f"db-{fence}.log and all before it are reclaimed", RECLAIM_SECONDS_MAX)
