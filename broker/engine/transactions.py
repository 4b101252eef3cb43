"""Transactions: messages and acknowledgements of clients until the end; local ones, and branches of XA.

A local transaction belongs to its connection and ends with it.
"""

from __future__ import annotations

from tandemmq.broker.core import names
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import Abort, Ack, Begin, ClientError, Commit, ErrorKind, Prepare, Send, refusal
from tandemmq.broker.core.delivery import Entry, QueueBase, Subscription
from tandemmq.broker.core.memory import TEXT_BYTES, TRANSACTION_BYTES, Kind
from tandemmq.broker.core.open_transaction import Transaction
from tandemmq.broker.core.operations import Target
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.engine.branches import Branch, Branches, check_is_its
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.limits import Line, MustWait, Waits, paused, store_full
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.publish import Sender
from tandemmq.broker.engine.scheduler import may_be_scheduled
from tandemmq.broker.engine.transaction_end import TransactionEnd
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId


class Transactions(Part):
    """Collects transactions and branches until they end. Runs on the loop; raises ClientError."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher, sender: Sender) -> None:
        super().__init__(shared)
        self._sender = sender
        self._router = sender.router
        self._ending = TransactionEnd(shared, dispatcher, sender)
        self.forget_copies = self._ending.forget_copies
        self.branches = Branches(shared, dispatcher, sender.arrivals, self._ending)
        self._put_aside = 0

    # ---- content

    def _open(self, client: Client, name: str) -> Transaction:
        found = client.transactions.get(name) or self.branches.open(client, name)
        if found is None:
            raise refusal(f"Transaction {name!r} has not been started.", "BEGIN opens one.", ErrorKind.STATE)
        return found

    def send(self, client: Client, command: Send) -> MustWait | None:
        """Add ``command`` to its transaction, to be carried out at the commit. Return the reason to wait, if any."""
        assert command.transaction is not None, "only for a Send in a transaction"
        transaction = self._open(client, command.transaction)
        sender = self._sender
        message = command.message
        if self._store.is_full and transaction.rollback_reason is None and self._needs_room(client, message):
            return store_full(self._store.full_reason, message.destination)
        try:
            # A schedule that cannot be kept is refused now; its delay begins with the commit (SchedulerBroker).
            if self._router.known_target(client, message) is None and sender.scheduled(client, message) is message:
                self._router.check_may_send_all(client, message, message.destination)
        except ClientError as error:
            transaction.rollback_reason = transaction.rollback_reason or error.message
            raise
        transaction.send(message)
        if (
            self._stored is not None
            and message.sender is not None
            and (message.persistent or may_be_scheduled(message))
        ):
            size = message.size * names.count(message.destination)
            transaction.charge(self._stored.usage(message.sender), size)  # prove: open-transactions-count
        client.send_receipt(command.receipt)
        return None

    def enlist(self, client: Client, name: str, subscription: Subscription, covered: list[tuple[int, Entry]]) -> None:
        """Add acknowledgements, which take effect at COMMIT; until then they only give credit."""
        try:
            self._open(client, name).acknowledge(subscription, covered)
        except ClientError:
            subscription.restore(covered)
            raise

    def holds(self, client: Client, command: Ack, subscription: Subscription) -> int:
        """Return the number of deliveries named by ``command`` that its transaction has already."""
        assert command.transaction is not None, "only for an Ack in a transaction"
        if not subscription.enlisted:
            return 0
        acknowledged = self._open(client, command.transaction).acknowledged
        return sum(each is subscription and command.first <= tag <= command.tag for each, tag, _ in acknowledged)

    def enlisted(self, client: Client, name: str, message_id: str, ids: set[str], last: int) -> list[tuple[str, int]]:
        """Return subscription and tag of each delivery of that message, to the subscriptions ``ids``, among the
        ``last`` newest acknowledgements of the transaction."""
        return [
            (subscription.id, tag)
            for subscription, tag, entry in self._open(client, name).acknowledged[-last:]
            if subscription.id in ids and entry.message.message_id == message_id
        ]

    def mark_rollback_only(self, client: Client, name: str, reason: str) -> None:
        """Allow only a rollback, because something was refused. An unknown transaction is no error."""
        try:
            transaction = self._open(client, name)
        except ClientError:
            return
        transaction.rollback_reason = transaction.rollback_reason or reason

    def doomed(self, client: Client, name: str | None, error: ClientError) -> ClientError:
        """Return the error of a refused command for its client. From now on its transaction, if any, can only be rolled
        back."""
        if name is not None:
            self.mark_rollback_only(client, name, error.message)
            error.message = f"Transaction {name!r} can only be aborted: {error.message}"
        return error

    def given_up(self, client: Client, command: Waits, error: ClientError) -> ClientError:
        """Return the error of a command that waited too long. The end of a transaction rolls it back."""
        error = self.doomed(client, command.transaction, error)
        if not isinstance(command, Send):
            try:
                self.decide(client, command)
            except ClientError as rolled_back:
                return rolled_back
        return error

    # ---- begin

    def begin(self, client: Client, command: Begin) -> None:
        branches = self.branches.by_key
        if command.xa is not None:
            branch = branches.get(command.transaction)
            if branch is not None:
                check_is_its(client, branch)
            else:
                self._check_quota(client)
                branches[command.transaction] = Branch(command.xa, client, self._new(client, command.transaction))
        elif command.transaction in client.transactions:
            if not client.session.survives_errors:
                raise refusal(f"Transaction {command.transaction!r} has already begun")
        else:
            self._check_quota(client)
            transaction = client.transactions[command.transaction] = self._new(client, command.transaction)
            client.holder.add(Kind.TRANSACTIONS, _bytes_of(transaction))
        client.send_receipt(command.receipt)

    def _check_quota(self, client: Client) -> None:
        limit = self._settings.transactions_max
        held = len(client.transactions) + sum(branch.client is client for branch in self.branches.by_key.values())
        if held >= limit:
            raise refusal(f"More than {limit} open transactions (transactions_max)", kind=ErrorKind.RESOURCE)

    def _new(self, client: Client, name: str) -> Transaction:
        client.transactions_begun += 1
        return Transaction(name, client.transactions_begun, self._settings, client.holder)

    # ---- the end

    def make_ready(self, client: Client, command: Commit | Prepare) -> Work[Transaction | None]:
        """Prepare the end (TransactionEnd.make_ready). Return the transaction; None: there is none."""
        try:
            transaction = self._open(client, command.transaction)
        except ClientError:
            return None  # its end raises the error
        identity: TransactionId = LocalTransactionId(client.connection.id, transaction.number)
        if isinstance(command, Prepare):
            identity = command.xa
        yield from self._ending.make_ready(client, transaction, identity)
        return transaction

    def put_aside(self, client: Client, name: str) -> str:
        """Rename a local transaction whose end must wait, so that its name is free for another one. Return the new
        name, which no client can use."""
        self._put_aside += 1
        other = f"{name}\0{self._put_aside}"
        client.transactions[other] = client.transactions.pop(name)
        return other

    def must_wait(self, client: Client, name: str) -> MustWait | None:
        """Return the reason why the messages of a transaction cannot be taken now. The result is exact after
        ``make_ready``; before, expensive selectors are not evaluated (``Router.targets``)."""
        if not (self._store.is_full or self._destinations.closed_to_producers):
            return None
        messages = self._to_be_stored(client, name)
        copies = self._open(client, name).copies if messages else None
        if copies is not None:  # no selector is evaluated twice, and each in its own step
            adds = (
                [add.message.destination for *_, add in copies.parts if add is not None] if self._store.is_full else ()
            )
            for destination in adds:
                if not client.owns(destination):
                    return store_full(self._store.full_reason, destination, len(messages))
            return paused(
                (target.destination for _, target, *_ in copies.parts), self._destinations.closed_to_producers
            )
        if self._store.is_full:
            for message in messages:
                if self._needs_room(client, message):
                    return store_full(self._store.full_reason, message.destination, len(messages))
        if self._destinations.closed_to_producers:
            for message in messages:
                closed = paused(
                    (each.destination for each in self._router.targets(client, message)),
                    self._destinations.closed_to_producers,
                )
                if closed is not None:
                    return closed
        return None

    def lines_of(self, client: Client, name: str) -> set[Line]:
        """Return the limits for the messages that become visible at the end of a transaction; see Sender.lines_of."""
        lines: set[Line] = set()
        known: set[tuple[Target, bool]] = set()  # of very many messages for one queue, one is checked
        for message in self._to_be_stored(client, name):
            if client.owns(message.destination):
                continue
            target = self._router.known_target(client, message)
            if isinstance(target, Queue):
                kind = (target, message.persistent)
                if kind in known:
                    continue
                known.add(kind)
            lines |= self._sender.lines_of(client, message)
        return lines

    def goes_to(self, client: Client, name: str) -> frozenset[Destination]:
        """Return the destinations where messages become visible, without the client's own state, which never waits."""
        destinations = {message.destination for message in self._to_be_stored(client, name)}
        return frozenset(part for each in destinations if not client.owns(each) for part in names.split(each))

    def held(self, client: Client, name: str) -> int:
        """Return the bytes that a transaction holds, 0 if there is none."""
        found = client.transactions.get(name) or self.branches.open(client, name)
        return 0 if found is None else found.held

    def _needs_room(self, client: Client, message: Message) -> bool:
        """Return whether the message waits while the store is full. The state that a session stores for its deliveries
        does not wait, like an acknowledgement: without it no message could be consumed."""
        return not client.owns(message.destination) and self._sender.is_stored(client, message)

    def _to_be_stored(self, client: Client, name: str) -> list[Message]:
        """Return the messages of a transaction that is neither prepared nor doomed."""
        try:
            transaction = self._open(client, name)
        except ClientError:
            return []
        return [] if transaction.rollback_reason is not None else transaction.messages

    def left(self, client: Client, left: dict[QueueBase, None], pace: Pace) -> Work[None]:
        """Roll back the transactions that are not prepared, after the end of a connection. The queues to which messages
        return are added to ``left``; the caller must dispatch them."""
        client.holder.add(Kind.TRANSACTIONS, -sum(map(_bytes_of, client.transactions.values())))
        transactions = [*client.transactions.values(), *self.branches.left(client)]
        client.transactions = {}
        ending = set(client.subscriptions.values())
        transactions.reverse()
        while transactions:
            transaction = transactions.pop()  # its memory is freed with it, not all at the end
            transaction.undo(ending)
            left.update((entry.queue, None) for _, _, entry in transaction.acknowledged if entry.queue is not None)
            if pace.is_full(1 + len(transaction.acknowledged) // 8 + len(transaction.messages) // 64):
                yield

    def abort(self, client: Client, command: Abort) -> None:
        if command.xa is not None:
            self.branches.roll_back(client, command, command.xa)
            return
        self._ending.undo(self._take(client, command.transaction))
        client.send_receipt(command.receipt)

    def decide(self, client: Client, command: Commit | Prepare) -> Work[None] | None:
        """Decide at once. Result: see TransactionEnd.commit."""
        if isinstance(command, Prepare):
            self.branches.prepare(client, command)
            return None
        if command.xa is not None:
            return self.branches.commit(client, command, command.xa)
        return self._ending.commit(client, self._take(client, command.transaction), command.receipt)

    def _take(self, client: Client, name: str) -> Transaction:
        """Remove a local transaction that ends, and return it."""
        transaction = self._open(client, name)
        del client.transactions[name]
        client.holder.add(Kind.TRANSACTIONS, -_bytes_of(transaction))
        return transaction


def _bytes_of(transaction: Transaction) -> int:
    """Return the bytes that a local transaction takes, without its content."""
    return TRANSACTION_BYTES + TEXT_BYTES * len(transaction.name)
