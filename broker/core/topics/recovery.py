"""Messages that a topic keeps for subscribers that request earlier messages (retroactive consumers): ActiveMQ's
subscriptionRecoveryPolicy. These messages are only in memory, so a new master has none. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, Memory
from tandemmq.store.records.message import Message

#: Limits for one topic. They also apply if the policy of the topic sets higher values.
KEPT_MESSAGES_MAX: Final = 10_000
KEPT_BYTES_MAX: Final = 8 << 20


class RecoveryKind(Enum):
    """Choice of the kept messages: a number of the last messages, the last message, the messages of a duration, the
    last messages up to a total size, or the last message with the property ``ActiveMQ.Retain``."""

    FIXED_COUNT = "fixed_count"
    LAST_IMAGE = "last_image"
    TIMED = "timed"
    FIXED_SIZED = "fixed_sized"
    RETAINED_MESSAGE = "retained_message"


#: Messages with this property are kept by RETAINED_MESSAGE. Later subscribers get the message with the property.
RETAIN_PROPERTY: Final = "ActiveMQ.Retain"


@dataclass(frozen=True, slots=True)
class Recovery:
    """Kind and bounds of the kept messages. Times in ms, sizes in bytes."""

    kind: RecoveryKind
    maximum_count: int = 100
    maximum_size: int = 64 * 1024
    recover_duration: int = 60_000


@dataclass(slots=True, eq=False, repr=False)
class Kept:
    """Kept messages of one topic. They count in ``memory``, and the oldest are dropped when it is full."""

    _recovery: Recovery
    _memory: Memory
    _clock: Callable[[], int]
    _messages: deque[tuple[int, Message]] = field(default_factory=deque, init=False)  # each with its arrival time
    _bytes: int = field(default=0, init=False)

    def add(self, message: Message) -> None:
        """Keep a message that was sent to the topic."""
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
        """Return the messages for a retroactive subscriber, the oldest first."""
        now = self._clock()
        self._drop_old()
        return [each for _, each in self._messages if not 0 < each.expiration <= now]

    def clear(self) -> None:
        """Drop all messages: the topic ends."""
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
