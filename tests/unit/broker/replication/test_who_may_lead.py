"""What broke the first draft of the protocol, as far as it needs no processes: a story each.

Those that do stand in tests/acceptance/test_replicated_stories.py.
"""

from __future__ import annotations

import pytest

from tandemmq.broker.replication.promise import FILE_NAME
from tests.support.replication.small_set import NewSet, SmallNode, SmallSet, T

pytestmark = pytest.mark.promise("set-has-one-master")


def nobody_is_elected(three: SmallSet, *nodes: SmallNode) -> bool:
    """Though all of them want to be, for a while."""
    until = three.threads.monotonic() + 4 * T
    while three.threads.monotonic() < until:
        if any(node.replica.try_acquire() for node in nodes):
            return False
        three.threads.sleep(0.02)
    return True


@pytest.mark.parametrize("what", ["disk", "promise"])
def test_who_lost_what_it_had_elects_nobody(three: SmallSet, what: str) -> None:
    """b is on A and B. B loses its disk, or its promise; A is away. C, which lacks b, must not lead by B's vote."""
    a = three.elect()
    b, c = three.others(a)
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
    assert nobody_is_elected(three, b, c)
    a.leave()
    three.switch.heal()
    again = three.elect(a, c)
    again.write("after")
    three.until_same()
    assert again.content() == ["before", "b", "after"]


@pytest.mark.parametrize("is_both_ways", [True, False])
def test_who_does_not_hear_the_master_disturbs_nobody(three: SmallSet, is_both_ways: bool) -> None:
    """C reaches B, and A reaches B. C would stand, and is as far as B; B hears a master with a quorum, and says no."""
    a = three.elect()
    _, c = three.others(a)
    a.write("before")
    three.until_same()
    epoch = a.epoch
    three.switch.cut.add((a.name, c.name))
    if is_both_ways:
        three.switch.cut.add((c.name, a.name))
    number = 0

    def has_asked() -> bool:
        nonlocal number
        number += 1
        a.write(f"m{number}")
        assert not c.replica.try_acquire()
        return c.replica.candidate.rounds >= 3

    three.until(has_asked, "it asked three times")
    assert (a.epoch, a.replica.is_ours) == (epoch, True)
    three.switch.heal()
    three.until_same()
    a.write("after")


def test_of_equals_the_heavier_leads_and_no_weight_blocks(make: NewSet) -> None:
    whole = make()
    first = whole.elect()
    first.write("a")
    whole.until_same()
    light, heavy = whole.others(first)
    heavy.stop()
    heavy.weight = 10
    heavy.start()
    whole.until(lambda: heavy.replica.status()["master"], "it follows")
    for node in (light, heavy):
        node.replica.try_acquire()  # from now on each would be master
    first.stop()
    second = whole.elect(light, heavy)
    assert second is heavy
    second.write("b")
    whole.until_same(light, heavy)
    # The heavier one is there, and is not wanted: the lighter one leads.
    heavy.leave()
    whole.elect(light).write("c")
