"""Delete destinations that are not used, if a policy says so (gc_inactive_destinations). Once a second.

A destination is unused if it holds no message, has no consumer and no producer, and was sent nothing for some time. The
store may still have messages of a queue that are not reported: so a mark is sent through the store first, which comes
back after all that was sent before. If a client names the queue meanwhile (that resets ``Queue.is_leaving``) it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.ports import Then
from tandemmq.store.operations import Atomic
from tandemmq.store.records.message import Destination, DestinationKind

# Maximum number of destinations that are deleted in one second.
REMOVED_MAX = 100


class IdleDestinations(Part):
    """Deletes unused destinations. ``remove`` deletes one for good; nothing is deleted while ``is_in_doubt``: a
    prepared branch of XA may add to any queue."""

    def __init__(
        self, shared: Shared, remove: Callable[[Queue | Topic], None], is_in_doubt: Callable[[], bool]
    ) -> None:
        super().__init__(shared)
        self.removed = 0
        self._remove = remove
        self._is_in_doubt = is_in_doubt
        self._is_asked_for = shared.policies.any(lambda policy: policy.gc_inactive_destinations)
        # Time since which each is unused, and the number of messages sent to it by then.
        self._idle: dict[Destination, tuple[int, int]] = {}

    def tick(self, now: int, produced: Container[Destination | None]) -> Work[None]:
        """Delete what was unused for long enough. ``produced``: destinations that have producers."""
        if not self._is_asked_for:
            return
        pace = Pace()
        former, self._idle = self._idle, {}
        room = REMOVED_MAX
        for destination in self._destinations.names():
            if pace.is_full():
                yield
            policy = self._policies.of(destination)
            if not policy.gc_inactive_destinations or destination.kind > DestinationKind.TOPIC:
                continue
            target = self._destinations.by_name.get(destination)
            is_unused = self._destinations.is_empty(destination) if target is None else _is_unused(target)
            if destination in produced or not is_unused:
                continue
            sent = 0 if target is None else target.enqueued
            since, sent_then = former.get(destination, (now, sent))
            if sent != sent_then:
                since = now
            if room and now - since >= policy.inactive_timeout_before_gc and not self._is_in_doubt():
                room -= 1
                target = target or self._destinations.existing(destination)
                assert target is not None, "it has a name"
                self._let_go(target)
            else:
                self._idle[destination] = (since, sent)

    def _let_go(self, target: Queue | Topic) -> None:
        if isinstance(target, Queue) and target.owner:
            target.is_leaving = True
            self._append(Atomic((), None, Then(None, lambda _: self._passed(target))))
        else:
            self._end(target)

    def _passed(self, queue: Queue) -> None:
        """Delete a queue whose mark came back, if it is still unused."""
        if queue.is_leaving and not queue.is_dropped and _is_unused(queue) and not self._is_in_doubt():
            self._end(queue)
        queue.is_leaving = False

    def _end(self, target: Queue | Topic) -> None:
        self.removed += 1
        self._remove(target)
        self._destinations.remember_idle(target.destination)  # prove: idle-ones-begin-again


def _is_unused(target: Queue | Topic) -> bool:
    if isinstance(target, Queue):
        return not (target.users or target.count or target.expired)
    return not (target.subscribers or target.durables)
