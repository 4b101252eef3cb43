"""Copies of one message for very many queues and subscriptions, made in steps."""

from __future__ import annotations

from tandemmq.broker.core.commands import ErrorKind, refusal
from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, Holder, Kind
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.message import Message

Target = Queue | Topic


class Made:
    """Copies of messages: for each the queue or topic, its durable subscriptions at that time, and the operation for
    the store (None: not stored). The copies of a message that takes more than one step count for ``holder``."""

    __slots__ = ("_counted", "_held", "_holder", "parts")

    def __init__(self, holder: Holder | None) -> None:
        self.parts: list[tuple[Message, Target, tuple[int, ...], AddMessage | None]] = []
        self._holder = holder
        self._counted = self._held = 0

    def begin(self) -> None:
        """Start the copies of a message."""
        self._counted = len(self.parts)

    def count(self) -> None:
        """Count the copies of a step that ends. ClientError when the client may not hold so much."""
        holder = self._holder
        if holder is None:
            return
        adds = [add for *_, add in self.parts[self._counted :] if add is not None]
        more = sum(len(add.payload) + ENTRY_OVERHEAD_BYTES for add in adds)
        first = self.parts[self._counted][0]
        self._counted = len(self.parts)
        self._held += more
        holder.add(Kind.TRANSACTIONS, more)
        if holder.by_kind[Kind.TRANSACTIONS] > holder.memory.held_max:
            raise refusal(
                f"The copies of message {first.message_id} take more than {self._held} bytes",
                f"No client may hold more than is left of memory_limit ({holder.memory.limit} bytes, of the broker).",
                ErrorKind.RESOURCE,
            )

    def give_back(self) -> None:
        """Stop counting the copies."""
        if self._holder is not None:
            self._holder.add(Kind.TRANSACTIONS, -self._held)
            self._held = 0
