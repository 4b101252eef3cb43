"""What is known of the messages that fuzzing clients sent, and what a broker must therefore still have.

Conservative: where an answer was lost on the way, either outcome is right.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.ci.verdicts import verdict

DLQ = "ActiveMQ.DLQ.Queue."


class Known(Enum):
    """Whether something took place."""

    NO = "no"
    PERHAPS = "perhaps"
    YES = "yes"


@dataclass(eq=False, slots=True)
class Copy:
    """A message in a queue. ``was_moved``: it may be in the queue of dead letters; ``is_spare``: it may vanish by
    itself, for it is not persistent, expires, or waits for its time."""

    body: str
    queue: str
    is_spare: bool
    sent: Known = Known.PERHAPS
    gone: Known = Known.NO
    was_moved: bool = False

    @property
    def is_needed(self) -> bool:
        """It must be found."""
        return self.sent is Known.YES and self.gone is Known.NO and not self.is_spare


@dataclass(eq=False, slots=True)
class Delivered:
    """A delivery that waits for its acknowledgement; ``frame`` is what came."""

    frame: Any
    copy: Copy | None
    number: int = field(default_factory=itertools.count().__next__)


@dataclass(slots=True)
class Work:
    """What was done in a transaction that is not over. ``acknowledged``: of which list of deliveries which."""

    sent: list[Copy] = field(default_factory=list)
    acknowledged: list[tuple[list[Delivered], list[Delivered]]] = field(default_factory=list)

    def end(self, is_committed: Known) -> None:
        """NO: it was rolled back, or died with its connection; what it acknowledged waits for that again."""
        for copy in self.sent:
            copy.sent = is_committed
        for waiting, covered in self.acknowledged:
            acknowledge([each.copy for each in covered], is_committed)
            if is_committed is Known.NO:
                waiting += covered
                waiting.sort(key=lambda each: each.number)


#: What clients did, and what became of it: for people, and to see that something happens.
DONE: Counter[str] = Counter()
#: What was said in this example, for who looks into a failure.
SAID: list[str] = []


class Books:
    """All copies in the queues that are counted."""

    def __init__(self) -> None:
        self.copies: dict[tuple[str, str], Copy] = {}
        self._number = 0

    def new(self, queues: Iterable[str], *, is_spare: bool) -> tuple[str, list[Copy]]:
        """A body that no other message has, and its copies."""
        self._number += 1
        body = f"m{self._number}"
        copies = [Copy(body, queue, is_spare) for queue in dict.fromkeys(queues)]
        self.copies.update({(body, copy.queue): copy for copy in copies})
        return body, copies

    @verdict
    def of(self, body: str, queue: str) -> Copy | None:
        """None: it is of a queue that is not counted. AssertionError for a message that nobody sent."""
        if not body:
            return None
        assert int(body[1:]) <= self._number, f"nobody sent {body}"
        return self.copies.get((body, queue.removeprefix(DLQ)))

    def queue_was_deleted(self, queue: str) -> None:
        for copy in self.copies.values():
            if copy.queue == queue and copy.gone is Known.NO:
                copy.gone = Known.PERHAPS

    def bounds(self, queue: str) -> tuple[int, int]:
        """So many messages a queue has at least, and at most."""
        copies = [copy for copy in self.copies.values() if copy.queue == queue]
        low = sum(copy.is_needed and not copy.was_moved for copy in copies)
        return low, sum(copy.sent is not Known.NO and copy.gone is not Known.YES for copy in copies)

    def has_spare(self, queue: str) -> bool:
        """Whether something may come to it, or go, by itself."""
        return any(copy.is_spare for copy in self.copies.values() if copy.queue == queue.removeprefix(DLQ))

    @verdict
    def close(self, found: Iterable[tuple[str, str]]) -> None:
        """``found`` are body and queue of all that was there in the end. AssertionError where they do not agree."""
        seen = Counter((body, queue.removeprefix(DLQ)) for body, queue in found)
        twice = [key for key, times in seen.items() if times > 1 and not self.copies[key].is_spare]
        assert not twice, f"more than once: {twice}"
        lost = [key for key, copy in self.copies.items() if copy.is_needed and key not in seen]
        assert not lost, f"confirmed and lost: {lost}"
        back = [key for key in seen if self.copies[key].gone is Known.YES and not self.copies[key].is_spare]
        assert not back, f"acknowledged, confirmed, and back: {back}"
        ghosts = [key for key in seen if self.copies[key].sent is Known.NO]
        assert not ghosts, f"never committed: {ghosts}"


def acknowledge(copies: Iterable[Copy | None], known: Known) -> None:
    for copy in copies:
        if copy is not None and (known is Known.YES or (known is Known.PERHAPS and copy.gone is Known.NO)):
            copy.gone = known


@contextmanager
def sending(copies: list[Copy], work: Work | None, refused: type[Exception]) -> Iterator[None]:
    """Around a frame and its answer, without a transaction or in ``work``. What is refused is no part of that; to be
    sure, nobody relies on it."""
    if work is not None:
        work.sent += copies
    try:
        yield
    except refused:
        if work is not None:
            work.sent = [copy for copy in work.sent if copy not in copies]
        raise
    if work is None:
        confirm(copies)


def confirm(copies: Iterable[Copy]) -> None:
    for copy in copies:
        copy.sent = Known.YES


def traceback_of(broker: BrokerProcess) -> str:
    """The first in its log; empty if there is none."""
    log = broker.log.read_text()
    return log[log.index("Traceback") - 500 :][:6000] if "Traceback" in log else ""
