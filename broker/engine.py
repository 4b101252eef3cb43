"""Core decides, store remembers, sessions are told: the one place where the three meet.

Nothing in here waits. A command is decided upon at once; what must survive is handed to the store and comes back
through ``durable``, in order, and only then is it told (RECEIPT) and given on (MESSAGE). What need not survive
takes the same way without the store. All methods are called on the event loop.

An engine lives as long as one term as master. Loss of the store is not its affair: its connections are closed, and
the next promotion builds a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from broker.core.client import Client, Connection, Waiting
from broker.core.commands import (
    Abort,
    Ack,
    Begin,
    ClientError,
    Command,
    Commit,
    Connect,
    Disconnect,
    Nack,
    ProtocolFailure,
    Send,
    Subscribe,
    Unsubscribe,
)
from broker.core.destinations import Destinations
from broker.core.queue import Queue
from broker.core.settings import EngineSettings
from broker.core.statistics import statistics
from broker.core.subscription import Entry, Memory, Subscription
from broker.core.topic import Topic, TopicSubscription
from broker.core.transaction import Transaction
from broker.dispatcher import Dispatcher, encode_payload
from broker.subscriber import Opening, Store, Subscriber
from store.operations import AddMessage, Atomic, Operation, Page, RemoveMessage
from store.records.commands import encode_commit, encode_remove
from store.records.message import DestinationKind, Message
from store.records.message_ids import is_made_by_broker
from store.records.transactions import LocalTransactionId, TransactionId
from store.space import StoreFull

log = logging.getLogger(__name__)

FULL_ADVICE = "Nothing was stored. Send it later: consumers go on, and what they acknowledge gives space back."


class _Commitment:
    """Context of a transaction's Atomic: who committed, and what becomes visible with it although it is not stored."""

    __slots__ = ("client", "receipt", "volatile")

    def __init__(self, client: Client, receipt: str | None, volatile: list[Message]) -> None:
        self.client = client
        self.receipt = receipt
        self.volatile = volatile


class _Farewell:
    """Context of the empty Atomic that follows a client's last operation."""

    __slots__ = ("client", "receipt")

    def __init__(self, client: Client, receipt: str | None) -> None:
        self.client = client
        self.receipt = receipt


