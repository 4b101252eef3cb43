"""Room for messages: what one destination may take of the memory of all, and what a sender is told that finds none."""

from __future__ import annotations

from broker.core.commands import ClientError, ErrorKind
from broker.core.subscription import Memory
from store.records.message import Destination

# Stored messages leave so much of a destination's memory to those that are only there (cursorMemoryHighWaterMark).
STORED_PERCENT_MAX = 70


class Share:
    """What one destination holds of the broker's memory, bounded by ``memory_limit``. Takes a Memory's place in its
    queues: whatever they count, they count in both."""

    __slots__ = ("_memory", "_stored", "_volatile", "limit")

    def __init__(self, memory: Memory, limit: int) -> None:
        self._memory = memory
        self._stored = 0
        self._volatile = 0
        self.limit = limit

    @property
    def used(self) -> int:
        return self._stored + self._volatile

    @property
    def stored(self) -> int:
        return self._stored

    @stored.setter
    def stored(self, value: int) -> None:
        self._memory.stored += value - self._stored
        self._stored = value

    @property
    def stored_max(self) -> int:
        """The window ends here: what is behind it waits in the store."""
        memory = self._memory
        return min(
            self.limit * STORED_PERCENT_MAX // 100 - self._volatile, memory.stored_max - memory.stored + self._stored
        )

    @property
    def volatile(self) -> int:
        return self._volatile

    @volatile.setter
    def volatile(self, value: int) -> None:
        self._memory.volatile += value - self._volatile
        self._volatile = value


class NoRoom(ClientError):
    """There is no room now, but there may be again: its sender may wait for it.

    ``limit`` is the setting that is reached, ``of`` whose it is (None: the broker's), ``used`` what is used of it.
    ``destination``: what was sent to, whose policy says whether to wait. ``count``: so many messages are not taken.
    """

    def __init__(
        self,
        reason: str,
        advice: str,
        *,
        limit: str,
        destination: Destination,
        of: Destination | None = None,
        used: int = 0,
        count: int = 1,
    ) -> None:
        super().__init__(reason, advice, is_fatal=False, kind=ErrorKind.RESOURCE)
        self.limit = limit
        self.destination = destination
        self.of = of
        self.used = used
        self.count = count

    def of_another(self, destination: Destination) -> NoRoom:
        """What is sent to ``destination`` would have to wait for the same."""
        return NoRoom(self.message, self.detail, limit=self.limit, destination=destination, of=self.of, used=self.used)
