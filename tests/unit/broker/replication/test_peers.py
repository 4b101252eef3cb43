"""Two directories with one store id, as a third member sees them; and a real set with a copy of one disk."""

# proves: twins, twins-are-refused

from __future__ import annotations

import shutil

import pytest

from tandemmq.broker.replication.messages import Hello
from tandemmq.broker.replication.network import Member
from tandemmq.broker.replication.peers import SILENT_SECONDS, TWIN_SECONDS, Twins
from tandemmq.store.membership import PROMISE_FILE
from tests.support.replication.noted_link import NotedLink
from tests.support.replication.small_set import SmallSet
from tests.support.virtual_time import HandClock

pytestmark = pytest.mark.promise("set-has-one-master")

STORE = "5" * 32
HELLOS = {
    "a": Hello("set", None, "a", STORE, 1, "one:1", ""),
    "b": Hello("set", None, "b", STORE, 2, "two:1", ""),
    "same life": Hello("set", None, "c", STORE, 1, "three:1", ""),
    "a again": Hello("set", None, "a", STORE, 3, "one:1", ""),
}
S, E = TWIN_SECONDS, 0.5


class Witness:
    """Member that watches handshakes. ``come``: a node completes a handshake, and has a link if it is admitted. A node
    whose link was closed does not return by itself."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.twins = Twins(self.clock.monotonic)
        self.links: dict[str, NotedLink] = {}

    def come(self, name: str) -> bool:
        hello = HELLOS[name]
        self.twins.heard(hello)
        refusal = self.twins.refusal(STORE)
        for other in [each for each, link in self.links.items() if link.closed]:
            self.go(other)
        if refusal is not None:
            return False
        self.links[name] = link = NotedLink()
        link.member = Member(hello.store, hello.node, hello.life, hello.set, hello.address)
        self.twins.link_up(link)
        return True

    def go(self, name: str) -> None:
        self.twins.link_down(self.links.pop(name))


# Seconds, and who comes then, or goes ("-"); whether the last one to come is let in.
STORIES = {
    "started again, the old link half open": ([(0, "a"), (9, "b"), (20, "-a"), (30, "b")], True),
    "started again, a last handshake late": ([(0, "a"), (9, "b"), (9 + S - E, "a"), (30, "b")], True),
    "an older copy comes when the newer one is gone": ([(0, "b"), (9, "-b"), (10, "a"), (20, "a")], True),
    "both": ([(0, "a"), (9, "b"), (9 + S + E, "a")], False),
    "both, by turns": ([(0, "a"), (1, "b"), (2, "a"), (3, "b"), (1 + S + E, "a"), (2 + S + E, "b")], False),
    "both in one life": ([(0, "a"), (9, "same life"), (9 + S + E, "a")], False),
    "one of them is gone": ([(0, "a"), (9, "b"), (20, "a"), (21, "b"), (20 + SILENT_SECONDS + E, "b")], True),
    "a known one starts again": ([(0, "a"), (9, "b"), (20, "a"), (19 + SILENT_SECONDS, "a again")], False),
    "a known one starts again when the other one is gone": (
        [(0, "a"), (9, "b"), (20, "a"), (20 + SILENT_SECONDS + E, "a again")],
        True,
    ),
    "one of them is not gone for long": ([(0, "a"), (9, "b"), (20, "a"), (20 + SILENT_SECONDS - E, "b")], False),
}


@pytest.mark.parametrize("story", STORIES)
def test_two_processes_of_one_store_are_refused_when_both_live(story: str) -> None:
    events, expected = STORIES[story]
    witness, is_let_in = Witness(), None
    for at, name in events:
        witness.clock.now = 100.0 + at
        if name.startswith("-"):
            witness.go(name[1:])
        else:
            is_let_in = witness.come(name)
    assert is_let_in is expected
    assert bool(witness.twins.problem) is not expected
    assert bool(witness.links) is expected, "nobody keeps a link"


def test_a_linked_process_must_be_heard_again_after_another_of_its_store() -> None:
    witness = Witness()
    witness.come("same life")
    witness.clock.now += 1.0
    witness.go("same life")  # a process that has ended, and is not reported as one of two
    witness.come("b")
    for seconds, is_hung_up in ((1.0, False), (S - E, False), (2 * E, True)):
        witness.clock.now += seconds
        witness.come("a")
        assert ("b" not in witness.links) is is_hung_up
    assert not witness.come("b")
    assert "two nodes, a at one:1 and b at two:1" in witness.twins.problem
    witness.clock.now += SILENT_SECONDS
    assert not witness.twins.problem


def test_of_a_cloned_disk_no_copy_is_let_in_until_one_is_stopped(whole: SmallSet) -> None:
    """The copy starts beside the first node, under another name and at another address."""
    master = whole.begun()
    cloned, other = whole.others(master)
    shutil.copytree(cloned.directory, whole.path / "clone")
    clone = whole.add("clone")
    assert clone.replica.state.store == cloned.replica.state.store
    for witness in (master, other):
        whole.until(lambda: witness.replica.status()["twins"], "it is seen")  # noqa: B023

    def is_linked() -> bool:
        return any(witness.replica.has_link_to(clone.replica.state.store) for witness in (master, other))

    whole.until(lambda: not is_linked(), "neither is linked")
    for _ in range(200):
        assert not is_linked()
        whole.threads.sleep(0.02)
    master.write("b")
    clone.stop()
    cloned.stop()
    (cloned.directory / PROMISE_FILE).unlink()
    cloned.start()
    whole.until_same(master, cloned)
    whole.until(lambda: not master.replica.status()["twins"], "it is over")


# proves: an-unknown-old-life-is-no-twin
def test_an_old_copy_that_starts_beside_a_set_takes_nobodys_links(whole: SmallSet) -> None:
    """A backup that was put back for a drill, and reaches the set: the others have seen a later life."""
    master = whole.begun()
    follower = whole.others(master)[0]
    for turn in range(3):
        follower.stop()
        if not turn:
            shutil.copytree(follower.directory, whole.path / "copy")
        follower.start()
        whole.until(lambda: follower.replica.has_link_to(master.replica.state.store), "it is heard")
        whole.until_same(master, follower)
    whole.until(lambda: master.replica.has_link_to(follower.replica.state.store), "it is dialed again")
    whole.add("copy")
    for _ in range(int(3 * TWIN_SECONDS)):
        whole.threads.sleep(1.0)
        assert master.replica.has_link_to(follower.replica.state.store)
        assert not master.replica.status()["twins"]
