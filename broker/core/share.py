"""Memory of one queue, or of all queues of one destination."""

from __future__ import annotations

from tandemmq.broker.core.delivery import Entry
from tandemmq.broker.core.memory import NOT_PERSISTENT, WINDOWS_PERCENT, Memory


class Share:
    """Part of the memory budget that one queue, or all queues of one destination, hold, in bytes. ``limit``: the
    ``memory_limit`` of the destination; 0: no limit."""

    __slots__ = ("limit", "memory", "not_persistent", "stored")

    def __init__(self, memory: Memory, limit: int = 0) -> None:
        self.memory = memory
        self.limit = limit
        self.stored = 0
        self.not_persistent = 0

    @property
    def used(self) -> int:
        return self.stored + self.not_persistent

    @property
    def has_space(self) -> bool:
        """True if the window of stored messages may grow. Messages after the window wait in the store."""
        memory = self.memory
        if memory.used >= memory.window_max:
            return False
        return not self.limit or self.used < self.limit * WINDOWS_PERCENT // 100

    def fits(self, size: int, most: int) -> bool:
        """Return whether ``size`` more bytes of non-persistent messages fit. ``most``: maximum of such bytes."""
        return self.not_persistent + size <= most and size <= self.memory.free_for_destinations

    def take(self, entry: Entry) -> None:
        """Count ``entry`` as held here."""
        weight = entry.weight
        if entry.order_key:
            self.stored += weight
        else:
            self.not_persistent += weight
        memory, message = self.memory, entry.message
        if message.holders or message.shared_body is not None:
            memory.take(message, weight)
            return
        message.holders = 1  # the common case, one holder; ``Memory.take`` would do the same
        message.held_bytes = weight
        memory.used += weight
        if not message.persistent:
            memory.by_kind[NOT_PERSISTENT] += weight

    def give(self, entry: Entry) -> None:
        """Stop counting ``entry`` as held here."""
        if entry.order_key:
            self.stored -= entry.weight
        else:
            self.not_persistent -= entry.weight
        memory, message = self.memory, entry.message
        if message.holders > 1 or message.shared_body is not None:
            memory.give(message)
            return
        message.holders = 0
        memory.used -= message.held_bytes
        if not message.persistent:
            memory.by_kind[NOT_PERSISTENT] -= message.held_bytes
