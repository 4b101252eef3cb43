"""Faults that wait for a step: promotions that fail, and volumes and locks that hang from a moment on.

promotion   The master goes: asleep, killed, hung, or by a handover. Of the promotions that follow, up to three in a row
            meet a fault at a random step: they die, with or without their host, fail, sleep or hang. So the
            second and the third may fail while the first master still sleeps, and it wakes up later.
hang        A host's volume, or its lock server, hangs from a step on: while it stands by, when it was just
            granted the lock, at each step of a promotion, as master, while it hands over or releases.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tandemmq.simulator.faults import Faults
from tandemmq.simulator.node import Node
from tandemmq.simulator.steps import PROMOTION, Step, Steps, Trap

#: Numbers of failing promotions in a row.
IN_A_ROW: Final = (1, 1, 2, 2, 3)
#: Part of the faults at the call that ends a step, and at its beginning; the others come at a call between.
AT_END_SHARE: Final = 0.3
AT_BEGIN_SHARE: Final = 0.15
#: A request under way when something happens to its process still arrives: part of the faults at such a moment.
UNDER_WAY_SHARE: Final = 0.3
UNDER_WAY_SECONDS: Final = 0.001
#: Time for which a sleeping broker sleeps longer than the promotions that fail meanwhile.
OVERSLEPT_SECONDS_MAX: Final = 12.0
#: Part of the hangs that end with the calm; the others end after a while.
UNTIL_CALM_SHARE: Final = 0.4
#: Time until the master goes after a trap was set.
GOES_SECONDS_MAX: Final = 1.0
#: Part of the cases in which a handover is requested while another fault is under way.
HANDOVER_SHARE: Final = 0.2

HOWS: Final = ("killed", "killed", "fails", "fails", "stopped", "frozen", "hangs", "its host", "power")
UNSYNCED: Final = "killed at its sync"
GOES: Final = ("frozen", "frozen", "frozen", "killed", "hangs", "handover", UNSYNCED)
#: Part of the cases in which everything loses power, so that what a master wrote and did not sync matters.
POWER_SHARE: Final = 0.5
GOES_AND_COMES: Final = ("killed", "handover")
#: Steps at which a hang may begin; those of a promotion as often as all others.
HANGS_AT: Final = (
    *(Step.STARTING, Step.STANDBY, Step.STANDBY, Step.GRANTED, Step.GRANTED, Step.GRANTED),
    *(Step.MASTER, Step.MASTER, Step.HANDOVER, Step.HANDOVER, Step.RELEASING),
    *PROMOTION,
)
VOLUME: Final = "volume"
LOCK_SERVER: Final = "lock server"
HANGING: Final = (VOLUME, LOCK_SERVER)


def promotion(faults: Faults) -> None:
    """Make the master go; up to three promotions after it meet a fault."""
    chance = faults.world.random
    goes = chance.choice(GOES)
    hows = [chance.choice(HOWS) for _ in range(chance.choice(IN_A_ROW))]
    steps = [chance.choice(PROMOTION) for _ in hows]
    if goes == UNSYNCED and chance.random() < POWER_SHARE:  # when its writes count
        hows, steps = ["power"], [chance.choice((Step.SYNCED, Step.FENCE_CHECKED, Step.PROMOTED))]
    wakes: list[Callable[[], None]] = []

    def set_next() -> None:
        if faults.is_over:
            return
        if not hows:
            for wake in wakes:
                faults.world.after(OVERSLEPT_SECONDS_MAX * chance.random(), wake)
            return
        how, step = hows.pop(), steps.pop()
        faults.site.traps.set(Trap(step, some_calls(faults, step), partial(strike, how=how, step=step)))

    def strike(met: Steps, how: str, step: Step) -> int | None:
        node = faults.site.node_of(met)
        faults.site.tally.add("promotion steps", f"{step.value}: {how}")
        faults.happened("promotion", f"{node.name}, {step.value}: {how}")
        if chance.random() < HANDOVER_SHARE:
            _ask_for_handover(faults)
        set_next()
        if how == "fails":
            return chance.choice((errno.EIO, errno.EIO, errno.ESTALE, errno.ENOSPC))
        _soon(faults, met, lambda: _do(faults, node, how))
        return None

    set_next()
    faults.world.after(GOES_SECONDS_MAX * chance.random(), lambda: make_room(faults, goes, wakes))


def hang(faults: Faults) -> None:
    """Hang a volume or a lock server for one broker, at a random step."""
    chance = faults.world.random
    seconds = None if chance.random() < UNTIL_CALM_SHARE else faults.some_seconds()
    set_hang(faults, chance.choice(HANGING), chance.choice(HANGS_AT), seconds)


def set_hang(
    faults: Faults,
    what: str,
    step: Step,
    seconds: float | None,
    *,
    goes: Sequence[str] = (*GOES_AND_COMES, "killed", "frozen"),
    on_hang: Callable[[Node], None] = lambda node: None,
) -> None:
    """Hang ``what`` for the next broker at that step, for ``seconds`` (None: until all faults end), and make a broker
    reach the step: ``goes`` are the ways to remove a master for that. ``on_hang`` is called with the hanging node."""
    chance = faults.world.random

    def spring(met: Steps) -> None:
        node = faults.site.node_of(met)

        def begin() -> None:
            if node.process is not met.process:
                return
            on_hang(node)
            mend = (faults.hang_volume if what == VOLUME else faults.hang_lock_server)(node)
            faults.site.tally.add("hangs", f"{step.value}: {what}")
            until = "until the calm" if seconds is None else f"for {seconds:.2f} s"
            faults.happened("hang", f"the {what} hangs for {node.name}, {step.value}, {until}")
            if seconds is not None:
                faults.world.after(seconds, mend)
            if step is Step.STANDBY:  # so that a hanging broker may get the lock
                go_soon(chance.choice(goes))
            elif chance.random() < HANDOVER_SHARE:
                _ask_for_handover(faults)

        _soon(faults, met, begin)

    def go_soon(how: str) -> None:
        faults.world.after(GOES_SECONDS_MAX * chance.random(), lambda: make_room(faults, how, []))

    faults.site.traps.set(Trap(step, some_calls(faults, step), spring))
    if step in (Step.STARTING, Step.RELEASING):
        faults.world.after(GOES_SECONDS_MAX * chance.random(), lambda: _disturb(faults))
    elif step is Step.HANDOVER:
        go_soon("handover")
    elif step in (Step.GRANTED, *PROMOTION):
        go_soon(chance.choice(goes))


def some_calls(faults: Faults, step: Step) -> int | None:
    """Return the call of a step at which a fault comes."""
    at = faults.world.random.random()
    if at < AT_END_SHARE:
        return None
    return 0 if at < AT_END_SHARE + AT_BEGIN_SHARE else faults.world.random.randint(1, step.calls_max)


def make_room(faults: Faults, how: str, wakes: list[Callable[[], None]]) -> None:
    """Make the master go, so that another broker is promoted; ``wakes`` gets the function that wakes a sleeping
    master."""
    master = next((node for node in faults.site.nodes if node.is_master), None)
    if master is None or faults.is_over:
        return
    faults.site.tally.add("masters that went", how)
    faults.site.tell(f"the master {master.name}: {how}")
    if how == UNSYNCED:

        def spring(met: Steps) -> None:
            node = faults.site.node_of(met)
            _soon(faults, met, lambda: faults.kill_node(node))

        faults.site.traps.set(Trap(Step.MASTER, None, spring))
    elif how == "handover":
        master.hand_over()
    elif how == "frozen":
        wakes.append(faults.freeze(master))
    elif how == "hangs":
        wakes.append(faults.hang_volume(master))
    else:
        faults.kill_node(master)


def _do(faults: Faults, node: Node, how: str) -> None:
    if how == "killed":
        faults.kill_node(node)
    elif how == "its host":
        faults.kill_host(node)
    elif how == "power":
        faults.lose_power()
    else:
        act = {"stopped": faults.pause, "frozen": faults.freeze, "hangs": faults.hang_volume}[how]
        faults.world.after(faults.some_seconds(), act(node))


def _disturb(faults: Faults) -> None:
    """Make the master release and begin anew: its lock is taken away, or it is killed."""
    if faults.is_over:
        return
    if faults.world.random.random() < 0.5:
        make_room(faults, "killed", [])
        return
    faults.site.is_lock_harmed = True
    faults.site.tell("the lock is forgotten")
    faults.site.server.unlock_all(lambda _: True)
    faults.site.database.empty_row()


def _ask_for_handover(faults: Faults) -> None:
    master = next((node for node in faults.site.nodes if node.is_master), None)
    if master is not None and not faults.is_over:
        faults.happened("handover", f"{master.name} gets a request to hand over")
        master.hand_over()


def _soon(faults: Faults, met: Steps, act: Callable[[], None]) -> None:
    """Act now, before the thread at the step continues; or in a moment, while its request is under way."""
    world = faults.world
    process = met.process

    def act_on_the_living() -> None:
        if not process.is_dead and not faults.is_over:
            act()

    if world.random.random() < UNDER_WAY_SHARE:
        world.after(UNDER_WAY_SECONDS * world.random.random(), act_on_the_living)
        return
    world.after(0.0, act_on_the_living)
    thread = world.current
    if thread is not None and thread.process is process and thread.may_wait:
        process.sleep(0.0)
