"""What a topic keeps for subscribers that ask for what they missed (retroactive consumers): ActiveMQ's
subscriptionRecoveryPolicy. In memory alone; a new master begins with nothing. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, Memory
from tandemmq.store.records.message import Message

#: Of one topic, whatever its policy says.
KEPT_MESSAGES_MAX: Final = 10_000
KEPT_BYTES_MAX: Final = 8 << 20


class RecoveryKind(Enum):
    """The last messages, the last one, those of the last while, those of so many bytes, or the last of those that say
    they are to be kept (``ActiveMQ.Retain``)."""

    FIXED_COUNT = "fixed_count"
    LAST_IMAGE = "last_image"
    TIMED = "timed"
    FIXED_SIZED = "fixed_sized"
    RETAINED_MESSAGE = "retained_message"


#: On a message that RETAINED_MESSAGE keeps, and on it when it is given to who missed it.
RETAIN_PROPERTY: Final = "ActiveMQ.Retain"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is kept, and how much of it. Times in ms, sizes in bytes."""

    kind: RecoveryKind
    maximum_count: int = 100
    maximum_size: int = 64 * 1024
    recover_duration: int = 60_000


@dataclass(slots=True, eq=False, repr=False)
class Kept:
    """What one topic keeps. It counts in ``memory``, and gives way when that is short."""

    _recovery: Recovery
    _memory: Memory
    _clock: Callable[[], int]
    _messages: deque[tuple[int, Message]] = field(default_factory=deque, init=False)  # each with when it came
    _bytes: int = field(default=0, init=False)

    def add(self, message: Message) -> None:
        """It was sent to the topic."""
        recovery = self._recovery
        kind = recovery.kind
        count, size = KEPT_MESSAGES_MAX, KEPT_BYTES_MAX
        if kind is RecoveryKind.RETAINED_MESSAGE:
            if not (message.properties or {}).get(RETAIN_PROPERTY):
                return
            count = 1
        elif kind is RecoveryKind.LAST_IMAGE:
            count = 1
        elif kind is RecoveryKind.FIXED_COUNT:
            count = min(count, recovery.maximum_count)
        elif kind is RecoveryKind.FIXED_SIZED:
            size = min(size, recovery.maximum_size)
        weight = message.size + ENTRY_OVERHEAD_BYTES
        self._messages.append((self._clock(), message))
        self._memory.take(message, weight)
        self._bytes += weight
        while self._messages and (len(self._messages) > count or self._bytes > size or self._memory.free <= 0):
            self._drop()
        self._drop_old()

    def messages(self) -> list[Message]:
        """What who missed it is given, the oldest first."""
        now = self._clock()
        self._drop_old()
        return [each for _, each in self._messages if not 0 < each.expiration <= now]

    def clear(self) -> None:
        """The topic ends."""
        while self._messages:
            self._drop()

    def _drop_old(self) -> None:
        if self._recovery.kind is RecoveryKind.TIMED:
            since = self._clock() - self._recovery.recover_duration
            while self._messages and self._messages[0][0] < since:
                self._drop()

    def _drop(self) -> None:
        _, message = self._messages.popleft()
        self._memory.give(message)
        self._bytes -= message.size + ENTRY_OVERHEAD_BYTES
