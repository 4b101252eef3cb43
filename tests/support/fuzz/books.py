"""The state of the messages that fuzzing clients sent, and which of them a broker must therefore still have.

Conservative: if an answer was lost, either outcome is correct.
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
    """State of an action: whether it happened."""

    NO = "no"
    PERHAPS = "perhaps"
    YES = "yes"


@dataclass(eq=False, slots=True)
class Copy:
    """A message in a queue. ``was_moved``: it may be in the dead-letter queue; ``is_spare``: it may disappear, because
    it is not persistent, expires, or is scheduled."""

    body: str
    queue: str
    is_spare: bool
    sent: Known = Known.PERHAPS
    gone: Known = Known.NO
    was_moved: bool = False

    @property
    def is_needed(self) -> bool:
        """Return whether it must be found."""
        return self.sent is Known.YES and self.gone is Known.NO and not self.is_spare


@dataclass(eq=False, slots=True)
class Delivered:
    """A delivery that is not acknowledged yet; ``frame``: its frame."""

    frame: Any
    copy: Copy | None
    number: int = field(default_factory=itertools.count().__next__)


@dataclass(slots=True)
class Work:
    """The work of an open transaction. ``acknowledged``: acknowledged deliveries, by their list."""

    sent: list[Copy] = field(default_factory=list)
    acknowledged: list[tuple[list[Delivered], list[Delivered]]] = field(default_factory=list)

    def end(self, is_committed: Known) -> None:
        """End the transaction. NO: it was rolled back, or its connection ended; its deliveries are unacknowledged
        again."""
        for copy in self.sent:
            copy.sent = is_committed
        for waiting, covered in self.acknowledged:
            acknowledge([each.copy for each in covered], is_committed)
            if is_committed is Known.NO:
                waiting += covered
                waiting.sort(key=lambda each: each.number)


#: Actions of clients and their results, as information, and to check that actions happen.
DONE: Counter[str] = Counter()
#: Trace of this example, for the analysis of a failure.
TRACE: list[str] = []


class Books:
    """All copies of messages in the counted queues."""

    def __init__(self) -> None:
        self.copies: dict[tuple[str, str], Copy] = {}
        self._number = 0

    def new(self, queues: Iterable[str], *, is_spare: bool) -> tuple[str, list[Copy]]:
        """Return a body that no other message has, and its copies."""
        self._number += 1
        body = f"m{self._number}"
        copies = [Copy(body, queue, is_spare) for queue in dict.fromkeys(queues)]
        self.copies.update({(body, copy.queue): copy for copy in copies})
        return body, copies

    @verdict
    def of(self, body: str, queue: str) -> Copy | None:
        """Return the copy; None if its queue is not counted. AssertionError: no client sent the message."""
        if not body:
            return None
        assert int(body[1:]) <= self._number, f"no client sent {body}"
        return self.copies.get((body, queue.removeprefix(DLQ)))

    def queue_was_deleted(self, queue: str) -> None:
        for copy in self.copies.values():
            if copy.queue == queue and copy.gone is Known.NO:
                copy.gone = Known.PERHAPS

    def bounds(self, queue: str) -> tuple[int, int]:
        """Return the minimum and maximum number of messages in a queue."""
        copies = [copy for copy in self.copies.values() if copy.queue == queue]
        low = sum(copy.is_needed and not copy.was_moved for copy in copies)
        return low, sum(copy.sent is not Known.NO and copy.gone is not Known.YES for copy in copies)

    def has_spare(self, queue: str) -> bool:
        """Return whether messages may come to it or leave it by themselves."""
        return any(copy.is_spare for copy in self.copies.values() if copy.queue == queue.removeprefix(DLQ))

    @verdict
    def close(self, found: Iterable[tuple[str, str]]) -> None:
        """Check the messages at the end. ``found``: body and queue of each. AssertionError: a message is missing, or
        must not be there."""
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
    """Context of a frame and its answer, outside a transaction or in ``work``. A refused message is not part of the
    transaction; both outcomes are allowed for it."""
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
    """Return the first traceback in the log; empty if there is none."""
    log = broker.log.read_text()
    return log[log.index("Traceback") - 500 :][:6000] if "Traceback" in log else ""
