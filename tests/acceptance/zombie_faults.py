"""What befalls a master, so that another one rules while it believes that it does.

``strike`` begins it; when it returns, the lock is the successor's to take. ``wake`` ends it: the zombie goes on where
it was. All blocking.
"""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass
from typing import Protocol

from broker_process import BrokerProcess, wait_until
from zombie_pair import Pair, stop_all_threads
from zombie_shim import Area, Verb

CLOCK_STEP_SECONDS = 3600.0
# Where in its work a master is stopped: before it writes a batch, syncs it, looks, or fences; or anywhere.
POINTS = {"anywhere": None, "write": Verb.WRITE, "sync": Verb.SYNC, "look": Verb.STAT, "link": Verb.LINK}
# A point that is not reached within this is given up: the master is stopped where it is.
POINT_SECONDS_MAX = 1.0


@dataclass
class Scene:
    pair: Pair
    zombie: BrokerProcess
    successor: BrokerProcess
    dice: random.Random


class Fault(Protocol):
    name: str
    sleeps: bool  # the zombie notices nothing before it is woken
    halts: bool  # it writes nothing between strike and wake

    def strike(self, scene: Scene) -> None: ...

    def wake(self, scene: Scene) -> None: ...


def give(scene: Scene) -> None:
    scene.pair.lock.give(scene.zombie.name, scene.successor.name)


class Stopped:
    """SIGSTOP of all threads, at a chosen point of a batch's way."""

    name = "stopped"
    sleeps = True
    halts = True

    def strike(self, scene: Scene) -> None:
        shim = scene.pair.shims[scene.zombie.name]
        point = POINTS[scene.dice.choice(list(POINTS))]
        before = shim.held
        if point is not None:
            shim.hold(point)
            try:
                wait_until(lambda: shim.held > before, "the point is reached", POINT_SECONDS_MAX)
            except AssertionError:
                pass
        stop_all_threads(scene.zombie)
        shim.let_go()
        give(scene)

    def wake(self, scene: Scene) -> None:
        scene.zombie.kill(signal.SIGCONT)


class StoppedWithClocks(Stopped):
    """The same, and the wall clock of one of the two is an hour off from then on, until the next round."""

    name = "stopped, clocks stepped"

    def strike(self, scene: Scene) -> None:
        super().strike(scene)
        whose = scene.dice.choice([scene.zombie, scene.successor])
        scene.pair.shims[whose.name].step_wall_clock(scene.dice.choice([-1, 1]) * CLOCK_STEP_SECONDS)

    def wake(self, scene: Scene) -> None:
        super().wake(scene)


class GivenTwice:
    """The lock is the successor's, too, while the master works on."""

    name = "given twice"
    sleeps = False
    halts = False

    def strike(self, scene: Scene) -> None:
        give(scene)

    def wake(self, scene: Scene) -> None:
        pass


class HungVolume:
    """A call on the journal does not come back for longer than anything holds; then it is done, late."""

    name = "hung journal"
    sleeps = False
    halts = True

    def strike(self, scene: Scene) -> None:
        shim = scene.pair.shims[scene.zombie.name]
        before = shim.held
        shim.hold(scene.dice.choice([Verb.WRITE, Verb.SYNC, Verb.STAT]), Area.JOURNAL)
        wait_until(lambda: shim.held > before, "a call on the journal hangs")
        give(scene)

    def wake(self, scene: Scene) -> None:
        scene.pair.shims[scene.zombie.name].let_go()
