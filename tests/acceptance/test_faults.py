"""Failures under a master: it sends nothing more, becomes a standby in the same process, and can be master again.

There is one test for each failure of a real process: calls on its volume that fail or do not return, and a loop that
hangs. ``tandemmq doctor errors`` has each trouble and its effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import random
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.acceptance import stomp_wire
from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.stomp_wire import Wire
from tests.support.acceptance.zombie_locks import FileLock, SqliteLease
from tests.support.acceptance.zombie_pair import Pair
from tests.support.acceptance.zombie_shim import Area, Shim, Verb
from tests.support.acceptance.zombie_shim import library as library
from tests.support.prove import IS_PROOF, SEED

QUEUE = "/queue/q"
# A hung thread or a proof that ends is noticed within this.
NOTICED_SECONDS_MAX = 20.0
# The longest bound of broker.ha.waits, and what follows on it.
SECONDS_MAX = 90.0


@dataclass(frozen=True)
class Case:
    """``error``: what the calls fail with, at once; 0: they do not come back until the successor rules."""

    name: str
    verbs: Verb
    error: int
    trouble: str
    area: Area = Area.JOURNAL

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("a write fails", Verb.WRITE, errno.EIO, "DISK_FAILED"),
    Case("a sync fails", Verb.SYNC, errno.EIO, "DISK_FAILED"),
    Case("a sync finds the disk full", Verb.SYNC, errno.ENOSPC, "NO_SPACE"),
    Case("a write is over quota", Verb.WRITE, errno.EDQUOT, "NO_SPACE"),
    Case("the volume is read-only", Verb.WRITE, errno.EROFS, "READ_ONLY"),
    Case("a stale handle", Verb.STAT, errno.ESTALE, "GONE"),
    Case("a write hangs", Verb.WRITE, 0, "STORAGE_HUNG"),
    Case("a sync hangs", Verb.SYNC, 0, "STORAGE_HUNG"),
    Case("a look hangs", Verb.STAT, 0, "STORAGE_HUNG"),
    Case("the loop hangs", Verb.LOOP, 0, "LOOP_HUNG"),
]


def chosen() -> list[Case]:
    """All in a proof, else one."""
    return CASES if IS_PROOF else random.Random(SEED).sample(CASES, 1)


@contextlib.contextmanager
def lived(pair: Pair) -> Iterator[Pair]:
    """Started; at the end it is stopped, and its store is in order."""
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()
    assert pair.check_stopped() == []


@pytest.fixture
def pair(tmp_path: Path, library: Path) -> Iterator[Pair]:
    with lived(Pair(tmp_path / "data", FileLock(tmp_path / "data"), library)) as pair:
        yield pair


@pytest.fixture
def leased(tmp_path: Path, library: Path) -> Iterator[Pair]:
    with lived(Pair(tmp_path / "data", SqliteLease(tmp_path), library)) as pair:
        yield pair


async def confirm(broker: BrokerProcess, body: str) -> None:
    await stomp_wire.confirm(broker.stomp, QUEUE, body, SECONDS_MAX)


async def bodies(broker: BrokerProcess, count: int) -> list[str]:
    return await stomp_wire.bodies(broker.stomp, QUEUE, count, SECONDS_MAX)


@pytest.mark.service
@pytest.mark.prove
@pytest.mark.parametrize("case", chosen(), ids=str)
async def test_a_master_under_whom_something_fails_stands_by_and_can_rule_again(pair: Pair, case: Case) -> None:
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    master, standby = await asyncio.to_thread(pair.settled)
    pid, shim = master.pid, pair.shims[master.name]
    await confirm(master, "before")
    doomed = await Wire.open(master.stomp)

    before = shim.held
    shim.hold(case.verbs, case.area, error=case.error)
    await stomp_wire.send(doomed, QUEUE, "doomed")
    await asyncio.to_thread(wait_until, lambda: shim.held > before, f"{case}")
    if case.error:
        shim.let_go()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):  # it hangs up, without a receipt
        await asyncio.wait_for(doomed.read(), NOTICED_SECONDS_MAX)
    doomed.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", master.stomp)

    await asyncio.to_thread(standby.wait_role, "master", NOTICED_SECONDS_MAX)
    await confirm(standby, "after")
    shim.let_go()
    status = await asyncio.to_thread(master.wait_role, "standby")
    assert master.pid == pid
    assert status["demotions"].get(case.trouble) == 1, status["demotions"]

    await asyncio.to_thread(standby.kill)
    await asyncio.to_thread(master.wait_role, "master")
    there = await bodies(master, 2)
    if there[1] == "doomed":  # written before it failed: it may count without a receipt
        there = [there[0], *(await bodies(master, 3))[2:]]
    assert there == ["before", "after"]


@pytest.mark.service
@pytest.mark.prove
@pytest.mark.skipif(not IS_PROOF, reason="takes a while; TANDEMMQ_PROVE=full")
async def test_a_master_whose_whole_volume_hangs_says_nothing_until_it_is_back(pair: Pair) -> None:
    """The lock file hangs, too: no broker can get the lock, and no client gets an answer."""
    master, _ = await asyncio.to_thread(pair.settled)
    pid, shim = master.pid, pair.shims[master.name]
    await confirm(master, "before")
    doomed = await Wire.open(master.stomp)

    before = shim.held
    shim.hold(Verb.ALL, Area.VOLUME)
    await asyncio.to_thread(wait_until, lambda: shim.held > before, "a call on the volume hangs")
    await stomp_wire.send(doomed, QUEUE, "doomed")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(doomed.read(), NOTICED_SECONDS_MAX)
    doomed.close()
    await asyncio.to_thread(wait_until, lambda: roles(pair) == {"demoted", "standby"}, "nobody is master")

    shim.let_go()
    await asyncio.to_thread(wait_until, lambda: "master" in roles(pair), "one of them is master")
    await asyncio.to_thread(pair.settled)
    ruling, _ = pair.settled()
    assert (await bodies(ruling, 1)) == ["before"]
    assert master.pid == pid


def roles(pair: Pair) -> set[str]:
    return {str((broker.status() or {}).get("role")) for broker in pair.brokers.values()}


# ---- it stands by, or hands over, when the volume hangs (tests/unit/broker/ha/test_waits.py hangs each wait)


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


@pytest.mark.thorough
@pytest.mark.service
@pytest.mark.timeout(240)
@pytest.mark.promise("waits-are-bounded")
async def test_a_standby_that_hangs_after_it_got_the_lock_releases_it(leased: Pair) -> None:
    master, standby = await asyncio.to_thread(leased.settled)
    pid, shim = standby.pid, leased.shims[standby.name]
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


@pytest.mark.thorough
@pytest.mark.service
@pytest.mark.timeout(240)
@pytest.mark.promise("waits-are-bounded")
async def test_a_hanging_handover_releases_the_lock(leased: Pair) -> None:
    master, standby = await asyncio.to_thread(leased.settled)
    pid, shim = master.pid, leased.shims[master.name]
    await confirm(master, "before")

    shim.hold(Verb.SYNC, Area.INDEX)
    code, answer = await asyncio.to_thread(ask, master, "/handover", b"{}")
    assert code == 409, answer
    assert "the handover failed" in answer["error"]
    await asyncio.to_thread(standby.wait_role, "master", SECONDS_MAX)
    await confirm(standby, "after")
    assert (master.status() or {})["demotions"] == {"STORAGE_HUNG": 1}
    shim.let_go()
    await asyncio.to_thread(master.wait_role, "standby")
    assert master.pid == pid
    assert await bodies(standby, 2) == ["before", "after"]


class LockElsewhere(FileLock):
    """`shared-file` on a separate volume."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.directory = place

    def settings(self, broker: str) -> dict[str, str]:
        return {**super().settings(broker), "locker.directory": str(self.directory)}


