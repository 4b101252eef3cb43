"""What broke the first draft of the protocol, as far as it needs no processes: a story each.

Those that do stand in tests/acceptance/test_replicated_stories.py.
"""

from __future__ import annotations

import pytest

from tandemmq.broker.replication.promise import FILE_NAME
from tests.support.replication.small_set import SmallNode, SmallSet, T

pytestmark = pytest.mark.promise("set-has-one-master")


def nobody_is_elected(whole: SmallSet, *nodes: SmallNode) -> bool:
    """Though all of them want to be, for a while."""
    until = whole.threads.monotonic() + 4 * T
    while whole.threads.monotonic() < until:
        if any(node.replica.try_acquire() for node in nodes):
            return False
        whole.threads.sleep(0.02)
    return True


@pytest.mark.parametrize("what", ["disk", "promise"])
def test_who_lost_what_it_had_elects_nobody(whole: SmallSet, what: str) -> None:
    """b is on A and B. B loses its disk, or its promise; A is away. C, which lacks b, must not lead by B's vote."""
    a = whole.elect()
    b, c = whole.others(a)
    a.write("before")
    whole.switch.isolate(c.name)
    a.write("b")
    b.stop()
    for path in b.directory.iterdir():
        if what == "disk" or path.name == FILE_NAME:
            path.unlink()
    whole.switch.isolate(a.name)
    whole.switch.cut -= {pair for pair in whole.switch.cut if a.name not in pair}
    b.start()
    assert nobody_is_elected(whole, b, c)
    a.leave()
    whole.switch.heal()
    again = whole.elect(a, c)
    again.write("after")
    whole.until_same()
    assert again.content() == ["before", "b", "after"]


@pytest.mark.parametrize("is_both_ways", [True, False])
def test_who_does_not_hear_the_master_disturbs_nobody(whole: SmallSet, is_both_ways: bool) -> None:
    """C reaches B, and A reaches B. C would stand, and is as far as B; B hears a master with a quorum, and says no."""
    a = whole.elect()
    _, c = whole.others(a)
    a.write("before")
    whole.until_same()
    epoch = a.epoch
    whole.switch.cut.add((a.name, c.name))
    if is_both_ways:
        whole.switch.cut.add((c.name, a.name))
    number, before = 0, c.replica.candidate.rounds

    def has_asked() -> bool:
        nonlocal number
        number += 1
        a.write(f"m{number}")
        assert not c.replica.try_acquire()
        return c.replica.candidate.rounds >= before + 3

    whole.until(has_asked, "it asked three times")
    assert (a.epoch, a.replica.is_ours) == (epoch, True)
    whole.switch.heal()
    whole.until_same()
    a.write("after")


def test_of_equals_the_heavier_leads_and_no_weight_blocks(whole: SmallSet) -> None:
    first = whole.begun()
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
