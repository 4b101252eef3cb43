"""Consumers of a queue: are they alike, which client pays for each selector, and are they enough to begin."""

from __future__ import annotations

from tandemmq.broker.core.delivery import Selector, Subscription
from tandemmq.broker.core.memory import CHOICE_BYTES, Holder, Kind, Memory

# Time that a queue waits for its consumers if only their number is set (ActiveMQ).
START_MS = 1_000


class ConsumerCounts:
    """Counts over the consumers that ``joined`` and have not ``left``, as there may be very many. ``exclusive``: number
    of exclusive ones."""

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


class Choices:
    """Counts the memory of each selector once, for the first client that used it. When that client closes a consumer
    with the selector and others still use it, the selector counts for no client (``memory``)."""

    __slots__ = ("_memory", "_more", "_payers")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._payers: dict[Selector, Holder | Memory] = {}
        self._more: dict[Selector, int] = {}  # additional consumers, if there are any

    def joined(self, selector: Selector, payer: Holder | Memory) -> None:
        """Add a consumer with ``selector``. ``payer``: where its memory counts."""
        if selector in self._payers:
            self._more[selector] = self._more.get(selector, 0) + 1
        else:
            self._payers[selector] = payer
            payer.add(Kind.STATE, CHOICE_BYTES)

    def left(self, selector: Selector, payer: Holder | Memory) -> None:
        """Remove a consumer that ``joined`` with ``payer``."""
        more = self._more.pop(selector, 0)
        if not more:
            self._payers.pop(selector).add(Kind.STATE, -CHOICE_BYTES)
            return
        if more > 1:
            self._more[selector] = more - 1
        if self._payers[selector] is payer:
            self._payers[selector] = self._memory
            payer.add(Kind.STATE, -CHOICE_BYTES)
            self._memory.add(Kind.STATE, CHOICE_BYTES)


class Start:
    """Start of a queue's deliveries: when it has enough consumers, or when enough time passed since the first one came
    (consumersBeforeDispatchStarts, timeBeforeDispatchStarts). Without consumers it starts over."""

    __slots__ = ("_consumers", "_milliseconds", "_since", "has_begun")

    def __init__(self, consumers: int, milliseconds: int) -> None:
        self._consumers = consumers
        self._milliseconds = milliseconds or START_MS
        self._since: int | None = None
        self.has_begun = False

    def waits(self, consumers: int, now: int) -> int:
        """Return the milliseconds that ``consumers`` still have to wait; 0: they are served."""
        if not consumers:
            self._since = None
            self.has_begun = False
            return 0
        if self.has_begun:
            return 0
        if self._since is None:
            self._since = now
        left = self._since + self._milliseconds - now
        if left <= 0 or (self._consumers and consumers >= self._consumers):
            self.has_begun = True
            return 0
        return left
