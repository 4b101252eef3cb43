"""Detect on the event loop, without a look-up, that a message with a client's id is new. Pure.

A client numbers the messages of a producer in increasing order. So a number above all known numbers of its producer is
new. Two places know a producer: the storage thread has the audit, the tails, the index and prepared transactions; the
loop has the operations that it handed over, of which some are not processed yet. So the first message of a producer for
an owner goes through the inbox, and the storage thread checks whether it knows a higher number
(``AddMessage.is_newest``). If not, ``highest`` is the upper bound from then on: earlier messages are not above it, and
every later operation is noted here before it is handed over. A number above ``highest`` is new; all others, and ids
without a number, are looked up. docs/decisions/0029.
"""

# proofs: new-messages

from __future__ import annotations

from tandemmq.store.operations import AddMessage, Atomic, KnownProducer, Operation, PrepareTransaction
from tandemmq.store.records.message_ids import numbered
from tandemmq.store.writer.batch import NewQueue

# Maximum number of pairs of producer and owner. Beyond it all are forgotten and checked again.
KNOWN_MAX = 10_000


class NewMessages:
    """Sees all operations that are handed over, in order: by ``is_new``, ``is_new_part`` or ``note``."""

    __slots__ = ("_count", "_producers")

    def __init__(self) -> None:
        self._producers: dict[str, KnownProducer] = {}
        self._count = 0

    def is_new(self, add: AddMessage) -> bool:
        """Return whether the audited ``add`` cannot have come before. If False, the storage thread may check more: call
        ``answered`` when ``add`` comes back."""
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
        self._have_room()
        producer = self._producers[name] = KnownProducer(sequence)
        return producer

    def _have_room(self) -> None:
        """Forget all producers when there are too many. A later answer for one of them has no effect."""
        if self._count >= KNOWN_MAX:
            self._producers = {}
            self._count = 0
        self._count += 1

    def is_new_part(self, add: AddMessage) -> bool:
        """Return whether a message of an atomic operation, audited or not, cannot have come before. As ``is_new``."""
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
        """Use the answers in ``operation``, which is durable now."""
        if type(operation) is AddMessage:
            self._use_answer(operation)
        elif type(operation) is Atomic:
            for part in operation.operations:
                if type(part) is AddMessage:
                    self._use_answer(part)

    def _use_answer(self, add: AddMessage) -> None:
        if add.is_newest and add.producer is not None:  # prove: only-the-newest-is-sure "add.is_newest and "
            self._have_room()
            add.producer.owners.add(add.owners[0])
