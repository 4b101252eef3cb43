"""A real store whose turns use the journal's CommitQueue when possible, as in a compiled broker."""

from __future__ import annotations

import queue
import select
from collections.abc import Callable, Mapping
from dataclasses import replace

from tandemmq.store.writer.submissions import Submissions
from tests.support.store.store_harness import SMALL, Term


class QueuedTerm(Term):
    """The loop checks descriptors first, so that results by a call come as late as possible."""

    _readers: Mapping[int, Callable[[], object]] = {}  # empty if the journal has no queue

    @classmethod
    def opened(cls, directory: str, **settings: object) -> QueuedTerm:
        """Open a term whose storage thread is in the queue and stays there, because no checkpoint is running."""
        still = replace(SMALL, fence_check_interval=3600.0, clock_mark_interval=3600.0, **settings)  # type: ignore[arg-type]
        term = cls(directory, settings=still)
        for done in term.store.checkpoint():
            done.result()
        term.wait_open()
        return term

    def wait_open(self) -> None:
        """Wait until a message has passed through the queue, and the next turn will, too."""
        for _ in range(1000):
            before = self.served
            self.add_durably(1)
            if self.served > before:
                return
        raise AssertionError("no turn passes through the queue")

    @property
    def submissions(self) -> Submissions:
        submissions = self.store._submissions
        assert submissions is not None
        return submissions

    @property
    def served(self) -> int:
        """Return the number of batches that passed through the queue and came back."""
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

    def poll(self) -> None:
        """Check the descriptors once."""
        for fd in select.select(list(self._readers), [], [], 0)[0]:
            self._readers[fd]()

    def step(self) -> None:
        self.end_turn()
        self.poll()
        try:
            call = self.loop.get(timeout=0.001)
        except queue.Empty:
            return
        self.poll()
        call()

    def close(self) -> None:
        super().close()
        while not self.loop.empty():
            self.loop.get()()
