"""Remove expired messages, a bounded number at a time, so that the store stays free for messages of clients.

A queue collects the expired messages that it meets (``Queue.expired``). They are removed in steps, the queues in turn,
those with consumers first. What a round gave to the store must be durable before the next round begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.delivery import Entry
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import ITEMS, Work, is_done
from tandemmq.broker.engine.ports import Then
from tandemmq.store.operations import Atomic, Operation

log = logging.getLogger(__name__)

# Maximum number of messages handed to the store in one round.
ROUND_MAX = 128
# Cost of an expired message, which may become a dead letter, in items of a step; and the messages of one queue in a
# step.
_EXPIRED_ITEMS = 8
STEP_MAX = ITEMS // _EXPIRED_ITEMS


class Expiring:
    """Removes expired messages in bounded rounds. ``expire`` handles one that is out of its queue and returns whether
    the store was given anything. ``cleared`` is called with a queue that holds none any more; ``start`` has work
    done in slices that takes more than a step."""

    def __init__(
        self,
        append: Callable[[Operation], None],
        expire: Callable[[Queue, Entry], bool],
        cleared: Callable[[Queue], None],
        start: Callable[[Work[None]], object],
    ) -> None:
        self._append = append
        self._expire = expire
        self._cleared = cleared
        self._start = start
        # Queues that hold expired messages: with consumers, and without.
        self._awaited: dict[Queue, None] = {}
        self._others: dict[Queue, None] = {}
        self._is_under_way = False

    def ask(self, queue: Queue) -> None:
        """Remove the expired messages of ``queue``, now or in a later round."""
        if queue.consumers:
            self._others.pop(queue, None)
            self._awaited[queue] = None
        elif queue not in self._awaited:
            self._others[queue] = None
        if not self._is_under_way:
            self.go_on()

    def go_on(self) -> None:
        """Begin the next round: what the last one gave to the store is durable."""
        self._is_under_way = False
        if not self._awaited and not self._others:
            return
        self._is_under_way = True
        work = self._round()
        if not is_done(work):
            self._start(work)

    def _round(self) -> Work[None]:
        """Do one round, and put a mark after what it gave to the store: the next round begins when that comes back."""
        stored = 0
        for _ in range(ROUND_MAX // STEP_MAX):
            stored += self._step(self._awaited or self._others)
            if not self._awaited and not self._others:
                break
            yield
        if stored:
            self._append(Atomic((), None, Then(None, lambda _: self.go_on())))
        else:
            self.go_on()

    def _step(self, queues: dict[Queue, None]) -> int:
        """Remove expired messages of the next queue. Return the number of operations for the store."""
        queue = next(iter(queues))
        del queues[queue]
        count = min(len(queue.expired), STEP_MAX)
        stored = 0
        for _ in range(count):
            entry = queue.expired.popleft()
            queue.forget(entry)
            try:
                stored += self._expire(queue, entry)
            except Exception:  # no client caused it: the others continue
                log.exception("%s: clearing away what has expired %s", queue.destination, ERROR_OF_BROKER)
        if queue.expired:
            queues[queue] = None
        elif count:
            self._cleared(queue)
        return stored
