"""What the tests of waits share: bounds that are reached soon, and what is to hold when one was."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandemmq.broker.ha.states import Phase, Role
from tandemmq.broker.ha.waits import BOUNDS, Bound, Wait
from tandemmq.journal.files import file_id
from tandemmq.locker.contract import LockRequest
from tandemmq.locker.memory import MemoryLock
from tests.support.ha.ha_node import STORE_SETTINGS
from tests.support.ha.ha_node import Node as AnyNode
from tests.support.ha.hanging import Gate, HangingLocker

SOON = 0.4
# Nothing is written that nobody asked for: who looks at the files sees what a call that came back did.
QUIET = replace(STORE_SETTINGS, checkpoint_interval=math.inf, cleanup_interval=math.inf)


class Node(AnyNode):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"store_settings": QUIET, **options})


def soon(*waits: Wait) -> dict[Wait, Bound]:
    """The bounds with these reached soon, and all others as they are; nobody lingers over a thread that is left."""
    bounds = dict(BOUNDS)
    for wait in (*waits, Wait.DROP):
        bound = BOUNDS[wait]
        bounds[wait] = replace(
            bound,
            seconds=None if bound.seconds is None else SOON,
            silence=None if bound.silence is None else (SOON, SOON),
        )
    return bounds


def locker_behind(gate: Gate) -> Callable[[LockRequest, MemoryLock], HangingLocker]:
    def make(request: LockRequest, lock: MemoryLock) -> HangingLocker:
        locker = HangingLocker(request, lock)
        locker.gate = gate
        return locker

    return make


def journal(directory: str) -> dict[str, str]:
    """What is shared, by name and content."""
    return {
        name: hashlib.sha256(Path(directory, name).read_bytes()).hexdigest()
        for name in os.listdir(directory)
        if file_id(name) is not None
    }


async def hit(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.is_hit.wait, 10), "a call hangs"


async def the_other_is_master_and_nothing_comes_of_it(
    directory: str, hung: Node, other: Node, wake: Callable[[], object], own: str | None = None
) -> None:
    """``hung`` let go of the lock, ``other`` has it; then the call comes back."""
    receipts = list(hung.receipts)
    await other.become(Role.MASTER)
    await other.send_and_wait()
    assert hung.receipts == receipts, "nobody is told anything after the lock was let go"
    before = journal(directory)
    wake()
    await hung.become(Role.STANDBY)
    after = journal(directory)
    if own is not None:  # the very call that hung is made: behind the end of the file, where nothing counts
        before[own] = after[own]
    assert after == before, "what came back writes nothing that is shared"
    assert hung.receipts == receipts
    await other.send_and_wait()
    await other.stop()
    await hung.become(Role.MASTER)  # the same process
    await hung.send_and_wait()
    await hung.stop()


def when_promoting(node: Node, function: Callable[[], object]) -> None:
    """Have it called when the lock is this one's, the first time."""
    tell, is_done = node.mastership._on_role, False

    def on_role(role: Role, reason: str) -> None:
        nonlocal is_done
        tell(role, reason)
        if node.mastership.phase is Phase.PROMOTING and not is_done:
            is_done = True
            function()

    node.mastership._on_role = on_role