def is_fed(manager: socket.socket) -> bool:
    """Return whether the watchdog was notified since the last call."""
    heard = []
    while True:
        try:
            heard.append(manager.recv(4096))
        except BlockingIOError:
            return b"WATCHDOG=1" in heard


@pytest.mark.thorough
@pytest.mark.service
@pytest.mark.timeout(240)
@pytest.mark.promise("waits-are-bounded")
async def test_a_lock_that_hangs_starves_the_watchdog_and_is_free_when_the_process_ends(
    tmp_path: Path, library: Path
) -> None:
    """Only one thread hangs; loop and storage work. The process ends on a signal although one of its threads hangs."""
    place, period_seconds = tmp_path / "locks", 2.0
    place.mkdir()
    pair = Pair(tmp_path / "data", LockElsewhere(place), library)
    shim = Shim(library, tmp_path / "lock.shim", place)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.setblocking(False)
    master, standby = pair.brokers.values()
    watchdog = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": str(int(period_seconds * 1e6))}
    master.environment = shim.environment | watchdog
    with contextlib.closing(manager), lived(pair), contextlib.closing(shim):
        await confirm(master, "before")
        await asyncio.to_thread(wait_until, lambda: is_fed(manager), "the watchdog is fed")
        shim.hold(Verb.ALL, Area.VOLUME)
        why = "was released, but gave no answer"
        await asyncio.to_thread(wait_until, lambda: is_unwell(master, why), "it says so", SECONDS_MAX)
        await asyncio.sleep(period_seconds)
        is_fed(manager)
        await asyncio.sleep(2 * period_seconds)
        assert not is_fed(manager), "systemd would not end it"
        assert "master" not in roles(pair)
        master.kill(signal.SIGTERM)
        assert await asyncio.to_thread(master.wait, SECONDS_MAX) == 0
        await asyncio.to_thread(standby.wait_role, "master")
        assert await bodies(standby, 1) == ["before"]
