"""Turns that the event loop has written without a turn of the storage thread between: it submits their payloads to the
journal's CommitQueue and is woken when they are durable, while the storage thread waits and works inside the queue
without the interpreter's lock. The storage thread applies their effects to the state afterwards, several at a time.

Only messages that are added and removed without a look-up in the state go this way (``is_plain``, or new as far as the
loop knows: store.writer.new_messages); the rest goes through the storage thread's inbox. In either direction all
stays in order: items in the inbox close the queue until they are done (StorageThread.put), and the thread's reports
contain the number of batches of the queue that come before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandemmq.store.operations import AddMessage, Operation
from tandemmq.store.writer.batch import NewQueue, is_plain, place
from tandemmq.store.writer.new_messages import NewMessages

if TYPE_CHECKING:
    from tandemmq.journal.native import CommitQueue

Turn = Sequence[Operation | NewQueue]


class Submissions:
    """``submit`` and ``completed`` are the loop's, ``written`` and ``report`` the storage thread's. All operations that
    are handed over goes through ``submit`` first."""

    __slots__ = ("_awaited", "_completed", "_new_messages", "_reports", "_unapplied", "_written", "queue")

    def __init__(self, queue: CommitQueue, new_messages: NewMessages) -> None:
        self.queue = queue
        self._new_messages = new_messages
        self._awaited: deque[Turn] = deque()  # by the loop
        self._completed = 0  # batches, as the loop knows
        self._unapplied: deque[Turn] = deque()  # by the storage thread
        self._written = 0  # batches, as the storage thread knows
        self._reports: deque[tuple[int, list[Operation]]] = deque()

    def submit(self, turn: Turn) -> bool:
        """Submit ``turn``; return whether it is on its way. Then its messages have their places; they count when
        ``completed`` has them."""
        payloads = []
        new_messages = self._new_messages
        is_taken = True
        for operation in turn:  # to the end: every message must be noted
            if is_plain(operation):
                payloads.append(operation.payload)  # type: ignore[union-attr]
            elif type(operation) is AddMessage and operation.is_audited:
                # prove: unmatched-acks-take-the-inbox " and not operation.unmatched_acks"
                if new_messages.is_new(operation) and not operation.unmatched_acks:
                    payloads.append(operation.payload)
                else:
                    is_taken = False
            else:
                new_messages.note(operation)
                is_taken = False
        if not is_taken:
            return False
        at = self.queue.reserve(payloads)
        if not at:
            return False
        for operation in turn:
            at = place(operation, at)  # type: ignore[arg-type]
        self._awaited.append(turn)
        self._unapplied.append(turn)
        self.queue.submit()  # from here on the other thread may have it
        return True

    def completed(self) -> tuple[list[Operation], float]:
        """Return what came back since the last call, in order, submitted or reported, and the start of the last fence
        check that covers the submitted part; 0.0: nothing was submitted."""
        batches, checked_at = self.queue.completed()
        operations: list[Operation] = []
        reports = self._reports
        for left in range(batches, -1, -1):
            while reports and reports[0][0] == self._completed:  # prove: reported-in-its-order
                operations += self._answered(reports.popleft()[1])
            if left:
                operations += self._awaited.popleft()  # type: ignore[arg-type]
                self._completed += 1
        return operations, checked_at if batches else 0.0

    def _answered(self, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if type(operation) is AddMessage and operation.producer is not None:
                self._new_messages.answered(operation)
        return operations

    def report(self, operations: list[Operation]) -> None:
        """Report finished operations of the inbox; the caller wakes the loop."""
        self._reports.append((self._written, operations))

    def written(self, batches: int) -> list[Operation]:
        """Return the operations of the next ``batches`` batches."""
        self._written += batches
        operations: list[Operation] = []
        for _ in range(batches):
            operations += self._unapplied.popleft()  # type: ignore[arg-type]
        return operations
