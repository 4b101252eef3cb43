"""Sessions of MQTT on a disk each of whose writes and syncs fails once: what clients were promised holds afterwards.

Clients with stored sessions publish and subscribe, come and go in each way, by packets of the real protocol through the
real engine and store. A term ends by a write or a sync that fails, for an error or because the process was killed
there, and perhaps the power was lost; then the same broker starts again, or another one takes over. By default a seeded
sample of lives is made; with TANDEMMQ_PROVE=full each of one life fails in each way.
"""

# proves: id-of-a-lost-message-is-released, id-of-another-is-not-given, message-ends-with-its-release
# proves: packet-id-with-its-message, record-ends-when-it-is-back, will-ends-with-its-record
# proves: former-record-ends-last, release-waits-for-its-record, session-record-is-replaced-at-once
# proves: unsuback-after-its-record

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tests.support.crash.failing_disk import Failure
from tests.support.crash.mqtt_lives import Crash, World
from tests.support.prove import IS_FULL, IS_THOROUGH, SEED, rounds

pytestmark = [pytest.mark.promise("mqtt-sessions-go-on"), pytest.mark.usefixtures("steps")]

LIVES = rounds(30, 0, quick=5)
# A life has about so many writes and syncs.
CALLS = 380
# A term that only takes up what the one before left is over after fewer.
CALLS_OF_A_BEGINNING = 40
WAYS = [(failure, loses_power) for failure in (Failure.ONCE, Failure.KILLED) for loses_power in (False, True)]
CRASHES_MAX = 3
LIVES_WITHOUT_FAILURES = 4 if IS_THOROUGH else 2


def lived(scratch: str, name: str, seed: int, crashes: list[Crash]) -> World:
    os.mkdir(f"{scratch}/{name}")
    world = World(f"{scratch}/{name}", seed)
    try:
        world.live(crashes)
    except BaseException as error:
        error.add_note(f"World(directory, {seed}).live({crashes}); {world.failed}")
        raise
    return world


def crash(dice: random.Random, calls: int) -> Crash:
    failure, loses_power = dice.choice(WAYS)
    return Crash(dice.randint(1, calls), failure, loses_power)


def lives(scratch: str, dice: random.Random) -> list[tuple[int, list[Crash]]]:
    """Seeds, and what fails first in each term; mostly another failure comes behind the first."""
    if IS_FULL:
        calls = range(1, lived(scratch, "count", SEED, []).calls[0] + 1)
        firsts = [(SEED, Crash(call, *way)) for call in calls for way in WAYS]
    else:
        firsts = [(dice.randrange(1 << 32), crash(dice, CALLS)) for _ in range(LIVES)]

    def more() -> list[Crash]:
        calls = (CALLS_OF_A_BEGINNING, CALLS)
        return [crash(dice, dice.choice(calls)) for _ in range(dice.randrange(CRASHES_MAX))]

    return [(seed, [first, *more()]) for seed, first in firsts]


def test_where_nothing_fails_every_promise_holds(scratch: str) -> None:
    """Lives also contain the events that the other test is to find."""
    qos: set[int] = set()
    for number in range(LIVES_WITHOUT_FAILURES):
        world = lived(scratch, str(number), SEED + number, [])
        assert world.calls[0] > CALLS // 2
        promises = world.promises
        got = promises.got["panel"]
        qos |= {each.qos for each in promises.published.values() if got[each.payload]}
        assert promises.retained
        assert promises.got["guest"]
        assert any(payload.startswith("will-") for payload in got)
    assert qos >= {1, 2}


@pytest.mark.prove
@pytest.mark.timeout(7200 if IS_FULL else 120 + LIVES)
def test_whatever_fails_what_clients_were_promised_holds(scratch: str, caplog: pytest.LogCaptureFixture) -> None:
    dice = random.Random(SEED)
    every = lives(scratch, dice)
    print(f"{len(every)} lives (TANDEMMQ_PROVE)")
    terms, failed = 0, Counter[str]()
    for number, (seed, crashes) in enumerate(every):
        world = lived(scratch, str(number), seed, crashes)
        terms += len(world.calls)
        failed.update(each.call for each in world.failed if each is not None)
        contained = [each.getMessage() for each in caplog.records if ERROR_OF_BROKER in each.getMessage()]
        assert not contained, f"World(directory, {seed}).live({crashes}): {contained}"
        caplog.clear()
    print(f"{terms} terms; failed: {dict(failed)}")
    assert failed["pwrite"] or not IS_THOROUGH, "a few lives may have failed elsewhere"
