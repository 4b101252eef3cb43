"""Random courses of kills, partitions and returns: what was confirmed is there, in order, once; and nobody forks."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tandemmq.journal.errors import Deposed, JournalFailed
from tandemmq.store.writer.journal_end import NoProof
from tests.support.acceptance.broker_process import wait_until
from tests.support.prove import SEED, rounds
from tests.support.replication.small_set import SmallNode, SmallSet

pytestmark = pytest.mark.promise("quorum-keeps-confirmed")

COURSES = rounds(3, 200, quick=1)


class Writing:
    """Whoever is elected writes, one batch after the other; what was confirmed is noted."""

    def __init__(self, whole: SmallSet) -> None:
        self.confirmed: list[str] = []
        self.epochs: dict[int, str] = {}
        self.wrong: list[str] = []
        self._whole = whole
        self.is_quiet = False
        self._is_over = False
        self._threads = [threading.Thread(target=self._run, args=(node,), daemon=True) for node in whole.nodes]
        for thread in self._threads:
            thread.start()

    def _run(self, node: SmallNode) -> None:
        number = 0
        while not self._is_over:
            replica = node.replica
            if not (node.is_running and replica.try_acquire()):
                time.sleep(0.02)
                continue
            epoch = node.epoch
            try:
                node.serve()
                if self.epochs.setdefault(epoch, node.name) != node.name:
                    self.wrong.append(f"two masters of epoch {epoch}")
                while not self._is_over:
                    if self.is_quiet:
                        time.sleep(0.02)
                        node.authority.settle(*node.writer.position, alive=lambda: None)  # type: ignore[union-attr]
                        continue
                    text = f"{node.name}-{epoch}-{number}-" + "x" * (number % 7 * 500)
                    number += 1
                    node.write(text)
                    self.confirmed.append(text)
                    time.sleep(0.005)  # so that journals stay short enough to be compared
            except (Deposed, NoProof, JournalFailed):
                pass
            except (AssertionError, OSError, AttributeError) as error:
                if node.is_running and node.replica is replica:  # else it was killed under way
                    self.wrong.append(repr(error))
            if node.is_running and node.replica is replica:
                node.leave()

    def end(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(30)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("course", range(COURSES))
def test_what_is_confirmed_stays(tmp_path: Path, course: int) -> None:
    seed = SEED + course
    print(f"seed {seed}")
    chance = random.Random(seed)
    whole = SmallSet(tmp_path, chance.choice((3, 3, 5)), seed=seed)
    writing = Writing(whole)
    try:
        wait_until(lambda: writing.confirmed, "the first is confirmed", 20)
        for _ in range(chance.randint(4, 10)):
            time.sleep(chance.uniform(0.05, 1.0))
            node = chance.choice(whole.nodes)
            match chance.randrange(5):
                case 0:
                    whole.switch.isolate(node.name)
                case 1:
                    other = chance.choice(whole.nodes)
                    whole.switch.cut.add((node.name, other.name))
                case 2:
                    whole.switch.heal()
                case 3:
                    node.kill()
                case 4:
                    if not node.is_running:
                        node.start()
        whole.switch.heal()
        for node in whole.nodes:
            if not node.is_running:
                node.start()
        before = len(writing.confirmed)
        wait_until(lambda: len(writing.confirmed) > before + 5, "it goes on when all is well", 30)
        writing.is_quiet = True
        wait_until(
            lambda: all(set(writing.confirmed) <= set(node.content()) for node in whole.nodes), "all have it", 20
        )
        writing.end()
        assert not writing.wrong
        for node in whole.nodes:
            content = node.content()
            kept = [text for text in content if text in set(writing.confirmed)]
            assert len(content) == len(set(content)), "something is there twice"
            for name in {each.name for each in whole.nodes}:
                mine = [text for text in kept if text.startswith(f"{name}-")]
                assert mine == [text for text in writing.confirmed if text.startswith(f"{name}-")]
    except AssertionError:
        for node in whole.nodes:
            print(node.name, node.is_running, node.replica.status())
            content = set(node.content())
            lacking = [text[:20] for text in writing.confirmed if text not in content]
            print(len(lacking), "lacking", lacking[:3], lacking[-3:])
        raise
    finally:
        writing.end()
        whole.close()
