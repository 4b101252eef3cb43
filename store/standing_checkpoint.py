"""A checkpoint that whoever follows the journal writes a piece at a time, between two looks at the journal.

A promotion does not wait for one that is under way: what it would have written stays the frozen tail of the state, and
the new master's first checkpoint writes it (``abandon``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from index.index import Index
from store.replay import Replay
from store.state import State
from store.tail import Frozen, changes


class StandingCheckpoint:
    """At most one checkpoint of ``state`` into ``index``; ``seconds`` were spent on all so far, by ``clock``. For the
    thread that owns the state."""

    def __init__(self, index: Index, state: State, replay: Replay, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._index = index
        self._state = state
        self._replay = replay
        self._frozen: Frozen | None = None
        self._steps: Iterator[None] = iter(())

    @property
    def is_under_way(self) -> bool:
        return self._frozen is not None

    def begin(self, first_of_epoch: Callable[[int], bool]) -> None:
        """Of what is true now; none is under way. Nothing is reclaimed by it: only a master may."""
        self._frozen = frozen = self._state.freeze(first_of_epoch, 0)
        self._replay.freeze_ids()
        self._steps = self._index.checkpoint(changes(frozen), frozen.meta)

    def work(self, may_go_on: Callable[[], bool]) -> None:
        """Go on while ``may_go_on``, asked before each step of a millisecond or so; durable when none is under way any
        more. Raises what the index raises."""
        started = self._clock()
        while self._frozen is not None and may_go_on():
            if next(self._steps, self) is self:
                self._frozen = None
                self._state.thaw()
                self._replay.forget_ids()
        self.seconds += self._clock() - started

    def finish(self) -> None:
        """To its end, if one is under way."""
        self.work(lambda: True)

    def abandon(self) -> Frozen | None:
        """Stop, with the index as it was; what the next checkpoint has to write first, if one was under way."""
        frozen, self._frozen = self._frozen, None
        self._steps = iter(())  # a checkpoint that is let go of leaves the index as it was
        return frozen
