"""A set of brokers, each with a separate store: kills, suspends, lost disks, a split network, a lost ZooKeeper.

The test runs real processes, a real ZooKeeper, clients under load, and a seeded mix of faults. After each round one
node is master, and all others follow. Then all directories have no problem and the same journal, byte for byte. At the
end all confirmed operations are there, in order, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.acceptance.bridge import Bridge
from tests.support.acceptance.kill_rounds import chosen
from tests.support.acceptance.replicated_fixtures import MakeZooKeepers
from tests.support.acceptance.replicated_fixtures import network as network
from tests.support.acceptance.replicated_fixtures import zookeepers as zookeepers
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.acceptance.set_rounds import ANYWHERE, ON_A_BRIDGE, ON_VOLUMES, Played
from tests.support.acceptance.zombie_clients import Gate, Ledger, consume, drain, produce
from tests.support.prove import IS_PROOF, SEED, rounds

pytestmark = [pytest.mark.service, pytest.mark.promise("quorum-keeps-confirmed")]

ROUNDS = rounds(4, 200)
# A part of a kind's name: only such rounds.
ONLY = os.environ.get("TANDEMMQ_ROUNDS_OF", "")
BUSY, KEPT = "busy", "kept"
# Clients work so long before each round, at most.
BETWEEN_SECONDS_MAX = 1.0
# The last round's clients get so many receipts when all is well again.
RECEIPTS_MIN = 20
# Longer than any of it takes on a machine that has other work.
WAIT_SECONDS_MAX = 180
VOLUME_BYTES = 256 << 20


@pytest.fixture
def volumes(tmp_path: Path, require_program: Callable[[object, str], None]) -> Iterator[dict[str, Path]]:
    """The directory of each node, on a separate volume; without separate volumes if there are few rounds."""
    mounted = [tmp_path / f"volume-{number}" for number in range(5 if IS_PROOF else 0)]
    with ExitStack() as ending:
        for volume in mounted:
            volume.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(volume)]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            require_program(made.returncode == 0, f"tmpfs cannot be mounted here: {made.stderr.strip()}")
            ending.callback(subprocess.run, ["umount", str(volume)], check=True)
        yield {f"n{number}": volume / "data" for number, volume in enumerate(mounted)}


@pytest.mark.prove
@pytest.mark.timeout(240 + 60 * ROUNDS)
@pytest.mark.parametrize("replicas", [3, 5])
async def test_what_is_confirmed_stays_whatever_happens(
    tmp_path: Path,
    network: Bridge | None,
    volumes: dict[str, Path],
    zookeepers: MakeZooKeepers,
    replicas: int,
) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED + replicas)
    servers = await asyncio.to_thread(zookeepers, 3 if replicas == 5 and IS_PROOF else 1)
    whole = SetOfBrokers(tmp_path, replicas, zookeepers=servers, bridge=network, directories=volumes)
    kinds = ANYWHERE if network is None else ANYWHERE | ON_A_BRIDGE
    kinds = kinds | ON_VOLUMES if volumes else kinds
    kinds = {name: kind for name, kind in kinds.items() if ONLY in name}
    ledger, gate, kept, played = Ledger(), Gate(), Gate(), Played()
    clients: list[asyncio.Task[None]] = []
    try:
        await asyncio.to_thread(whole.start)
        clients = [
            asyncio.create_task(produce(ledger, whole.addresses, BUSY, gate)),
            asyncio.create_task(consume(ledger, whole.addresses, BUSY, gate)),
            asyncio.create_task(produce(ledger, whole.addresses, KEPT, kept)),
        ]
        for number, name in enumerate(chosen(kinds, ROUNDS, dice)):
            print(f"{number}: {name}", flush=True)
            await asyncio.sleep(dice.uniform(0.05, BETWEEN_SECONDS_MAX))
            await asyncio.to_thread(played.play, whole, kinds, name, dice)
            kept.close()
            await _goes_on(ledger, clients)
            gate.close()
            assert await asyncio.to_thread(whole.problems) == []
            assert ledger.problems("nothing was drained") == []
            gate.open()
        gate.end()
        kept.end()
        await asyncio.wait_for(asyncio.gather(*clients), WAIT_SECONDS_MAX)
        for queue in (BUSY, KEPT):
            await asyncio.wait_for(drain(ledger, whole.addresses, queue), WAIT_SECONDS_MAX)
        problems = await asyncio.to_thread(whole.problems)
        for member in await asyncio.to_thread(lambda: whole.settled()[1] + [whole.settled()[0]]):
            assert await asyncio.to_thread(member.terminate) == 0
    finally:
        for client in clients:
            client.cancel()
        await asyncio.to_thread(whole.stop)
    print(f"{replicas} nodes: {', '.join(f'{count} x {name}' for name, count in sorted(played.rounds.items()))}")
    print(
        f"{replicas} nodes: {len(ledger.confirmed)} confirmed, {len(ledger.missing())} lost, "
        f"{len(ledger.acknowledged)} acknowledged, {len(ledger.undone)} undone, {ledger.reconnects} reconnects"
    )
    assert ledger.problems() == []
    assert problems == []


async def _goes_on(ledger: Ledger, clients: list[asyncio.Task[None]]) -> None:
    """Check that the present master confirms more messages."""
    wanted = ledger.receipts + RECEIPTS_MIN
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while ledger.receipts < wanted:
            for client in clients:
                if client.done():
                    client.result()  # raises what ended it
            await asyncio.sleep(0.02)
