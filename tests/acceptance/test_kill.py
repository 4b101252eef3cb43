"""The end of masters at random moments under load: nothing with a receipt is lost, nothing acknowledged returns.

There are two brokers, or three. The test kills the master, a standby, or a broker that becomes master. Some masters are
suspended, some hand over, and some lose their lock file.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from tandemmq.store.tools.check import check
from tests.support.acceptance.kill_rounds import OF_A_PAIR, OF_A_TRIO, Group, Round, chosen, play
from tests.support.acceptance.load import Books, consume, drain, produce
from tests.support.prove import IS_THOROUGH, SEED, rounds

ROUNDS = rounds(4 if IS_THOROUGH else 2, 120)
QUEUE = "/queue/kills"
# A client whose broker is silent for so long goes to the next: one that sleeps does not hang up.
PATIENCE_SECONDS = 2.0
STORED_IN_A_ROUND_MIN = 50
# Small files and frequent checkpoints, so that a kill meets every kind of moment.
OPTIONS = (
    "--set", "store.journal_max_file_length=1mb",
    "--set", "store.checkpoint_records=500",
    "--set", "store.checkpoint_interval=200ms",
)  # fmt: skip


@pytest.mark.prove
@pytest.mark.timeout(240 + 60 * ROUNDS)
@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        pytest.param(
            "ab", OF_A_PAIR, id="pair", marks=pytest.mark.promise("confirmed-survives", "acknowledged-stays-gone")
        ),
        pytest.param("abc", OF_A_TRIO, id="trio"),
    ],
)
async def test_kills_under_load_lose_nothing_and_undo_nothing(
    tmp_path: Path, names: str, kinds: dict[str, tuple[Round, int]]
) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    data = tmp_path / "data"
    group = Group(data, names, *OPTIONS)
    ports = group.ports
    books = Books()
    stop_sending, stop_taking = asyncio.Event(), asyncio.Event()
    try:
        await asyncio.to_thread(group.start)
        clients = [
            *(
                asyncio.create_task(produce(books, ports, QUEUE, f"p{n}", 20, stop_sending, PATIENCE_SECONDS))
                for n in range(2)
            ),
            *(asyncio.create_task(consume(books, ports, QUEUE, stop_taking)) for _ in range(2)),
        ]
        for name in chosen(kinds, ROUNDS, dice):
            await asyncio.sleep(dice.uniform(0.05, 1.2))
            await asyncio.to_thread(play, group, kinds, name, dice)
        await asyncio.sleep(0.5)
        stop_sending.set()
        stop_taking.set()
        await asyncio.wait_for(asyncio.gather(*clients), 60)
        await asyncio.wait_for(drain(books, ports, QUEUE), 60)
        master, standbys = await asyncio.to_thread(group.settled)
        for broker in (*standbys, master):
            assert await asyncio.to_thread(broker.terminate) == 0
    finally:
        group.stop()
    report = check(str(data))
    print(f"{names}: rounds: {in_words(group.rounds)}")
    print(f"{names}: {group.killed} kill -9: {in_words(group.kills)}; {group.headless} left a fence without header")
    lost = len(books.stored - set(books.received))
    print(
        f"{names}: {len(books.stored)} stored, {len(books.acknowledged)} acknowledged, {lost} lost, "
        f"{len(books.undone)} undone, {books.reconnects} reconnects"
    )
    assert books.problems() == []
    assert report.is_clean, report.problems
    assert len(books.stored) > STORED_IN_A_ROUND_MIN * ROUNDS


def in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} x {what}" for what, count in counts.most_common())
