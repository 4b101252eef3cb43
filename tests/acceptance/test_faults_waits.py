"""A volume that hangs under a real process while it stands by, hands over, or holds a lock that lies on that volume.

tests/unit/broker/ha/test_waits.py hangs each wait of the table in docs/failures.md; here are the stories of whole
processes.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.store.tools.check import check
from tests.support.acceptance import stomp_wire
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.zombie_fixtures import library as library
from tests.support.acceptance.zombie_locks import Lock, SqliteLease
from tests.support.acceptance.zombie_pair import Pair
from tests.support.acceptance.zombie_shim import Area, Verb

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.service,
    pytest.mark.timeout(240),
    pytest.mark.promise("waits-are-bounded"),
]

QUEUE = "/queue/q"
# The longest bound of the table, and what follows on it.
SECONDS_MAX = 90.0


@pytest.fixture
def make_pair(tmp_path: Path, library: Path) -> Iterator[Callable[[Lock], Pair]]:
    made: list[Pair] = []

    def make(lock: Lock) -> Pair:
        made.append(Pair(tmp_path / "data", lock, library))
        made[0].start()
        return made[0]

    yield make
    for pair in made:
        pair.stop()
        report = check(str(pair.data))
        assert report.is_clean, report.problems


async def confirm(broker: BrokerProcess, body: str) -> None:
    await stomp_wire.confirm(broker.stomp, QUEUE, body, SECONDS_MAX)


async def bodies(broker: BrokerProcess, count: int) -> list[str]:
    return await stomp_wire.bodies(broker.stomp, QUEUE, count, SECONDS_MAX)


def ask(broker: BrokerProcess, page: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", **(broker.authorization if body is not None else {})}
    request = urllib.request.Request(f"http://127.0.0.1:{broker.admin}{page}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def is_unwell(broker: BrokerProcess, why: str) -> bool:
    code, answer = ask(broker, "/health/live")
    return code == 503 and any(why in problem for problem in answer["problems"])


def has_lock(broker: BrokerProcess) -> bool:
    return "proof_age_seconds" in (broker.status() or {}).get("lock", {})


async def test_a_standby_that_hangs_when_it_gets_the_lock_lets_it_go(
    make_pair: Callable[[Lock], Pair], tmp_path: Path
) -> None:
    pair = await asyncio.to_thread(make_pair, SqliteLease(tmp_path))
    master, standby = await asyncio.to_thread(pair.settled)
    pid, shim = standby.pid, pair.shims[standby.name]
    await confirm(master, "before")

    before = shim.held
    shim.hold(Verb.STAT | Verb.OPEN | Verb.READ)
    await asyncio.to_thread(wait_until, lambda: shim.held > before, "it hangs")
    await asyncio.to_thread(wait_until, lambda: is_unwell(standby, "the volume may hang"), "it says so")
    master.kill()
    await asyncio.to_thread(wait_until, lambda: has_lock(standby), "it gets the lock")
    await asyncio.to_thread(
        wait_until, lambda: (standby.status() or {}).get("demotions") == {"STORAGE_HUNG": 1}, "it gives up", SECONDS_MAX
    )

    await asyncio.to_thread(master.start().wait_role, "master", SECONDS_MAX)
    await confirm(master, "after")
    shim.let_go()
    await asyncio.to_thread(standby.wait_role, "standby")
    assert standby.pid == pid
    assert (await asyncio.to_thread(ask, standby, "/health/live"))[0] == 200
    assert await bodies(master, 2) == ["before", "after"]


async def test_a_handover_that_hangs_lets_the_lock_go(make_pair: Callable[[Lock], Pair], tmp_path: Path) -> None:
    pair = await asyncio.to_thread(make_pair, SqliteLease(tmp_path))
    master, standby = await asyncio.to_thread(pair.settled)
    pid, shim = master.pid, pair.shims[master.name]
    await confirm(master, "before")

    shim.hold(Verb.SYNC, Area.INDEX)
    code, answer = await asyncio.to_thread(ask, master, "/handover", b"{}")
    assert code == 409, answer
    assert "came to nothing" in answer["error"]
    await asyncio.to_thread(standby.wait_role, "master", SECONDS_MAX)
    await confirm(standby, "after")
    assert (master.status() or {})["demotions"] == {"STORAGE_HUNG": 1}
    shim.let_go()
    await asyncio.to_thread(master.wait_role, "standby")
    assert master.pid == pid
    assert await bodies(standby, 2) == ["before", "after"]
