"""What befalls a master, so that another one rules while it believes that it does.

``strike`` begins it; when it returns, the successor gets the lock by and by. ``wake`` ends it: the zombie goes on where
it was. All blocking.
"""

from __future__ import annotations

import random
import signal
import threading
import time
import urllib.request
from dataclasses import dataclass

from tests.support.acceptance.broker_process import BrokerProcess, wait_until
from tests.support.acceptance.zombie_locks import Lock, SqliteLease
from tests.support.acceptance.zombie_pair import Pair, stop_all_threads
from tests.support.acceptance.zombie_shim import Area, Shim, Verb
from tests.support.services.proxy import Way

CLOCK_STEP_SECONDS = 3600.0
# Where in its work a master is stopped: before it writes a batch, syncs it, looks, fences, removes a file that nothing
# needs, writes or syncs its index; or anywhere.
POINTS = [
    (Verb.WRITE, Area.JOURNAL),
    (Verb.WRITE, Area.JOURNAL),
    (Verb.SYNC, Area.JOURNAL),
    (Verb.STAT, Area.JOURNAL),
    (Verb.LINK, Area.JOURNAL),
    (Verb.UNLINK, Area.JOURNAL),
    (Verb.WRITE, Area.INDEX),
    (Verb.SYNC, Area.INDEX),
    None,
]
# A point that is not reached within this is given up: the master is stopped where it is.
POINT_SECONDS_MAX = 1.0
# In this time a lease is extended more than once.
EXTENDED_SECONDS = 0.5
# Long enough for several epochs of both.
BOTH_SECONDS = 1.5
HANDOVER_SECONDS_MAX = 30.0
# Who slept for so long knows it when it wakes. A shorter pause is not noticed, and for a lock that is held until it is
# released, given away meanwhile, no harm is done but a word that was not asked for.
SLEEP_SECONDS_MIN = 1.5


@dataclass
class Scene:
    pair: Pair
    zombie: BrokerProcess
    successor: BrokerProcess
    dice: random.Random

    @property
    def shim(self) -> Shim:
        return self.pair.shims[self.zombie.name]

    def give(self) -> None:
        self.pair.lock.give(self.zombie.name, self.successor.name)


class Fault:
    name = ""
    oversleeps = True  # its successor may rotate and reclaim before it is woken
    halts = True  # it writes nothing between strike and wake
    may_win_again = False  # clocks are such that the zombie may have the lock again at once

    def strike(self, scene: Scene) -> None:
        raise NotImplementedError

    def wake(self, scene: Scene) -> None:
        raise NotImplementedError

    def is_silent_with(self, lock: Lock) -> bool:
        """Whether whatever it says when its successor rules is said without knowing that it may."""
        return True


class Stopped(Fault):
    """SIGSTOP of all threads, at a chosen point of a batch's way."""

    name = "stopped"

    def strike(self, scene: Scene) -> None:
        shim = scene.shim
        point = scene.dice.choice(POINTS)
        before = shim.held
        if point is not None:
            shim.hold(*point)
            try:
                wait_until(lambda: shim.held > before, "the point is reached", POINT_SECONDS_MAX)
            except AssertionError:
                pass
        stop_all_threads(scene.zombie, scene.pair.lock.directory)
        self._stopped = time.monotonic()
        shim.let_go()
        scene.give()

    def wake(self, scene: Scene) -> None:
        time.sleep(max(0.0, self._stopped + SLEEP_SECONDS_MIN - time.monotonic()))
        scene.zombie.kill(signal.SIGCONT)


class StoppedHandingOver(Stopped):
    """It was asked to hand over, and is stopped while it does."""

    name = "stopped handing over"
    halts = False  # it may have begun its last file meanwhile

    def strike(self, scene: Scene) -> None:
        asking = threading.Thread(target=ask_for_handover, args=(scene.zombie,), daemon=True)
        asking.start()
        super().strike(scene)


def ask_for_handover(broker: BrokerProcess) -> None:
    headers = {"Content-Type": "application/json", **broker.authorization}
    request = urllib.request.Request(f"http://127.0.0.1:{broker.admin}/handover", b"{}", headers, method="POST")
    try:
        urllib.request.urlopen(request, timeout=HANDOVER_SECONDS_MAX).close()
    except OSError:
        pass  # whom it would tell is the question of nobody here


