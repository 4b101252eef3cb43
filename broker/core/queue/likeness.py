"""Check whether the consumers of a queue are all alike: counted as they come and go, as there may be very many."""

from __future__ import annotations

from tandemmq.broker.core.delivery import Subscription


class Likeness:
    """Counts over the consumers that ``joined`` and have not ``left``. ``exclusive``: number of exclusive ones."""

    __slots__ = ("_choosy", "_priorities", "exclusive")

    def __init__(self) -> None:
        self.exclusive = 0
        self._choosy = 0
        self._priorities: dict[int, int] = {}

    @property
    def are_alike(self) -> bool:
        """True if each of them takes every message that another takes."""
        return not self._choosy and not self.exclusive and len(self._priorities) <= 1

    def joined(self, consumer: Subscription) -> None:
        self._count(consumer, 1)

    def left(self, consumer: Subscription) -> None:
        self._count(consumer, -1)

    def _count(self, consumer: Subscription, more: int) -> None:
        self._choosy += more * (consumer.selector is not None)
        self.exclusive += more * consumer.is_exclusive
        count = self._priorities[consumer.priority] = self._priorities.get(consumer.priority, 0) + more
        if not count:
            del self._priorities[consumer.priority]
