"""Faults of a master that make another broker master while the first one does not know it.

``strike`` starts the fault; after it returns, the successor will get the lock. ``wake`` ends the fault: the zombie
continues where it was. All methods block.
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
# Points at which a master is stopped: before it writes a batch, syncs it, checks the lock, fences, removes an unneeded
# file, writes or syncs its index; or anywhere.
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
# If the point is not reached in this time, the master is stopped where it is.
POINT_SECONDS_MAX = 1.0
# Time in which a lease is extended more than once.
EXTENDED_SECONDS = 0.5
# Time for several epochs of both.
BOTH_SECONDS = 1.5
HANDOVER_SECONDS_MAX = 30.0
# A broker notices when it continues that it was stopped this long. It does not notice a shorter pause; if a lock that
# is held until released was given away in it, the only effect is one unnecessary answer.
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
    oversleeps = True  # the successor may rotate and reclaim before the zombie continues
    halts = True  # it writes nothing between strike and wake
    may_win_again = False  # because of the clocks the zombie may get the lock again at once

    def strike(self, scene: Scene) -> None:
        raise NotImplementedError

    def wake(self, scene: Scene) -> None:
        raise NotImplementedError

    def is_silent_with(self, lock: Lock) -> bool:
        """Return whether the zombie has no valid proof once its successor rules, so that it must send nothing."""
        return True


class Stopped(Fault):
    """SIGSTOP of all threads, at a chosen point of the processing of a batch."""

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
    """The master is stopped during a handover."""

    name = "stopped handing over"
    halts = False  # it may have started its last file in the meantime

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
        pass  # the answer is not needed


class StoppedWithClocks(Stopped):
    """Like Stopped, and the wall clock of one broker, or of the lock's server, is an hour off until the next round."""

    name = "stopped, clocks stepped"
    may_win_again = True

    def strike(self, scene: Scene) -> None:
        step = scene.dice.choice([-1, 1]) * CLOCK_STEP_SECONDS
        whose = scene.dice.choice(["zombie", "successor", "server"])
        if isinstance(scene.pair.lock, SqliteLease) and whose == "zombie" and step > 0:
            scene.shim.step_wall_clock(step)  # its last update is a lease of an hour
            time.sleep(EXTENDED_SECONDS)
        super().strike(scene)
        if whose == "server" and scene.pair.lock.has_clock:
            scene.pair.lock.step_clock(step)
        elif whose == "zombie":
            scene.shim.step_wall_clock(step)
        else:
            scene.pair.shims[scene.successor.name].step_wall_clock(step)


class GivenTwice(Fault):
    """The successor also gets the lock, while the master continues to work."""

    name = "given twice"
    oversleeps = False
    halts = False

    def strike(self, scene: Scene) -> None:
        scene.give()

    def wake(self, scene: Scene) -> None:
        pass

    def is_silent_with(self, lock: Lock) -> bool:
        return False  # until its next check of the lock


class GivenToBoth(GivenTwice):
    """Both get the lock whenever they ask, and depose each other for a while."""

    name = "given to both for a while"
    may_win_again = True

    def strike(self, scene: Scene) -> None:
        scene.pair.lock.give_to_both()
        time.sleep(BOTH_SECONDS)
        scene.give()


class GivenTwiceByClock(GivenTwice):
    """A clock is set an hour forward, so that the lease expires although its holder extends it."""

    name = "given twice by a clock"
    may_win_again = True

    def strike(self, scene: Scene) -> None:
        if scene.pair.lock.has_clock:
            scene.pair.lock.step_clock(CLOCK_STEP_SECONDS)
        else:
            scene.pair.shims[scene.successor.name].step_wall_clock(CLOCK_STEP_SECONDS)


class HungJournal(Fault):
    """A call on the journal hangs for longer than any proof is valid; then it completes."""

    name = "journal hangs"

    def strike(self, scene: Scene) -> None:
        before = scene.shim.held
        scene.shim.hold(scene.dice.choice([Verb.WRITE, Verb.SYNC, Verb.STAT]))
        wait_until(lambda: scene.shim.held > before, "a call on the journal hangs")

    def wake(self, scene: Scene) -> None:
        scene.shim.let_go()


class HungJournalGivenTwice(HungJournal):
    """Like HungJournal, and the lock is given away in the meantime."""

    name = "journal hangs, given twice"

    def strike(self, scene: Scene) -> None:
        super().strike(scene)
        scene.give()

    def is_silent_with(self, lock: Lock) -> bool:
        return False  # until its last check of the lock is too old


class HungLoop(Fault):
    """The event loop hangs for longer than any proof is valid."""

    name = "loop hangs"
    halts = False  # the storage thread continues

    def strike(self, scene: Scene) -> None:
        before = scene.shim.held
        scene.shim.hold(Verb.LOOP)
        wait_until(lambda: scene.shim.held > before, "the loop hangs")

    def wake(self, scene: Scene) -> None:
        scene.shim.let_go()


class CutOff(Fault):
    """The master cannot reach the lock: its packets are dropped, or its connections reset."""

    name = "cut off from the lock"
    oversleeps = False
    halts = False

    def strike(self, scene: Scene) -> None:
        scene.pair.lock.set_way(scene.zombie.name, scene.dice.choice([Way.SILENT, Way.CUT]))

    def wake(self, scene: Scene) -> None:
        scene.pair.lock.set_way(scene.zombie.name, Way.OPEN)
        scene.shim.let_go()

    def is_silent_with(self, lock: Lock) -> bool:
        return not lock.ends_with_connection  # it notices a lost connection one keep-alive later


class CutOffFromAll(CutOff):
    """Also cut off from the volume: pending calls complete when the volume is back."""

    name = "cut off from lock and volume"
    oversleeps = True
    halts = True

    def strike(self, scene: Scene) -> None:
        before = scene.shim.held
        scene.shim.hold(Verb.ALL, Area.VOLUME)
        wait_until(lambda: scene.shim.held > before, "a call on the volume hangs")
        super().strike(scene)
