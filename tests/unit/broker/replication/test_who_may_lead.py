"""What broke the first draft of the protocol, as far as it needs no processes: a story each.

Those that do stand in tests/acceptance/test_replicated_stories.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.broker.replication.promise import FILE_NAME
from tests.support.acceptance.broker_process import wait_until
from tests.support.replication.small_set import SmallNode, SmallSet, T

pytestmark = pytest.mark.promise("set-has-one-master")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[SmallSet]:
    made = SmallSet(tmp_path)
    yield made
    made.close()


def others(whole: SmallSet, node: SmallNode) -> list[SmallNode]:
    return [each for each in whole.nodes if each is not node]


def nobody_is_elected(*nodes: SmallNode) -> bool:
    """Though all of them want to be, for a while."""
    until = time.monotonic() + 4 * T
    while time.monotonic() < until:
        if any(node.replica.try_acquire() for node in nodes):
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("what", ["disk", "promise"])
def test_who_lost_what_it_had_elects_nobody(three: SmallSet, what: str) -> None:
    """b is on A and B. B loses its disk, or its promise; A is away. C, which lacks b, must not lead by B's vote."""
    a = three.elect()
    b, c = others(three, a)
    a.write("before")
    three.switch.isolate(c.name)
    a.write("b")
    b.stop()
    for path in b.directory.iterdir():
        if what == "disk" or path.name == FILE_NAME:
            path.unlink()
    three.switch.isolate(a.name)
    three.switch.cut -= {pair for pair in three.switch.cut if a.name not in pair}
    b.start()
    assert nobody_is_elected(b, c)
    a.leave()
    three.switch.heal()
    again = three.elect(a, c)
    again.write("after")
    wait_until(three.is_same(), "all have the same", 20)
    assert again.content() == ["before", "b", "after"]


@pytest.mark.parametrize("is_both_ways", [True, False])
def test_who_does_not_hear_the_master_disturbs_nobody(three: SmallSet, is_both_ways: bool) -> None:
    """C reaches B, and A reaches B. C would stand, and is as far as B; B hears a master with a quorum, and says no."""
    a = three.elect()
    _, c = others(three, a)
    a.write("before")
    wait_until(three.is_same(), "all have the same", 20)
    epoch = a.epoch
    three.switch.cut.add((a.name, c.name))
    if is_both_ways:
        three.switch.cut.add((c.name, a.name))
    until = time.monotonic() + 4 * T
    while time.monotonic() < until:
        assert not c.replica.try_acquire()
        time.sleep(0.02)
    assert (a.epoch, a.replica.is_ours) == (epoch, True)
    three.switch.heal()
    wait_until(three.is_same(), "C follows again", 20)
    a.write("after")


def test_of_equals_the_heavier_leads_and_no_weight_blocks(tmp_path: Path) -> None:
    whole = SmallSet(tmp_path, 3)
    try:
        first = whole.elect()
        first.write("a")
        wait_until(whole.is_same(), "all have the same", 20)
        light, heavy = others(whole, first)
        heavy.stop()
        heavy._weight = 10
        heavy.start()
        wait_until(lambda: heavy.replica.status()["master"], "it follows", 20)
        for node in (light, heavy):
            node.replica.try_acquire()  # from now on each would be master
        first.stop()
        second = whole.elect(light, heavy)
        assert second is heavy
        second.write("b")
        wait_until(whole.is_same(light, heavy), "both have it", 20)
        # The heavier one is there, and is not wanted: the lighter one leads.
        heavy.leave()
        whole.elect(light).write("c")
    finally:
        whole.close()
