"""Brokers that link a journal file late: into the gap that another broker's reclaiming left.

    a broker    prepares a file, lists the files, sleeps right before its link(2) of db-k       the late linker
    others      make db-k, continue with further files and reclaim db-k; two may have the lock at a time
    perhaps     a broker whose own file was db-k sleeps since: in its promotion, or as master   the owner
    the linker  wakes up when the name is free: its link succeeds                               the late link
    the owner   wakes up and finds a file with the name of its own; clients connect to it

The late linker is a promotion, or a rotation. It is stopped (SIGSTOP), its machine sleeps, or its volume hangs with
the link under way.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Final

from tandemmq.journal.files import file_id
from tandemmq.simulator.faults import Faults
from tandemmq.simulator.node import Node
from tandemmq.simulator.server import Server
from tandemmq.simulator.steps import PROMOTION, Step, Steps, Trap

LATE_LINK: Final = "late-link"
#: Share of the late linkers that rotate; the others are promoted.
ROTATION_SHARE: Final = 0.2
#: Share of the cases in which the owner of the file sleeps meanwhile.
OWNER_SHARE: Final = 0.75
#: Share of these owners that create the file in a promotion; the others create it in a rotation.
PROMOTED_OWNER_SHARE: Final = 0.5
#: Steps at which the owner falls asleep: a promotion past its link, or a master.
OWNER_SLEEPS_AT: Final = (*PROMOTION[2:], *(Step.MASTER,) * len(PROMOTION[2:]))
OWNER_CALLS: Final = (0, 6)
#: A rotation takes some calls; then batches are written into the file.
ROTATED_OWNER_CALLS: Final = (8, 24)
WATCH_SECONDS: Final = 0.05
#: Time without a broker that serves clients after which one more broker gets the lock.
MASTERLESS_SECONDS: Final = 0.2
#: Time within which the gap must come, or all brokers wake up.
GAP_SECONDS_MAX: Final = 15.0
WAKES_SECONDS_MAX: Final = 0.5
#: Share of the cases in which clients are cut off from the master when the owner wakes up: they connect to the owner,
#: if it accepts them.
CUT_SHARE: Final = 0.7
#: Time within which the owner's use of its file shows.
OWNER_SECONDS_MAX: Final = 10.0

Wake = Callable[[], None]


def is_below_others(server: Server, path: str) -> bool:
    """Return whether a journal file with a higher number is beside this one: no broker that listed the files just now
    takes such a name."""
    number = file_id(posixpath.basename(path))
    names = server.listdir(posixpath.dirname(path))
    return number is not None and any((other := file_id(name)) is not None and other > number for name in names)


def lock_twice(faults: Faults) -> None:
    """Give the lock to one more broker, once."""
    faults.site.is_lock_harmed = True
    faults.site.grants.left += 1
    faults.for_a_while("lock-twice", "the lock is granted to one more", faults.site.grants.end)


def late_link(faults: Faults) -> None:
    """Make a late link (see the top of this file). One at a time."""
    if faults.site.on_link is None:
        _LateLink(faults)


class _LateLink:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._site = faults.site
        self._world = faults.world
        chance = faults.world.random
        self._rotates = chance.random() < ROTATION_SHARE
        self._wants_owner = chance.random() < OWNER_SHARE
        self._linker: Node | None = None
        self._linker_process: object = None
        self._path = ""
        self._owner: Steps | None = None
        self._owner_slept = "no broker"
        self._wake_linker: Wake | None = None
        self._wake_owner: Wake | None = None
        self._cut: list[Node] = []
        self._is_over = False
        self._ends_at = 0.0
        self._masterless_since = self._world.now
        self._site.on_link = self._linked
        self._site.is_lock_harmed = True
        self._end = faults.until_mended(self._ended)
        self._site.traps.set(Trap(Step.MASTER if self._rotates else Step.FENCING, None, self._meets, verb="link"))
        if not self._rotates:
            self._site.grants.left += 1  # a master keeps running meanwhile

    def _ended(self) -> None:
        self._is_over = True
        self._site.on_link = None
        self._site.grants.end()
        for node in self._cut:
            node.become_reachable()
        for wake in (self._wake_linker, self._wake_owner):
            if wake is not None:
                wake()

    # ---- the late linker

    def _meets(self, met: Steps) -> None:
        """Stop the broker whose next call is the link."""
        node = self._site.node_of(met)
        self._linker, self._linker_process, self._path = node, met.process, met.target
        what = "rotation" if self._rotates else "promotion"
        self._faults.happened(LATE_LINK, f"{node.name} sleeps in a {what} before it links {self._name}")
        self._ends_at = self._world.now + GAP_SECONDS_MAX
        self._world.after(0.0, self._falls_asleep)
        thread = self._world.current
        if thread is not None and thread.may_wait:
            met.process.sleep(0.0)

    def _falls_asleep(self) -> None:
        assert self._linker is not None, "it was met"
        if not self._faults.is_over:
            self._wake_linker = self._sleep(self._linker)
            if self._wants_owner and self._world.random.random() < PROMOTED_OWNER_SHARE:
                self._site.grants.left += 1
            self._watch()

    def _sleep(self, node: Node) -> Wake:
        ways = [self._faults.pause, self._faults.freeze]
        if len({each.host for each in self._site.nodes}) > 1:
            ways.append(self._faults.hang_volume)
        return self._world.random.choice(ways)(node)

    # ---- the owner

    def _linked(self, node: Node, path: str, is_late: bool) -> None:
        """Note a file that got its name."""
        if path != self._path or node is self._linker or node.steps is None:
            if path == self._path and is_late and self._wake_linker is not None:
                self._has_linked_late()
            return
        if self._wants_owner and self._owner is None:
            self._owner = node.steps
            chance = self._world.random
            is_promoted = node.steps.step in PROMOTION
            step = chance.choice(OWNER_SLEEPS_AT) if is_promoted else Step.MASTER
            calls = chance.randint(*(OWNER_CALLS if is_promoted else ROTATED_OWNER_CALLS))
            self._site.traps.set(Trap(step, calls, self._meets_owner, met=node.steps))

    def _meets_owner(self, met: Steps) -> None:
        node = self._site.node_of(met)

        def fall_asleep() -> None:
            if not self._faults.is_over and node.steps is met:
                self._owner_slept = f"{'a promotion' if met.step in PROMOTION else 'a master'} slept in that file"
                self._site.tell(f"{node.name}, {met.step and met.step.value}, sleeps in {self._name}")
                self._wake_owner = self._sleep(node)
                node.lose_clients()

        self._world.after(0.0, fall_asleep)
        thread = self._world.current
        if thread is not None and thread.process is met.process and thread.may_wait:
            met.process.sleep(0.0)

    # ---- meanwhile

    def _watch(self) -> None:
        now = self._world.now
        if self._faults.is_over or self._site.on_link != self._linked:
            return
        assert self._linker is not None, "it was met"
        if self._linker.process is not self._linker_process or now > self._ends_at:
            self._end()
            return
        if not self._is_served:
            if now - self._masterless_since > MASTERLESS_SECONDS:
                self._site.grants.left = 1
                self._masterless_since = now
        else:
            self._masterless_since = now
        if self._is_gap and self._wake_linker is not None:
            delay = WAKES_SECONDS_MAX * self._world.random.random()
            self._world.after(delay, self._wake_linker)
            self._ends_at = min(self._ends_at, now + delay + 5.0)
        self._world.after(WATCH_SECONDS, self._watch)

    @property
    def _is_served(self) -> bool:
        return any(node.is_master and node.process and not node.process.is_paused for node in self._site.nodes)

    @property
    def _is_gap(self) -> bool:
        """Return whether the name is free again, and the next name, too, which an owner checks first."""
        server = self._site.server
        there = {file_id(name) for name in server.listdir(posixpath.dirname(self._path))}
        number = file_id(self._name)
        assert number is not None, "a link gives a name to a journal file"
        is_next_there = self._owner is not None and number + 1 in there
        return number not in there and not is_next_there and is_below_others(server, self._path)

    def _has_linked_late(self) -> None:
        self._site.tally.add("late links by a fault", self._owner_slept)
        self._faults.happened(LATE_LINK, f"{self._name} is linked late; {self._owner_slept}")
        self._world.after(WAKES_SECONDS_MAX * self._world.random.random(), self._wake_up)

    def _wake_up(self) -> None:
        """Wake up the owner: then both it and the master can prove that they have the lock."""
        if self._is_over:
            return
        if self._wake_owner is None:
            self._end()
            return
        if self._world.random.random() < CUT_SHARE:
            for node in self._site.nodes:
                if node.is_master and node.steps is not self._owner:
                    node.is_reachable = False
                    node.lose_clients()
                    self._cut.append(node)
        self._wake_owner()
        self._ends_at = self._world.now + OWNER_SECONDS_MAX
        self._world.after(WAKES_SECONDS_MAX, self._look_after_owner)

    def _look_after_owner(self) -> None:
        owner = next((node for node in self._site.nodes if node.steps is self._owner), None)
        step = None if owner is None or owner.steps is None else owner.steps.step
        if step not in (*PROMOTION, Step.MASTER) or self._world.now > self._ends_at:
            self._end()
        else:
            self._world.after(WAKES_SECONDS_MAX, self._look_after_owner)

    @property
    def _name(self) -> str:
        return posixpath.basename(self._path)
