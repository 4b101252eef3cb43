"""How a transaction ends: one operation of the store for all that was sent and acknowledged in it, or nothing of it."""

from __future__ import annotations

from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import XA_RBROLLBACK, ClientError, ErrorKind, Receipt, refusal
from tandemmq.broker.core.delivery import QueueBase
from tandemmq.broker.core.fan_out import Target
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.core.slices import Pace, Work, at_once, is_done
from tandemmq.broker.core.transaction import Transaction
from tandemmq.broker.engine.arrivals import Commitment
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.operations import removal
from tandemmq.broker.engine.publish import FULL_ADVICE, Sender
from tandemmq.broker.engine.shared import Part, Shared
from tandemmq.store.operations import AddMessage, Atomic, RemoveMessage
from tandemmq.store.records.commands import encode_commit
from tandemmq.store.records.message import Message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId


class TransactionEnd(Part):
    """Commits transactions, or rolls them back. On the loop."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher, sender: Sender) -> None:
        super().__init__(shared)
        self._dispatcher = dispatcher
        self._sender = sender
        self._arrivals = sender.arrivals

    def make_ready(self, client: Client, transaction: Transaction, identity: TransactionId) -> Work[None]:
        """What takes long of the end that follows, in steps: what the store is to do. Whoever ends the transaction has
        that forgotten (``forget_made``)."""
        if transaction.rollback_reason is None:
            pace = Pace()
            try:
                transaction.made = yield from self._sender.make(client, transaction.messages, identity, pace)
            except ClientError as error:
                transaction.rollback_reason = error.message
            transaction.removals = yield from self._removals(transaction, identity, pace)

    def _removals(
        self, transaction: Transaction, identity: TransactionId, pace: Pace
    ) -> Work[list[tuple[QueueBase, RemoveMessage]]]:
        """What has the store forget what was acknowledged."""
        removals = []
        for _, _, entry in transaction.acknowledged:
            queue = entry.queue
            if queue is not None and entry.order_key and not queue.is_dropped:
                removals.append((queue, removal(queue, entry, identity)))
            if pace.is_full():
                yield
        return removals

    def forget_made(self, transaction: Transaction) -> None:
        """Its end was carried out, or waits; then what ``make_ready`` made is made anew."""
        transaction.removals = None
        made, transaction.made = transaction.made, None
        if made is not None:
            made.give_back()

    def undo(self, transaction: Transaction) -> None:
        """What it acknowledged waits again."""
        transaction.undo()
        for queue in dict.fromkeys(entry.queue for _, _, entry in transaction.acknowledged):
            if queue is not None:
                self._dispatcher.dispatch(queue)

    def commit(self, client: Client, transaction: Transaction, receipt: Receipt | None) -> Work[None] | None:
        """At once, and all of it in one piece; else ClientError, and it is rolled back.

        What is returned, if anything, is for the caller to make the steps of, before the client's next command: nothing
        of it is stored, and it becomes visible by them."""
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
        """Where that takes steps, what is not visible yet is counted for ``client`` as before: ``held`` bytes."""
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
        """What the store is to do for it, and what only memory will hold. ClientError, and it is rolled back, when it
        cannot be done."""
        name = transaction.name
        if transaction.rollback_reason is not None:
            self.undo(transaction)
            raise refusal(
                f"Transaction {name!r} was rolled back: {transaction.rollback_reason}",
                kind=ErrorKind.ROLLED_BACK,
                xa_code=XA_RBROLLBACK,
            )
        sender = self._sender
        made, removals = transaction.made, transaction.removals
        assert made is not None, "it was made ready"
        assert removals is not None, "it was made ready"
        try:
            adds, volatile = sender.settle(client, made, identity)
            # What only acknowledges is committed also then, and what a session keeps of that.
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
        """What it acknowledged is gone."""
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
