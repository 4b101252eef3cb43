"""Detection of new messages on the event loop, without a search in the state. Pure.

A client numbers the messages of a producer in increasing order. So a message is new if its number is higher than all
known numbers of its producer. Known numbers are in two places: the storage thread has the audit, the tails, the index
and prepared transactions; the loop has operations that it submitted and that are not processed yet.

The first message of a producer for an owner goes through the inbox, and the storage thread checks whether it knows a
higher number (``AddMessage.is_newest``). If it knows none, ``highest`` is the upper bound from then on: no earlier
message has a higher number, and every later operation is noted here before it is submitted. A message with a higher
number than ``highest`` is new. For all other messages, and for ids without a number, the storage thread searches the
id. docs/decisions/0029.
"""

# proofs: new-messages

from __future__ import annotations

from tandemmq.store.operations import AddMessage, Atomic, KnownProducer, Operation, PrepareTransaction
from tandemmq.store.records.message_ids import numbered
from tandemmq.store.writer.batch import NewQueue

# Maximum number of pairs of producer and owner. If there are more, all are removed, and are checked again.
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
