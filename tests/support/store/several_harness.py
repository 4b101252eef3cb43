"""Several real stores in a directory, run by a test instead of an event loop."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Sequence

from tandemmq.disk import Disk
from tandemmq.store.operations import AddMessage, Atomic, Operation, RemoveMessage
from tandemmq.store.records.commands import encode_add, encode_commit, encode_remove
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import FilteredStore, Filters
from tandemmq.store.several.standbys import SeveralStandbys
from tandemmq.store.several.stores import SeveralStores
from tests.support.store.store_harness import SMALL, Term

A = Destination(DestinationKind.QUEUE, "A.one")
A2 = Destination(DestinationKind.QUEUE, "A.two")
B = Destination(DestinationKind.QUEUE, "B.one")
REST = Destination(DestinationKind.QUEUE, "other")
TOPIC = Destination(DestinationKind.TOPIC, "T.one")
TWO = (FilteredStore(queue="A.>", settings=SMALL), FilteredStore(queue="B.>", settings=SMALL))


def standbys(
    directory: str,
    entries: Sequence[FilteredStore] = TWO,
    broker: str = "a",
    settings: StoreSettings = SMALL,
    *,
    disk: Disk = os,
    index_directory: str | None = None,
) -> SeveralStandbys:
    return SeveralStandbys(directory, index_directory, broker, settings, Filters(entries), disk=disk)


class SeveralTerm(Term):
    """One epoch of one broker with several stores."""

    several: SeveralStores

    def __init__(
        self,
        directory: str,
        entries: Sequence[FilteredStore] = TWO,
        broker: str = "a",
        settings: StoreSettings = SMALL,
        *,
        disk: Disk = os,
        index_directory: str | None = None,
    ) -> None:
        self.loop: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.turn: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.durable_operations: list[Operation] = []
        self.lost: BaseException | None = None
        self.has_proof = True
        self.drained_count = 0
        self.sequence = 0
        following = standbys(directory, entries, broker, settings, disk=disk, index_directory=index_directory)
        try:
            self.several = following.promote(
                has_proof=lambda: self.has_proof,
                call_soon=self.loop.put,
                call_later=self._call_later,
                on_lost=self._on_lost,
            )
        except BaseException:
            following.close()
            raise
        self.store = self.several  # type: ignore[assignment]
        self.owners = self.several.owners()
        self.several.start(self)

    def add_message(self, message: Message) -> AddMessage:
        """Append a message."""
        operation = AddMessage(
            message, (self.store.queue(message.destination),), encode_add(message, encode_message(message))
        )
        self.store.append(operation)
        return operation

    def adding(
        self,
        destination: Destination,
        body: bytes,
        transaction: TransactionId | None = None,
        kind: BodyKind = BodyKind.BYTES,
    ) -> AddMessage:
        """Return the operation of a message as a part of another one, without appending it."""
        message = self.message(destination, body)
        message.body_kind = kind
        payload = encode_add(message, encode_message(message), transaction)
        return AddMessage(message, () if destination.is_topic else (self.store.queue(destination),), payload)

    def removing(self, added: AddMessage, transaction: TransactionId | None = None) -> RemoveMessage:
        """Return the removal of a message as a part of another operation, without appending it."""
        message = added.message
        return RemoveMessage(
            added.owners[0],
            added.order_key,
            added.location,
            message.message_id,
            encode_remove(message.destination, message.message_id, transaction),
            size=added.size,
        )

    def committing(self, operations: Sequence[AddMessage | RemoveMessage], identity: LocalTransactionId) -> Atomic:
        """Append a transaction, as an engine does at COMMIT."""
        atomic = Atomic(operations, encode_commit(identity))
        self.store.append(atomic)
        return atomic
