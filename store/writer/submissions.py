"""Turns that the event loop submits directly to the journal's CommitQueue. The storage thread writes and syncs inside
the queue, without the interpreter's lock, and the queue wakes the loop when the turns are durable. Later the storage
thread applies their effects to the state, several turns at a time.

Only additions and removals that need no search in the state use the queue (``is_plain``, or known to be new), alone or
in an atomic operation, whose records are all in one batch. All other operations go through the inbox of the storage
thread. The order stays correct in both directions: an item in the inbox closes the queue until the item is processed
(StorageThread.put), and each report of the storage thread has the number of batches of the queue that come before it.

``NewMessages`` detects new messages on the event loop, without a search in the state. A client numbers the messages of
a producer in increasing order. So a message is new if its number is higher than all known numbers of its producer.
Known numbers are in two places: the storage thread has the audit, the tails, the index and prepared transactions; the
loop has operations that it submitted and that are not processed yet.

The first message of a producer for an owner goes through the inbox, and the storage thread checks whether it knows a
higher number (``AddMessage.is_newest``). If it knows none, ``highest`` is the upper bound from then on: no earlier
message has a higher number, and every later operation is noted here before it is submitted. A message with a higher
number than ``highest`` is new. For all other messages, and for ids without a number, the storage thread searches for
the id. docs/decisions/0029.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandemmq.store.operations import AddMessage, Atomic, KnownProducer, Operation, PrepareTransaction
from tandemmq.store.records.message_ids import numbered
from tandemmq.store.writer.batch import NewQueue, is_plain, place

if TYPE_CHECKING:
    from tandemmq.journal.native import CommitQueue


# Maximum number of producers plus pairs of producer and owner. If there are more, all are removed and checked again.
KNOWN_MAX = 10_000


class NewMessages:
    """Highest message numbers of producers. Each operation must be passed to ``is_new``, ``is_new_part`` or ``note``,
    in order, before it is submitted. Only the event loop uses it."""

    __slots__ = ("_count", "_producers")

    def __init__(self) -> None:
        self._producers: dict[str, KnownProducer] = {}
        self._count = 0

    def is_new(self, add: AddMessage) -> bool:
        """Return whether the audited ``add`` is certainly no duplicate. If False, the storage thread must check it;
        call ``answered`` when it has reported ``add``."""
        name, sequence = numbered(add.message.message_id)
        if sequence < 0:
            return False
        producer = self._producers.get(name)
        if producer is None:
            producer = self._begin(name, sequence)
        elif sequence <= producer.highest:  # prove: only-above-all-is-new
            return False
        producer.highest = sequence  # prove: handed-over-is-noted
        if add.owners[0] in producer.owners:  # prove: only-where-it-is-sure
            return True
        add.producer = producer
        return False

    def _begin(self, name: str, sequence: int) -> KnownProducer:
        self._limit_count()
        producer = self._producers[name] = KnownProducer(sequence)
        return producer

    def _limit_count(self) -> None:
        """Remove all producers if there are too many, and count one more. A later answer for a removed producer has no
        effect."""
        if self._count >= KNOWN_MAX:
            self._producers = {}
            self._count = 0
        self._count += 1

    def is_new_part(self, add: AddMessage) -> bool:
        """Return whether a message of an atomic operation, audited or not, is certainly no duplicate. See
        ``is_new``."""
        if add.is_audited:
            return self.is_new(add)
        self._note_add(add)
        return add.is_new  # prove: moved-parts-are-looked-up "add.is_new" -> "True"

    def note(self, operation: Operation | NewQueue) -> None:
        """Note an operation that goes through the inbox."""
        kind = type(operation)
        if kind is Atomic or kind is PrepareTransaction:
            for part in operation.operations:  # type: ignore[union-attr]
                if type(part) is AddMessage:
                    self._note_add(part)

    def _note_add(self, add: AddMessage) -> None:
        name, sequence = numbered(add.message.message_id)
        producer = self._producers.get(name)
        if producer is not None and sequence > producer.highest:
            producer.highest = sequence  # prove: handed-over-together-is-noted

    def answered(self, operation: Operation) -> None:
        """Note the results of the storage thread's checks in ``operation``, which is durable now."""
        if type(operation) is AddMessage:
            self._use_answer(operation)
        elif type(operation) is Atomic:
            for part in operation.operations:
                if type(part) is AddMessage:
                    self._use_answer(part)

    def _use_answer(self, add: AddMessage) -> None:
        if add.is_newest and add.producer is not None:  # prove: only-the-newest-is-sure "add.is_newest and "
            self._limit_count()
            add.producer.owners.add(add.owners[0])


