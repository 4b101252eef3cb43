"""A checkpoint that a follower writes a piece at a time, between two reads of the journal.

A promotion does not wait for an unfinished checkpoint: the unwritten part stays the frozen tail of the state, and the
new master's first checkpoint writes it (``abandon``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tandemmq.index.index import Index
from tandemmq.store.state.replay import Replay
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Frozen, Position, changes


@dataclass(eq=False, repr=False)
class StandingCheckpoint:
    """At most one checkpoint of ``state`` into ``index``; ``seconds`` is the time spent on all, by ``clock``. For the
    thread that owns the state, which at first equals the index. ``covered``: how far the index on disk goes."""

    _index: Index
    _state: State
    _replay: Replay
    _clock: Callable[[], float]
    seconds: float = field(default=0.0, init=False)
    covered: Position | None = field(init=False)
    _frozen: Frozen | None = field(default=None, init=False)
    _steps: Iterator[None] = field(default_factory=lambda: iter(()), init=False)

    def __post_init__(self) -> None:
        self.covered = self._state.position

    @property
    def is_under_way(self) -> bool:
        return self._frozen is not None

    def begin(self, first_of_epoch: Callable[[int], bool]) -> None:
        """Begin a checkpoint of the current state; no other one may be in progress. Reclaims nothing: only a master
        may."""
        self._frozen = frozen = self._state.freeze(first_of_epoch, 0)
        self._replay.freeze_ids()
        self._steps = self._index.checkpoint(changes(frozen), frozen.meta)

    def work(self, may_go_on: Callable[[], bool]) -> None:
        """Continue the checkpoint while ``may_go_on`` returns True; it is called before each step of about a
        millisecond. The checkpoint is durable when it is not in progress any more. Raises what the index raises."""
        started = self._clock()
        while self._frozen is not None and may_go_on():
            if next(self._steps, self) is self:
                self.covered = self._frozen.position
                self._frozen = None
                self._state.thaw()
                self._replay.forget_ids()
        self.seconds += self._clock() - started

    def finish(self) -> None:
        """Complete the checkpoint, if one is in progress."""
        self.work(lambda: True)

    def abandon(self) -> Frozen | None:
        """Stop the checkpoint that is in progress, if any; the index stays unchanged. Return what the next checkpoint
        must write first."""
        frozen, self._frozen = self._frozen, None
        self._steps = iter(())  # an abandoned checkpoint leaves the index as it was
        return frozen
