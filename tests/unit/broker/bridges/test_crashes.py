"""The broker is killed after each operation that a bridge submits to the store, and again during the recovery.

The other broker follows the rules of QoS 1 and 2 over all connections. No message is lost in either direction, and a
message of QoS 2 arrives once.
"""

from __future__ import annotations

import pytest

from tandemmq.broker.bridges.link import Topic
from tests.support.broker.bridge_world import World
from tests.support.broker.mortal_store import Mortal, crashes
from tests.support.broker.other_broker import OtherBroker, check, prepare

pytestmark = pytest.mark.promise("bridges")

OUT = Topic("up/#", 2, "", "", is_in=False, is_out=True)
IN = Topic("down/#", 2, "", "", is_in=True, is_out=False)
# Number of operations in a life without crashes, and a few more, so that the last crash is after its end.
OPERATIONS_MAX = 40
AGAIN_MAX = 12


async def prepared() -> World:
    world = World()
    await world.begin_term(OUT, IN)
    await prepare(world)
    return world


async def live(world: World, other: OtherBroker) -> None:
    """A term as master, until it dies or nothing more is to be done."""
    if await world.begin_term(OUT, IN):
        other.connect(world)
        await world.quiet()
        while other.step(world):
            await world.quiet()


async def test_a_life_without_crashes_is_shorter_than_the_last_crash() -> None:
    world, other = await prepared(), OtherBroker()
    before = world.store.handed_over
    await live(world, other)
    assert world.store.handed_over - before <= OPERATIONS_MAX
    await check(world, other)
    world.flow.end()


@pytest.mark.timeout(600)
async def test_the_promises_hold_at_every_crash_of_the_broker() -> None:
    for first, second, is_told in crashes(OPERATIONS_MAX, AGAIN_MAX, 60):
        world, other = await prepared(), OtherBroker()
        for left in (first, second):
            mortal = Mortal(world, left, is_told=is_told)
            await live(world, other)
            mortal.end()
        await live(world, other)
        try:
            await check(world, other)
        except AssertionError as error:
            raise AssertionError(f"crash behind {first} and {second} operations, told: {is_told}: {error}") from error
        world.flow.end()
