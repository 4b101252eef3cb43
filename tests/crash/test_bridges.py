"""A bridge on a disk one of whose calls fails, or is the last one before its process is killed: nothing is lost in
either direction, and what has QoS 2 is there once.

The bridge's records and messages go through the real engine into a real store; another term begins with what is there
then. By default a seeded sample of calls is taken; with TANDEMMQ_PROVE set every call fails in each way.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tandemmq.broker.bridges.link import Topic
from tandemmq.index.errors import IndexTrouble
from tandemmq.journal.errors import JournalError
from tandemmq.store.standby import Standby
from tandemmq.store.tools.check import check as check_store
from tests.support.broker.bridge_world import World
from tests.support.broker.other_broker import OtherBroker, check, prepare
from tests.support.crash.failing_disk import FailingDisk, Failure
from tests.support.crash.recording_disk import RecordingDisk
from tests.support.crash.short_lives import SETTINGS
from tests.support.prove import IS_PROOF, IS_THOROUGH, SEED

pytestmark = [pytest.mark.promise("bridges"), pytest.mark.usefixtures("steps")]

OUT = Topic("up/#", 2, "", "", is_in=False, is_out=True)
IN = Topic("down/#", 2, "", "", is_in=True, is_out=False)
LIVES = 24 if IS_THOROUGH else 8
FAILURES = (OSError, JournalError, IndexTrouble)
SECONDS_MAX = 30.0


class StoredWorld(World):
    """``lost``: has the error that ended the store of this term."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.lost: asyncio.Future[BaseException] = self.loop.create_future()
        self.fail_at = 0
        self.failure = Failure.ONCE
        self._directory = directory

    def begin_store(self) -> None:
        self.lost = lost = self.loop.create_future()
        self.disk = FailingDisk(RecordingDisk(self._directory), self.fail_at, self.failure)
        standby = Standby(self._directory, f"{self._directory}/index", "a", SETTINGS, disk=self.disk)
        try:
            self.store = standby.promote(
                has_proof=lambda: True,
                call_soon=self.loop.call_soon_threadsafe,
                call_later=self.loop.call_later,
                on_lost=lost.set_result,
            )
        except BaseException:
            standby.close()
            raise

    async def quiet(self) -> None:
        """All that was handed to the store has come back, or nothing does any more."""
        calm = 0
        while calm < 10 and not self.lost.done():
            calm = 0 if self.store.has_pending else calm + 1
            await asyncio.sleep(0.001 if self.store.has_pending else 0)

    def end(self) -> None:
        """End the term as a demoted or stopped master does."""
        self.flow.end()
        self.engine.end()
        try:
            if not self.lost.done():
                self.store.close()
        except FAILURES:
            pass
        finally:
            self.store.drop()


async def term(world: StoredWorld, other: OtherBroker | None = None) -> bool:
    """Run a term; return whether all work was done: with the other broker, or only to begin it."""
    try:
        world.begin_store()
    except FAILURES:
        return False
    world.begin_engine()
    world.make_flow(OUT, IN)
    begun = asyncio.ensure_future(world.flow.begin())
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.wait((begun, world.lost), return_when=asyncio.FIRST_COMPLETED)
        if world.lost.done():
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)
            return False
        await begun
        if other is None:
            return True
        other.connect(world)
        while not world.lost.done():
            if not other.step(world) and other.is_done and not world.records:
                return True
            await asyncio.sleep(0.001)
    return False


async def live(directory: str, fail_at: int, failure: Failure) -> int:
    """A life whose second term has a disk that fails there, and what is left of it is judged. How many calls of the
    disk that term had."""
    os.mkdir(directory)
    world, other = StoredWorld(directory), OtherBroker()
    assert await term(world)
    await prepare(world)
    world.end()
    world.fail_at, world.failure = fail_at, failure
    has_begun = world.terms
    is_over = await term(world, other)
    calls, failed = world.disk.count, world.disk.failed
    if world.terms != has_begun:
        world.end()
    world.fail_at = 0
    assert await term(world, other), f"{fail_at}, {failure}: {world.lost!r}"
    await check(world, other)
    world.end()
    assert is_over or failed is not None
    report = check_store(directory)
    assert report.is_clean, report.problems
    return calls


@pytest.mark.timeout(1800 if IS_PROOF else 120)
async def test_whatever_call_of_the_disk_fails_each_message_is_there_once(scratch: str) -> None:
    dice = random.Random(SEED)
    calls = await live(f"{scratch}/count", 0, Failure.ONCE)
    ways = [(number, failure) for number in range(1, calls + 1) for failure in (Failure.ONCE, Failure.KILLED)]
    print(f"{calls} calls (TANDEMMQ_PROVE)")
    for number, (fail_at, failure) in enumerate(ways if IS_PROOF else dice.sample(ways, LIVES)):
        try:
            await live(f"{scratch}/{number}", fail_at, failure)
        except AssertionError as error:
            error.add_note(f"call {fail_at} {failure.value}")
            raise
