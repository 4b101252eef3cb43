"""Rounds that end the master, or a broker that becomes master, of a group of two or three brokers, and their figures.

At the start and at the end of each round one broker is master and all others are standbys. Clients work all the time.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tandemmq.journal.files import JournalFiles
from tandemmq.locker.shared_file import FILE_NAME, decode
from tandemmq.store.tools.check import check
from tandemmq.store.tools.inspect import read_headers
from tests.support.acceptance.broker_process import BrokerProcess, settled, wait_master, wait_until

# Long, because of three brokers, one of which may have been stopped, and clients at full load.
ROLES_SECONDS_MAX = 60.0
# Approximate duration of a promotion under load.
PROMOTION_SECONDS = 0.3
# Approximate time between a fence and its header.
HEADER_SECONDS = 0.02
POLL_SECONDS = 0.001


class Group:
    """Brokers with one directory and a lock file. ``kills``: number of kill -9, by role."""

    def __init__(self, data: Path, names: str, *options: str) -> None:
        self.data = data
        self.brokers = [BrokerProcess(data, name, *options) for name in names]
        self.rounds: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.headless = 0  # fences that a kill left without header

    @property
    def killed(self) -> int:
        return self.kills.total()

    @property
    def ports(self) -> list[int]:
        return [broker.stomp for broker in self.brokers]

    def start(self) -> None:
        master, *standbys = self.brokers
        master.start().wait_role("master")
        for standby in standbys:
            standby.start().wait_role("standby")

    def settled(self) -> tuple[BrokerProcess, list[BrokerProcess]]:
        """Wait until one broker is master and all others are standbys; return the master, and the others."""
        return settled(self.brokers)

    def kill(self, broker: BrokerProcess, what: str) -> None:
        broker.kill()
        self.kills[what] += 1

    def restart_the_dead(self) -> None:
        for broker in self.brokers:
            if broker.process is None:
                broker.start()

    def wait_lock(self, brokers: Sequence[BrokerProcess]) -> BrokerProcess:
        """Return the broker whose name is first in the lock file."""

        def holder() -> BrokerProcess | None:
            try:
                name = decode((self.data / FILE_NAME).read_bytes()).name
            except FileNotFoundError:
                return None
            return next((each for each in brokers if each.name == name), None)

        found = wait_until(holder, "one of them has the lock", ROLES_SECONDS_MAX)
        assert isinstance(found, BrokerProcess)
        return found

    def check_as_it_stands(self) -> None:
        """Check the store. No broker may run: all are dead, or stopped by a signal."""
        report = check(str(self.data))
        assert report.is_clean, report.problems

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()


Round = Callable[[Group, random.Random], None]


def stopped(brokers: Sequence[BrokerProcess]) -> None:
    for broker in brokers:
        broker.kill(signal.SIGSTOP)


def continued(brokers: Sequence[BrokerProcess]) -> None:
    for broker in brokers:
        broker.kill(signal.SIGCONT)


def kill_of_the_master(group: Group, dice: random.Random) -> None:
    master, standbys = group.settled()
    stopped(standbys)  # so that the directory stays as the dead master left it
    group.kill(master, "master")
    group.check_as_it_stands()
    continued(standbys)
    wait_master(standbys)


def kill_of_a_standby(group: Group, dice: random.Random) -> None:
    """Kill a standby, which follows or writes a checkpoint; the master continues."""
    _, standbys = group.settled()
    group.kill(dice.choice(standbys), "standby")


def kill_of_the_master_and_a_standby(group: Group, dice: random.Random) -> None:
    master, standbys = group.settled()
    dice.shuffle(standbys)
    group.kill(master, "master")
    time.sleep(dice.uniform(0, PROMOTION_SECONDS))
    is_master = (standbys[0].status() or {}).get("role") == "master"
    group.kill(standbys[0], "master" if is_master else "standby")
    wait_master(standbys[1:])


def kill_of_a_promoting_broker(group: Group, dice: random.Random) -> None:
    """Kill a broker during its promotion, in half of the rounds at the fence, before or after the header."""
    master, standbys = group.settled()
    files = JournalFiles(str(group.data))
    before = files.list()[-1]
    group.kill(master, "master")
    promoting = group.wait_lock(standbys)
    others = [broker for broker in standbys if broker is not promoting]
    stopped(others)
    if dice.random() < 0.5:
        deadline = time.monotonic() + ROLES_SECONDS_MAX
        while files.list()[-1] == before:
            assert time.monotonic() < deadline, "a fence appears"
            time.sleep(POLL_SECONDS)
        time.sleep(dice.uniform(0, HEADER_SECONDS))
    else:
        time.sleep(dice.uniform(0, PROMOTION_SECONDS))
    group.kill(promoting, "promoting")
    group.headless += files.list()[-1] not in read_headers(files).headers
    group.check_as_it_stands()
    continued(others)
    wait_master(others)


def sleep_of_the_master(group: Group, dice: random.Random) -> None:
    """Stop the master by a signal and delete its lock file, so that another broker takes over. If there is a third
    broker, the second is killed while the first is stopped."""
    master, standbys = group.settled()
    stopped([master])
    os.unlink(group.data / FILE_NAME)
    second = wait_master(standbys)
    others = [broker for broker in standbys if broker is not second]
    if others:
        time.sleep(dice.uniform(0.05, 1.0))
        group.kill(second, "master")
        if dice.random() < 0.5:
            wait_master(others)
        else:
            time.sleep(dice.uniform(0, PROMOTION_SECONDS))
    continued([master])


def sleep_of_a_standby(group: Group, dice: random.Random) -> None:
    """Stop a standby by a signal while the master is killed; another broker takes over if there is one."""
    master, standbys = group.settled()
    sleeper = dice.choice(standbys)
    stopped([sleeper])
    group.kill(master, "master")
    others = [broker for broker in standbys if broker is not sleeper]
    if others:
        wait_master(others)
    continued([sleeper])


def handover(group: Group, dice: random.Random) -> None:
    master, standbys = group.settled()
    assert master.terminate() == 0
    wait_master(standbys)


def lock_file_deleted(group: Group, dice: random.Random) -> None:
    _, standbys = group.settled()
    os.unlink(group.data / FILE_NAME)
    wait_master(standbys)


OF_A_PAIR: dict[str, tuple[Round, int]] = {
    "kill of the master": (kill_of_the_master, 4),
    "kill of the standby": (kill_of_a_standby, 1),
    "sleep of the master": (sleep_of_the_master, 1),
    "handover": (handover, 1),
    "lock file deleted": (lock_file_deleted, 1),
}
OF_A_TRIO: dict[str, tuple[Round, int]] = {
    "kill of the master": (kill_of_the_master, 2),
    "kill of a standby": (kill_of_a_standby, 1),
    "kill of the master and a standby": (kill_of_the_master_and_a_standby, 2),
    "kill of a promoting broker": (kill_of_a_promoting_broker, 3),
    "sleep of the master": (sleep_of_the_master, 3),
    "sleep of a standby": (sleep_of_a_standby, 1),
    "handover": (handover, 1),
    "lock file deleted": (lock_file_deleted, 1),
}


def chosen(kinds: dict[str, tuple[Round, int]], count: int, dice: random.Random) -> list[str]:
    """Choose ``count`` rounds by weight. If ``count`` is small, no round is chosen twice."""
    names = [name for name, (_, weight) in kinds.items() for _ in range(weight)]
    if count <= len(kinds):
        return dice.sample(list(kinds), count)
    return dice.choices(names, k=count)


def play(group: Group, kinds: dict[str, tuple[Round, int]], name: str, dice: random.Random) -> None:
    """Run one round, until one broker is master and all others are standbys."""
    kinds[name][0](group, dice)
    group.restart_the_dead()
    group.settled()
    group.rounds[name] += 1
