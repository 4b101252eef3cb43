"""A real store whose turns go through the journal's CommitQueue where they can, as in a compiled broker."""

from __future__ import annotations

import queue
import select
from collections.abc import Callable, Mapping
from dataclasses import replace

from tandemmq.store.writer.submissions import Submissions
from tests.support.store.store_harness import SMALL, Term


class QueuedTerm(Term):
    """The loop looks at descriptors before anything else: what comes by a call is as late as it can be."""

    _readers: Mapping[int, Callable[[], object]] = {}  # none where the journal has no queue

    @classmethod
    def opened(cls, directory: str, **settings: object) -> QueuedTerm:
        """One whose storage thread is in the queue, and stays there: no checkpoint is under way that would end."""
        still = replace(SMALL, fence_check_interval=3600.0, clock_mark_interval=3600.0, **settings)  # type: ignore[arg-type]
        term = cls(directory, settings=still)
        for done in term.store.checkpoint():
            done.result()
        term.wait_open()
        return term

    def wait_open(self) -> None:
        """Until a message has gone through the queue, and the next turn will, too."""
        for _ in range(1000):
            before = self.served
            self.add_durably(1)
            if self.served > before:
                return
        raise AssertionError("nothing goes through the queue")

    @property
    def submissions(self) -> Submissions:
        submissions = self.store._submissions
        assert submissions is not None
        return submissions

    @property
    def served(self) -> int:
        """How many batches went through the queue and came back."""
        return self.submissions._completed

    @property
    def watching(self) -> QueuedTerm:  # type: ignore[override]
        return self

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> None:
        self._readers = {fd: callback}

    def remove_reader(self, fd: int, /) -> None:
        self._readers = {}

    @property
    def is_watched(self) -> bool:
        return bool(self._readers)

    def look(self) -> None:
        """At the descriptors, once."""
        for fd in select.select(list(self._readers), [], [], 0)[0]:
            self._readers[fd]()

    def step(self) -> None:
        self.end_turn()
        self.look()
        try:
            call = self.loop.get(timeout=0.001)
        except queue.Empty:
            return
        self.look()
        call()

    def close(self) -> None:
        super().close()
        while not self.loop.empty():
            self.loop.get()()
