"""End a transaction: one atomic operation of the store for all its messages and acknowledgements, or none."""

from __future__ import annotations

from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import XA_RBROLLBACK, ClientError, ErrorKind, Receipt, refusal
from tandemmq.broker.core.delivery import QueueBase
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.core.open_transaction import Transaction
from tandemmq.broker.core.operations import Target, removal
from tandemmq.broker.core.slices import Pace, Work, at_once, is_done
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.limits import FULL_ADVICE
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.publish import Sender
from tandemmq.broker.engine.receipts import Commitment
from tandemmq.store.operations import AddMessage, Atomic, RemoveMessage
from tandemmq.store.records.commands import encode_commit
from tandemmq.store.records.message import Message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId


class TransactionEnd(Part):
    """Commits transactions, or rolls them back. Runs on the loop."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher, sender: Sender) -> None:
        super().__init__(shared)
        self._dispatcher = dispatcher
        self._sender = sender
        self._arrivals = sender.arrivals

    def make_ready(self, client: Client, transaction: Transaction, identity: TransactionId) -> Work[None]:
        """Prepare, in steps, the long part of the end that follows: the operations for the store. The code that ends
        the transaction then calls ``forget_copies``."""
        if transaction.rollback_reason is None:
            pace = Pace()
            try:
                transaction.copies = yield from self._sender.make(client, transaction.messages, identity, pace)
            except ClientError as error:
                transaction.rollback_reason = error.message
            transaction.removals = yield from self._removals(transaction, identity, pace)

    def _removals(
        self, transaction: Transaction, identity: TransactionId, pace: Pace
    ) -> Work[list[tuple[QueueBase, RemoveMessage]]]:
        """Return the operations that remove the acknowledged messages from the store."""
        removals = []
        for _, _, entry in transaction.acknowledged:
            queue = entry.queue
            if queue is not None and entry.order_key and not queue.is_dropped:
                removals.append((queue, removal(queue, entry, identity)))
            if pace.is_full():
                yield
        return removals

    def forget_copies(self, transaction: Transaction) -> None:
        """Drop the result of ``make_ready`` when the end was carried out, or must wait: then it is prepared again
        later."""
        transaction.removals = None
        copies, transaction.copies = transaction.copies, None
        if copies is not None:
            copies.give_back()

    def undo(self, transaction: Transaction) -> None:
        """Make the messages that it acknowledged available again."""
        transaction.undo()
        for queue in dict.fromkeys(entry.queue for _, _, entry in transaction.acknowledged):
            if queue is not None:
                self._dispatcher.dispatch(queue)

    def commit(self, client: Client, transaction: Transaction, receipt: Receipt | None) -> Work[None] | None:
        """Commit at once and atomically; if that fails, roll back and raise ClientError.

        If work is returned, the caller must do its steps before the client's next command: the transaction stores
        nothing, and the steps make its messages visible."""
        identity = LocalTransactionId(client.connection.id, transaction.number)
        operations, volatile = self.parts(client, transaction, identity)
        held = transaction.held
        at_once(self.settle(transaction, Pace()))
        commitment = Commitment(self._arrivals, client, receipt, volatile)
        if operations:
            self._append(Atomic(operations, encode_commit(identity), commitment))
            return None
        return self._show(client, commitment, held)

    def _show(self, client: Client, commitment: Commitment, held: int) -> Work[None]:
        """Make messages visible; if that takes steps, ``client`` is charged ``held`` bytes meanwhile, as before."""
        work = self._arrivals.committed(commitment, Pace())
        if is_done(work):
            return
        client.holder.add(Kind.TRANSACTIONS, held)
        try:
            yield
            yield from work
        finally:
            client.holder.add(Kind.TRANSACTIONS, -held)

    def parts(
        self, client: Client, transaction: Transaction, identity: TransactionId
    ) -> tuple[list[AddMessage | RemoveMessage], list[tuple[Message, Target]]]:
        """Return the operations for the store, and the messages that only memory will hold. ClientError if that is not
        possible, and it is rolled back."""
        name = transaction.name
        if transaction.rollback_reason is not None:
            self.undo(transaction)
            raise refusal(
                f"Transaction {name!r} was rolled back: {transaction.rollback_reason}",
                kind=ErrorKind.ROLLED_BACK,
                xa_code=XA_RBROLLBACK,
            )
        sender = self._sender
        copies, removals = transaction.copies, transaction.removals
        assert copies is not None, "it was made ready"
        assert removals is not None, "it was made ready"
        try:
            adds, volatile = sender.settle(client, copies, identity)
            # A full store still commits a transaction that has only acknowledgements and the records of a session about
            # them.
            if self._store.is_full and any(not client.owns(add.message.destination) for add in adds):
                reason = f"Transaction {name!r} was rolled back: {self._store.full_reason}"
                sender.refused += len(adds)
                raise refusal(reason, FULL_ADVICE, ErrorKind.RESOURCE)
        except ClientError as error:
            self.undo(transaction)
            error.kind = ErrorKind.ROLLED_BACK
            raise
        operations: list[AddMessage | RemoveMessage] = [
            *adds,
            *(remove for queue, remove in removals if not queue.is_dropped),
        ]
        return operations, volatile

    def settle(self, transaction: Transaction, pace: Pace) -> Work[None]:
        """Settle the messages that the transaction acknowledged: they are removed."""
        transaction.give_back()
        for subscription, tag, entry in transaction.acknowledged:
            subscription.let_go(entry)
            subscription.enlisted.pop(tag, None)
            if entry.queue is not None:
                entry.queue.settle(entry)
            if pace.is_full():
                yield
        if self._dispatcher.tells_consumed:
            self._dispatcher.consumed(transaction.acknowledged)