class StoppedWithClocks(Stopped):
    """The same, and the wall clock of one of the two, or of the lock's server, is an hour off until the next round."""

    name = "stopped, clocks stepped"
    may_win_again = True

    def strike(self, scene: Scene) -> None:
        step = scene.dice.choice([-1, 1]) * CLOCK_STEP_SECONDS
        whose = scene.dice.choice(["zombie", "successor", "server"])
        if isinstance(scene.pair.lock, SqliteLease) and whose == "zombie" and step > 0:
            scene.shim.step_wall_clock(step)  # its last word: a lease of an hour
            time.sleep(EXTENDED_SECONDS)
        super().strike(scene)
        if whose == "server" and scene.pair.lock.has_clock:
            scene.pair.lock.step_clock(step)
        elif whose == "zombie":
            scene.shim.step_wall_clock(step)
        else:
            scene.pair.shims[scene.successor.name].step_wall_clock(step)


class GivenTwice(Fault):
    """The lock is the successor's, too, while the master works on."""

    name = "given twice"
    oversleeps = False
    halts = False

    def strike(self, scene: Scene) -> None:
        scene.give()

    def wake(self, scene: Scene) -> None:
        pass

    def is_silent_with(self, lock: Lock) -> bool:
        return False  # until its next look


class GivenToBoth(GivenTwice):
    """Both have the lock whenever they ask, and depose each other for a while."""

    name = "given to both for a while"
    may_win_again = True

    def strike(self, scene: Scene) -> None:
        scene.pair.lock.give_to_both()
        time.sleep(BOTH_SECONDS)
        scene.give()


class GivenTwiceByClock(GivenTwice):
    """A clock is set an hour forward, and the lease is over while its holder extends it."""

    name = "given twice by a clock"
    may_win_again = True

    def strike(self, scene: Scene) -> None:
        if scene.pair.lock.has_clock:
            scene.pair.lock.step_clock(CLOCK_STEP_SECONDS)
        else:
            scene.pair.shims[scene.successor.name].step_wall_clock(CLOCK_STEP_SECONDS)


class HungJournal(Fault):
    """A call on the journal does not come back for longer than any proof holds; then it is done, late."""

    name = "journal hangs"

    def strike(self, scene: Scene) -> None:
        before = scene.shim.held
        scene.shim.hold(scene.dice.choice([Verb.WRITE, Verb.SYNC, Verb.STAT]))
        wait_until(lambda: scene.shim.held > before, "a call on the journal hangs")

    def wake(self, scene: Scene) -> None:
        scene.shim.let_go()


class HungJournalGivenTwice(HungJournal):
    """The same, and the lock is given away meanwhile."""

    name = "journal hangs, given twice"

    def strike(self, scene: Scene) -> None:
        super().strike(scene)
        scene.give()

    def is_silent_with(self, lock: Lock) -> bool:
        return False  # until its last look is too old


class HungLoop(Fault):
    """The event loop does nothing for longer than any proof holds."""

    name = "loop hangs"
    halts = False  # the storage thread has its own life

    def strike(self, scene: Scene) -> None:
        before = scene.shim.held
        scene.shim.hold(Verb.LOOP)
        wait_until(lambda: scene.shim.held > before, "the loop hangs")

    def wake(self, scene: Scene) -> None:
        scene.shim.let_go()


class CutOff(Fault):
    """The master does not reach the lock any more: silence, or connections that are reset."""

    name = "cut off from the lock"
    oversleeps = False
    halts = False

    def strike(self, scene: Scene) -> None:
        scene.pair.lock.set_way(scene.zombie.name, scene.dice.choice([Way.SILENT, Way.CUT]))

    def wake(self, scene: Scene) -> None:
        scene.pair.lock.set_way(scene.zombie.name, Way.OPEN)
        scene.shim.let_go()

    def is_silent_with(self, lock: Lock) -> bool:
        return not lock.ends_with_connection  # which it notices a keep-alive later


class CutOffFromAll(CutOff):
    """From the volume, too: what it had begun there is done when it is back."""

    name = "cut off from lock and volume"
    oversleeps = True
    halts = True

    def strike(self, scene: Scene) -> None:
        before = scene.shim.held
        scene.shim.hold(Verb.ALL, Area.VOLUME)
        wait_until(lambda: scene.shim.held > before, "a call on the volume hangs")
        super().strike(scene)