class Engine:
    """See the module. ``clock`` gives milliseconds since 1970; ``on_drained`` is called when producers, held back while
    ``is_congested``, may go on."""

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        clock: Callable[[], int],
        *,
        on_drained: Callable[[], object] = lambda: None,
    ) -> None:
        self._store = store
        self._append = store.append
        self._settings = settings
        self._on_drained = on_drained
        self._memory = Memory(
            settings.memory_limit, settings.non_persistent_memory_limit, settings.transactions_memory_limit
        )
        self._destinations = Destinations(settings, self._memory, store.queue, store.owners())
        self._by_name = self._destinations.by_name
        self._by_owner = self._destinations.by_owner
        self._refused = 0  # messages that a full store did not take
        self._clients: set[Client] = set()
        self._client_ids: dict[str, Client] = {}
        self._duplicates = 0
        self._dispatcher = Dispatcher(store.append, store.epoch, self._destinations, self._memory, settings, clock)
        self._subscriber = Subscriber(store, self._destinations, self._dispatcher, settings)
        # The names of hot paths.
        self._dispatch = self._dispatcher.dispatch
        self._dispatch_pending = self._dispatcher.dispatch_pending
        self._deliver = self._dispatcher.deliver
        self._remove = self._dispatcher.remove
        self._handlers: dict[type, Callable[[Client, Any], None]] = {
            Send: self._send,
            Ack: self._ack,
            Nack: self._nack,
            Subscribe: self._subscriber.subscribe,
            Unsubscribe: self._subscriber.unsubscribe,
            Begin: self._begin,
            Commit: self._commit,
            Abort: self._abort,
            Connect: self._connect,
            Disconnect: self._disconnect,
            ProtocolFailure: self._protocol_failure,
        }

    @property
    def is_congested(self) -> bool:
        """Whether the store has more to do than it should: producers are to wait for ``on_drained``."""
        return self._store.is_congested

    def may_speak(self) -> bool:
        """Whether anything may be said to anybody: see ``Store.may_speak``."""
        return self._store.may_speak()

    def look_soon(self) -> None:
        """Have it found out, when it may not."""
        self._store.look_soon()

    def drained(self) -> None:
        """The store is not congested any more."""
        self._on_drained()

    # ---- connections

    def opened(self, connection: Connection) -> None:
        """A connection begins; ``closed`` ends it."""
        client = connection.client = Client(connection)
        self._clients.add(client)

    def closed(self, connection: Connection) -> None:
        """The connection is over: open transactions are rolled back, what it did not acknowledge goes to others."""
        client: Client = connection.client
        client.is_there = False
        self._leave(client)

    def writable(self, connection: Connection) -> None:
        """More may be written to it."""
        client: Client = connection.client
        for subscription in list(client.subscriptions.values()):
            if subscription.queue is not None:
                self._dispatch(subscription.queue)
            elif isinstance(subscription, TopicSubscription):
                self._dispatch_pending(subscription)

    def handle(self, connection: Connection, command: Command) -> None:
        """Carry out one command. What the peer did wrong is told to its session, not raised."""
        client: Client = connection.client
        if not client.is_open:
            return
        try:
            self._handlers[type(command)](client, command)
        except ClientError as error:
            if error.receipt is None:
                error.receipt = getattr(command, "receipt", None)
            self._fail(client, error)

    def _fail(self, client: Client, error: ClientError) -> None:
        client.session.fail(error)
        client.connection.touch()
        if error.is_fatal or self._settings.stomp_strict_errors:
            client.is_there = False
            self._leave(client)
            client.connection.close()

    def _leave(self, client: Client) -> None:
        if not client.is_open:
            return
        client.is_open = False
        self._clients.discard(client)
        if client.id is not None:
            del self._client_ids[client.id]
        for transaction in client.transactions.values():
            transaction.undo()
        client.transactions = {}
        subscriptions, client.subscriptions = client.subscriptions, {}
        # First all are closed, then what they left is given on: not from one of this client's to the next.
        queues = dict.fromkeys(self._subscriber.close(subscription) for subscription in subscriptions.values())
        for queue in queues:
            if queue is not None:
                self._dispatch(queue)

    def _connect(self, client: Client, command: Connect) -> None:
        if command.client_id is not None:
            other = self._client_ids.get(command.client_id)
            if other is not None:
                raise ClientError(
                    f"Client id {command.client_id!r} is connected already from {other.connection.peer}",
                    "A client id belongs to one connection at a time.",
                )
            self._client_ids[command.client_id] = client
            client.id = command.client_id
        client.session.connected(command, client.connection.id)
        client.connection.touch()

    def _protocol_failure(self, client: Client, command: ProtocolFailure) -> None:
        raise command.error

    def _disconnect(self, client: Client, command: Disconnect) -> None:
        self._leave(client)
        # An empty operation: it comes back when all before it is durable.
        self._append(Atomic((), None, _Farewell(client, command.receipt)))

    # ---- in: messages

    def _send(self, client: Client, command: Send) -> None:
        message = command.message
        if command.transaction is not None:
            transaction = self._transaction(client, command.transaction)
            if self._store.is_full and self._is_stored(client, message):
                self._refused += 1
                transaction.refuse(self._store.full_reason, FULL_ADVICE)
            transaction.send(message)
            client.tell_receipt(command.receipt)
            return
        destination = message.destination
        queue = self._by_name.get(destination)
        if queue is None:
            queue = self._destinations.route(destination)
        if not queue.owner or not message.persistent:
            self._send_otherwise(client, message, queue, command.receipt)
            return
        receipt = command.receipt
        waiting = None if receipt is None else (client, receipt)
        try:
            self._append(_add(message, queue.owners, encode_payload(message), waiting))
        except StoreFull as error:
            raise self._full(str(error)) from error

    def _send_otherwise(self, client: Client, message: Message, target: Queue | Topic, receipt: str | None) -> None:
        """To a topic, or without the store."""
        owners = self._stored_by(message, target, client)
        if owners:
            try:
                add = _add(message, owners, encode_payload(message), (client, receipt))
                add.passed_over = self._passed_over(add, target, client)
                self._append(add)
            except StoreFull as error:
                raise self._full(str(error)) from error
            return
        if isinstance(target, Queue) or target.durables:
            self._check_memory(message)
        self._show(client, message, target)
        client.tell_receipt(receipt)

    def _stored_by(self, message: Message, target: Queue | Topic, client: Client) -> tuple[int, ...]:
        """The owners for which the store must keep ``message``; none when it is not to be stored."""
        if not message.persistent or target.destination.kind > DestinationKind.TOPIC:
            return ()
        return target.owners if isinstance(target, Queue) else target.takers(client.connection)

    def _passed_over(
        self, add: AddMessage, target: Queue | Topic, client: Client, transaction: TransactionId | None = None
    ) -> tuple[bytes, ...]:
        """A Remove for each durable subscription that must not get the message: a replay of the journal gives it to
        all. Empty acknowledgements, as ActiveMQ writes for what a selector passes over."""
        if isinstance(target, Queue) or len(add.owners) == len(target.owners):
            return ()
        message = add.message
        return tuple(
            encode_remove(message.destination, message.message_id, transaction, key, b"")
            for key in target.passed_over(client.connection)
        )

    def _is_stored(self, client: Client, message: Message) -> bool:
        return bool(self._stored_by(message, self._destinations.route(message.destination), client))

    def _full(self, reason: str, count: int = 1) -> ClientError:
        """What a producer is told whose messages the store cannot take now."""
        self._refused += count
        return ClientError(reason, FULL_ADVICE, is_fatal=False)

    def _check_memory(self, message: Message) -> None:
        memory = self._memory
        if memory.volatile + len(message.body) > memory.volatile_max:
            raise ClientError(
                "Non-persistent messages fill their memory",
                f"non_persistent_memory_limit is {memory.volatile_max} bytes. Send with persistent:true, or later.",
                is_fatal=False,
            )

    def _show(self, client: Client, message: Message, target: Queue | Topic) -> None:
        """A message that is not stored becomes visible."""
        if isinstance(target, Queue):
            target.add_volatile(message)
            self._dispatch(target)
            return
        self._deliver(target.publish(message, client.connection))
        for durable in list(target.durables.values()):
            if durable.no_local_outlet is not client.connection:
                durable.add_volatile(message)
                self._dispatch(durable)

    # ---- in: acknowledgements

    def _ack(self, client: Client, command: Ack) -> None:
        subscription = client.subscriptions.get(command.id)
        covered = subscription.take(command.tag) if subscription is not None else None
        if not covered or subscription is None:
            raise _unexpected("ACK", command)
        receipt = command.receipt
        if command.transaction is not None:
            self._enlist(client, command, subscription, covered)
            return
        queue = subscription.queue
        if queue is None:
            if subscription.topic is not None:
                self._dispatch_pending(subscription)
            client.tell_receipt(receipt)
            return
        waiting = None
        last = covered[-1][1]
        if receipt is not None:
            if last.order_key:
                waiting = (client, receipt)
            elif any(entry.order_key for _, entry in covered):
                last = next(entry for _, entry in reversed(covered) if entry.order_key)
                waiting = (client, receipt)
        for _, entry in covered:
            queue.settle(entry)
            if entry.order_key:
                self._remove(queue, entry, waiting if entry is last else None)
        if receipt is not None and waiting is None:
            client.tell_receipt(receipt)
        if queue.ready or queue.returned or queue.is_paged:
            self._dispatch(queue)

    def _enlist(
        self, client: Client, command: Ack, subscription: Subscription, covered: list[tuple[int, Entry]]
    ) -> None:
        """An acknowledgement that counts at COMMIT; until then it only gives credit."""
        assert command.transaction is not None, "only an acknowledgement in a transaction is enlisted"
        try:
            self._transaction(client, command.transaction).acknowledge(subscription, covered)
        except ClientError:
            subscription.restore(covered)
            raise
        client.tell_receipt(command.receipt)
        if subscription.queue is not None:
            self._dispatch(subscription.queue)
        else:
            self._dispatch_pending(subscription)

    def _nack(self, client: Client, command: Nack) -> None:
        subscription = client.subscriptions.get(command.id)
        if command.transaction is not None:
            raise ClientError(
                "NACK in a transaction is not possible", "Send it without a transaction header.", is_fatal=False
            )
        if subscription is None or command.tag not in subscription.unacked:
            raise _unexpected("NACK", command)
        queue = subscription.queue
        waiting = None if command.receipt is None else (client, command.receipt)
        entry = subscription.unacked[command.tag]
        is_requeued = self._settings.stomp_nack == "requeue" and entry.refusals < self._settings.maximum_redeliveries
        if queue is not None and queue.is_dead_letter_queue and not is_requeued:
            # A dead letter does not die again: it stays with who refused it until that subscription ends.
            client.tell_receipt(command.receipt)
            return
        subscription.take_one(command.tag)
        if queue is None:
            self._dispatch_pending(subscription)
        elif is_requeued:
            entry.refusals += 1
            queue.give_back(entry)
        else:
            queue.settle(entry)
            if entry.order_key:
                cause = f"refused by NACK after {entry.redeliveries} redeliveries"
                self._dispatcher.bury(queue, entry, cause, waiting)
                waiting = None
        if waiting is not None:
            client.tell_receipt(command.receipt)
        if queue is not None:
            self._dispatch(queue)

    # ---- in: transactions

    def _transaction(self, client: Client, name: str) -> Transaction:
        found = client.transactions.get(name)
        if found is None:
            raise ClientError(f"No transaction {name!r}", "BEGIN opens one.")
        return found

    def _begin(self, client: Client, command: Begin) -> None:
        if command.transaction in client.transactions:
            raise ClientError(f"Transaction {command.transaction!r} was begun already")
        limit = self._settings.transactions_max
        if len(client.transactions) >= limit:
            raise ClientError(f"More than {limit} open transactions (transactions_max)")
        client.transactions_begun += 1
        client.transactions[command.transaction] = Transaction(
            command.transaction, client.transactions_begun, self._settings, self._memory
        )
        client.tell_receipt(command.receipt)

    def _abort(self, client: Client, command: Abort) -> None:
        transaction = self._transaction(client, command.transaction)
        del client.transactions[command.transaction]
        self._undo(transaction)
        client.tell_receipt(command.receipt)

    def _undo(self, transaction: Transaction) -> None:
        transaction.undo()
        for queue in dict.fromkeys(subscription.queue for subscription, _, _ in transaction.acknowledged):
            if queue is not None:
                self._dispatch(queue)

    def _commit(self, client: Client, command: Commit) -> None:
        transaction = self._transaction(client, command.transaction)
        del client.transactions[command.transaction]
        if transaction.doom is not None:
            self._undo(transaction)
            raise ClientError(
                f"Transaction {command.transaction!r} was rolled back: {transaction.doom}", is_fatal=False
            )
        identity = LocalTransactionId(client.connection.id, transaction.number)
        operations: list[AddMessage | RemoveMessage] = []
        volatile: list[Message] = []
        try:
            for message in transaction.messages:
                target = self._destinations.route(message.destination)
                owners = self._stored_by(message, target, client)
                if owners:
                    add = _add(message, owners, encode_payload(message, identity))
                    add.passed_over = self._passed_over(add, target, client, identity)
                    operations.append(add)
                else:
                    volatile.append(message)
            # What only acknowledges is committed also then.
            if operations and self._store.is_full:
                reason = f"Transaction {command.transaction!r} was rolled back: {self._store.full_reason}"
                raise self._full(reason, len(operations))
        except ClientError:
            self._undo(transaction)
            raise
        transaction.end()
        for subscription, tag, entry in transaction.acknowledged:
            subscription.enlisted.pop(tag, None)
            queue = subscription.queue
            if queue is None:
                continue
            queue.settle(entry)
            if entry.order_key and not queue.is_dropped:
                message_id = entry.message.message_id
                payload = encode_remove(queue.destination, message_id, identity, queue.subscription_key)
                operations.append(
                    RemoveMessage(queue.owner, entry.order_key, entry.location, message_id, payload, None, entry.size)
                )
        commitment = _Commitment(client, command.receipt, volatile)
        if operations:
            self._append(Atomic(operations, encode_commit(identity), commitment))
        else:
            self._committed(commitment)

    def _committed(self, commitment: _Commitment) -> None:
        client = commitment.client
        for message in commitment.volatile:
            self._show(client, message, self._destinations.route(message.destination))
        client.tell_receipt(commitment.receipt)

    # ---- back from the store

    def durable(self, operations: list[Operation]) -> None:
        """Those operations hold, in the order in which they were handed over."""
        by_owner = self._by_owner
        touched: dict[Queue, None] = {}
        for operation in operations:
            kind = type(operation)
            if kind is AddMessage:
                assert type(operation) is AddMessage
                queue = by_owner.get(operation.owners[0])
                if operation.is_duplicate:
                    self._duplicate(operation.message)
                elif queue is not None and queue.topic is None:
                    queue.add(operation.message, operation.order_key, operation.location, operation.size)
                    touched[queue] = None
                else:
                    self._published(operation, operation.context[0].connection, touched)  # type: ignore[index]
            elif kind is not RemoveMessage:
                self._durable_otherwise(operation, touched)
                continue
            waiting: Waiting | None = operation.context  # type: ignore[assignment]
            if waiting is not None:
                client, receipt = waiting
                if client.is_there and receipt is not None:
                    client.session.receipt(receipt)
                    client.connection.touch()
        for queue in touched:
            self._dispatch(queue)

    def _duplicate(self, message: Message) -> None:
        """Its producer sent it before, it was stored then, and nobody is given it twice."""
        self._duplicates += 1
        log.debug("sent again, and stored before: %s", message.message_id)

    def _published(self, operation: AddMessage, origin: Connection, touched: dict[Queue, None]) -> None:
        """A topic's message is durable. Subscriptions that were deleted meanwhile are left out."""
        message = operation.message
        topic = self._by_name.get(message.destination)
        if isinstance(topic, Topic):
            self._deliver(topic.publish(message, origin))
        for owner in operation.owners:
            queue = self._by_owner.get(owner)
            if queue is not None:
                queue.add(message, operation.order_key, operation.location, operation.size)
                touched[queue] = None

    def _durable_otherwise(self, operation: Operation, touched: dict[Queue, None]) -> None:
        context = operation.context
        if isinstance(operation, Page):
            queue = self._by_owner.get(operation.owner)
            if queue is not None:
                queue.page(operation.messages, operation.is_end)
                touched[queue] = None
        elif isinstance(context, Opening):
            context.client.tell_receipt(context.receipt)
            queue = context.subscription.queue
            if context.subscription.is_open and queue is not None:
                queue.open(context.subscription)
                touched[queue] = None
        elif isinstance(context, _Farewell):
            context.client.tell_receipt(context.receipt)
            if context.client.is_there:
                context.client.is_there = False
                context.client.connection.close()
        elif isinstance(operation, Atomic):
            self._durable_atomic(operation, touched)
        elif context is not None:
            assert isinstance(context, tuple), "who waits, and for which receipt"
            context[0].tell_receipt(context[1])

    def _durable_atomic(self, atomic: Atomic, touched: dict[Queue, None]) -> None:
        context = atomic.context
        for part in atomic.operations:
            if isinstance(part, AddMessage):
                queue = self._by_owner.get(part.owners[0])
                if part.is_duplicate:
                    self._duplicate(part.message)
                elif queue is not None and queue.topic is None:
                    queue.add(part.message, part.order_key, part.location, part.size)
                    touched[queue] = None
                elif isinstance(context, _Commitment):
                    self._published(part, context.client.connection, touched)
        if isinstance(context, _Commitment):
            self._committed(context)
        elif isinstance(context, tuple):
            context[0].tell_receipt(context[1])

    def tick(self, now: int) -> None:
        """Once a second, with the time in milliseconds since 1970."""
        self._dispatcher.tick(now)

    def statistics(self) -> dict[str, Any]:
        """Figures for ``status``: a dict of plain values."""
        counts = {
            "clients": len(self._clients),
            "dead_letters_total": self._dispatcher.dead_letters,
            "duplicates_total": self._duplicates,
            "expired_total": self._dispatcher.expired,
            "sends_refused_store_full_total": self._refused,
        }
        return statistics(self._destinations, self._memory, counts)


def _add(message: Message, owners: tuple[int, ...], payload: bytes, context: object = None) -> AddMessage:
    """What a client sent. It may send it again after a failover, if the id is its own."""
    return AddMessage(message, owners, payload, context, is_audited=not is_made_by_broker(message.message_id))


def _unexpected(name: str, command: Ack | Nack) -> ClientError:
    return ClientError(
        f"Unexpected {name} received for delivery {command.tag} of subscription {command.id!r}",
        "It must name a MESSAGE of an open subscription that was not acknowledged yet.",
        is_fatal=False,
    )