Turn = Sequence[Operation | NewQueue]

# Maximum number of parts of an atomic operation in the queue. A larger one would occupy the loop for too long.
TOGETHER_MAX = 200


class Submissions:
    """The submitted turns. The loop calls ``submit`` and ``completed``; the storage thread calls ``written`` and
    ``report``. The loop must pass every turn to ``submit`` first; if that returns False, it puts the turn into the
    inbox."""

    __slots__ = ("_awaited", "_completed", "_new_messages", "_reports", "_unapplied", "_written", "queue")

    def __init__(self, queue: CommitQueue, new_messages: NewMessages) -> None:
        self.queue = queue
        self._new_messages = new_messages
        self._awaited: deque[Turn] = deque()  # turns that ``completed`` has not returned
        self._completed = 0  # number of batches that ``completed`` has returned
        self._unapplied: deque[Turn] = deque()  # turns that ``written`` has not returned
        self._written = 0  # number of batches that ``written`` has returned
        self._reports: deque[tuple[int, list[Operation]]] = deque()

    def submit(self, turn: Turn) -> bool:
        """Submit ``turn`` to the queue if possible; return whether it was submitted. If True, its messages have their
        locations and order keys; they are durable when ``completed`` returns them."""
        payloads: list[bytes] = []
        is_taken = True
        for operation in turn:  # to the end: every message must be noted
            if is_plain(operation):
                payloads.append(operation.payload)  # type: ignore[union-attr]
            elif type(operation) is AddMessage and operation.is_audited:
                # prove: unmatched-acks-take-the-inbox " or operation.unmatched_acks"
                if not self._new_messages.is_new(operation) or operation.unmatched_acks:
                    is_taken = False
                payloads.append(operation.payload)
            elif type(operation) is Atomic and len(operation.operations) <= TOGETHER_MAX:
                is_taken = self._takes_together(operation, payloads) and is_taken
            else:
                self._new_messages.note(operation)
                is_taken = False
        # prove: nothing-to-write-takes-the-inbox " or not payloads"
        if not is_taken or not payloads:
            return False
        at = self.queue.reserve(payloads)
        if not at:
            return False
        for operation in turn:
            at = place(operation, at)  # type: ignore[arg-type]
        self._awaited.append(turn)
        self._unapplied.append(turn)
        self.queue.submit()  # from here on the storage thread may write it
        return True

    def _takes_together(self, atomic: Atomic, payloads: list[bytes]) -> bool:
        """Append the records of ``atomic`` to ``payloads``; return whether it needs no search in the state. Copies of
        one message need a search, because two of them may be for the same queue."""
        is_taken = True
        ids: set[str] = set()
        for part in atomic.operations:  # to the end: every message must be noted
            if type(part) is AddMessage:
                message_id = part.message.message_id
                # prove: copies-take-the-inbox " or message_id in ids"
                if not self._new_messages.is_new_part(part) or message_id in ids:
                    is_taken = False
                if part.unmatched_acks:
                    is_taken = False  # prove: unmatched-parts-take-the-inbox
                ids.add(message_id)
            payloads.append(part.payload)
        if atomic.commit is not None and atomic.operations:
            payloads.append(atomic.commit)  # prove: submitted-commit-is-written
        return is_taken

    def completed(self) -> tuple[list[Operation], float]:
        """Return (operations, time). The operations, submitted or reported, became durable since the last call, in
        order. The time (CLOCK_BOOTTIME, seconds) is when the last fence check after the submitted ones began; 0.0: no
        submitted ones."""
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
            self._new_messages.answered(operation)
        return operations

    def report(self, operations: list[Operation]) -> None:
        """Report finished operations from the inbox. The caller wakes the loop."""
        self._reports.append((self._written, operations))

    def written(self, batches: int) -> list[Operation]:
        """Return the operations of the next ``batches`` batches, which are written and not applied to the state yet."""
        self._written += batches
        operations: list[Operation] = []
        for _ in range(batches):
            operations += self._unapplied.popleft()  # type: ignore[arg-type]
        return operations
