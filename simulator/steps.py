"""Steps in the life of a broker, down to the calls of its disk, and traps that spring there.

    starting -> standing by -> granted -> a promotion -> master -> handing over, or releasing -> starting

A promotion's steps are known from its reports ("fenced", "header") and from the disk calls of the promoting threads:
the link that is the fence, the write of the header, its sync, the fence check. A trap waits for the n-th call of a
step, or for the call that would end the step; if the step ends earlier, the trap springs at its end. So each step is
interrupted as often as it is chosen, whatever number of calls it has.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tandemmq.journal.files import file_id
from tandemmq.simulator.kernel import Process


class Step(Enum):
    """Step of a broker. ``value`` is shown in reports; ``calls_max``: about the number of disk calls in it."""

    STARTING = "starting", 20
    STANDBY = "standing by", 60
    GRANTED = "granted", 3  # the server granted the lock; the broker may not know it yet
    FENCING = "before the link", 12
    LINKED = "after the link", 6  # with several stores: between their fences
    READING = "before the header", 25
    WRITTEN = "before the header's sync", 1
    SYNCED = "before the fence check", 1
    FENCE_CHECKED = "after the fence check", 8  # repairs, rollbacks, the headers of other stores
    PROMOTED = "before serving", 2
    MASTER = "master", 80
    HANDOVER = "handing over", 12
    RELEASING = "releasing", 3

    calls_max: int

    def __new__(cls, shown: str, calls_max: int) -> Step:
        step = object.__new__(cls)
        step._value_ = shown
        step.calls_max = calls_max
        return step


#: The steps of a promotion, in order.
PROMOTION: Final = (
    Step.FENCING,
    Step.LINKED,
    Step.READING,
    Step.WRITTEN,
    Step.SYNCED,
    Step.FENCE_CHECKED,
    Step.PROMOTED,
)

_TOLD: Final = {
    "started": Step.STARTING,
    "rested": Step.STARTING,
    "lock-released": Step.STARTING,
    "standby": Step.STANDBY,
    "lock-taken": Step.FENCING,
    "fenced": Step.READING,
    "header": Step.PROMOTED,
    "master": Step.MASTER,
    "handover-asked": Step.HANDOVER,
    "lost": Step.RELEASING,
    "demoted": Step.RELEASING,
}

#: The call on a journal file that ends a step, and the step that follows.
_ENDED_BY: Final = {
    Step.FENCING: ("link", Step.LINKED),
    Step.READING: ("pwrite", Step.WRITTEN),
    Step.WRITTEN: ("fsync", Step.SYNCED),
    Step.SYNCED: ("stat", Step.FENCE_CHECKED),
}
#: For steps that no call ends: the call on a journal file at which a trap for the end springs.
_MET_BEFORE: Final = {Step.MASTER: "fsync", Step.HANDOVER: "fsync"}
_PROMOTING_THREADS: Final = ("tandemmq-life", "tandemmq-promoting")


@dataclass(slots=True, eq=False)
class Trap:
    """A trap. ``spring`` is called once: when one broker has made ``calls`` calls of ``step`` (None: at the call that
    ends it; 0: when it begins), or when the step ends earlier. It returns the errno for the call at which it springs.
    With ``verb`` it is called only before such a call on a journal file. ``met``: the only broker for which it springs;
    None: any broker."""

    step: Step
    calls: int | None
    spring: Callable[[Steps], int | None]
    met: Steps | None = None
    verb: str | None = None


class Traps:
    """Traps that wait."""

    def __init__(self) -> None:
        self._waiting: list[Trap] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def set(self, trap: Trap) -> None:
        self._waiting.append(trap)

    def clear(self) -> None:
        self._waiting = []

    def call(self, steps: Steps, verb: str) -> int | None:
        """Count a call in the present step of ``steps``."""
        for trap in self._waiting:
            if trap.step is steps.step and trap.met in (None, steps):
                if trap.verb is not None:
                    if trap.verb == verb:
                        return self._spring(trap, steps)
                    continue
                trap.met = steps
                if trap.calls is None:
                    if steps.is_the_end(verb):
                        return self._spring(trap, steps)
                elif trap.calls > 1:
                    trap.calls -= 1
                else:
                    return self._spring(trap, steps)
        return None

    def moved(self, steps: Steps, left: Step | None) -> int | None:
        """Spring the trap that is due at the change from one step to the next."""
        for trap in self._waiting:
            is_due = trap.step is left or (trap.step is steps.step and trap.calls == 0)
            if is_due and trap.verb is None and trap.met in (None, steps):
                return self._spring(trap, steps)
        return None

    def died(self, steps: Steps) -> None:
        """Note the end of a process; a trap that waited for it waits for any broker again."""
        for trap in self._waiting:
            if trap.met is steps:
                trap.met = None

    def _spring(self, trap: Trap, steps: Steps) -> int | None:
        self._waiting.remove(trap)
        return trap.spring(steps)


@dataclass(eq=False)
class Steps:
    """Steps of one life of one broker. ``step`` is None until its first report. ``on_batch`` is called with each batch
    that it writes into a journal file, ``on_fence`` right before it makes a fence, ``on_link`` with the path of each
    journal file that it linked. ``target``: the name that it requested last."""

    process: Process
    _traps: Traps
    _on_batch: Callable[[bytes], object] = lambda data: None
    _on_fence: Callable[[], object] = lambda: None
    _on_link: Callable[[str], object] = lambda path: None

    def __post_init__(self) -> None:
        self.step: Step | None = None
        self.target = ""
        self._ending: tuple[str, Step] | None = None  # the call that ends the step, and the step that follows
        self._errno: int | None = None  # of the next call

    def notified(self, kind: str) -> None:
        """Note a report of the broker (broker.ha.mastership's record)."""
        step = _TOLD.get(kind)
        if step is not None and not (step is Step.READING and self.step not in (Step.FENCING, Step.LINKED)):
            self._move(step)

    def _move(self, step: Step) -> None:
        left, self.step = self.step, step
        self._ending = _ENDED_BY.get(step)
        if self._traps and left is not step:
            self._errno = self._traps.moved(self, left)

    def is_the_end(self, verb: str) -> bool:
        """Return whether such a call on a journal file ends the step, or comes before a promise in it."""
        if self.step in _MET_BEFORE:
            return verb == _MET_BEFORE[self.step]
        return self._ending is not None and self._ending[0] == verb

    # ---- at the disk calls of a process, on the thread that makes them

    def before(self, verb: str, path: str) -> int | None:
        """Return the errno with which the call must fail; None: it may succeed."""
        if verb == "link":
            self.target = path
            if self.step in (Step.FENCING, Step.LINKED) and self._is_promoting():
                self._on_fence()
        if not self._traps and self._errno is None:
            return None
        if self.step in PROMOTION and not self._is_promoting():
            return None
        number, self._errno = self._errno, None
        if number is None and self._traps:
            number = self._traps.call(self, verb if _is_journal(path) else "")
        return number

    def after(self, verb: str, path: str) -> None:
        """Note an answered call."""
        ending = self._ending
        if ending is not None and ending[0] == verb and _is_journal(path) and self._is_promoting():
            self._move(ending[1])

    def linked(self, path: str) -> None:
        """Note, at the server, that the file has its name now, whether the process gets the answer or not."""
        if _is_journal(path):
            self._on_link(path)

    def granted(self) -> None:
        """Note that the broker got the lock."""
        if self.step in (Step.STARTING, Step.STANDBY, None):
            self._move(Step.GRANTED)

    def wrote(self, path: str, data: bytes) -> None:
        """Note bytes that are in the file now, for this process."""
        if _is_journal(path):
            self._on_batch(data)

    def _is_promoting(self) -> bool:
        return self.process.running().name.startswith(_PROMOTING_THREADS)


def _is_journal(path: str) -> bool:
    return file_id(posixpath.basename(path)) is not None
