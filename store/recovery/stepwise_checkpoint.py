"""Checkpoint that a follower writes in steps, between two reads of the journal.

A promotion does not wait for an unfinished checkpoint. Its content remains the frozen tail of the state, and the first
checkpoint of the new master writes it (``abandon``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tandemmq.index.index import Index
from tandemmq.store.state.replay import Replay
from tandemmq.store.state.state import State
from tandemmq.store.state.tail import Frozen, Position, changes


@dataclass(eq=False, repr=False)
class StepwiseCheckpoint:
    """Checkpoints of ``state`` into ``index``, one at a time, for the thread that owns the state. ``seconds``: time
    spent on all checkpoints. ``covered``: position up to which the index on the disk includes the journal."""

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
        """Begin a checkpoint of the current state. No other checkpoint may be in progress. No files are reclaimed,
        because only a master may."""
        self._frozen = frozen = self._state.freeze(first_of_epoch, 0)
        self._replay.freeze_ids()
        self._steps = self._index.checkpoint(changes(frozen), frozen.meta)

    def work(self, may_continue: Callable[[], bool]) -> None:
        """Continue the checkpoint in progress while ``may_continue`` returns True; this is called before each step of
        about a millisecond. After the last step the checkpoint is durable. Raises the errors of
        ``Index.checkpoint``."""
        started = self._clock()
        while self._frozen is not None and may_continue():
            if next(self._steps, self) is self:
                self.covered = self._frozen.position
                self._frozen = None
                self._state.thaw()
                self._replay.forget_ids()
        self.seconds += self._clock() - started

    def finish(self) -> None:
        """Complete the checkpoint in progress, if any; durable on return."""
        self.work(lambda: True)

    def abandon(self) -> Frozen | None:
        """Stop the checkpoint in progress, if any. The index stays unchanged. Return its content, which the next
        checkpoint must write first, or None."""
        frozen, self._frozen = self._frozen, None
        self._steps = iter(())  # this closes the generator, which leaves the index unchanged
        return frozen
