"""Core decides, store remembers, sessions are told: the one place where the three meet.

Nothing in here waits. A command is decided upon at once; what must survive is handed to the store and comes back
through ``durable``, in order, and only then is it told (RECEIPT) and given on (MESSAGE). What need not survive
takes the same way without the store. All methods are called on the event loop.

An engine lives as long as one term as master. Loss of the store is not its affair: its connections are closed, and
the next promotion builds a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

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
from broker.core.deadletter import dead_letter
from broker.core.destinations import Destinations
from broker.core.queue import Delivery, Queue
from broker.core.settings import EngineSettings
from broker.core.statistics import statistics
from broker.core.subscription import Entry, Memory, Session, Subscription
from broker.core.topic import DurableSubscription, Topic, TopicSubscription
from broker.core.transaction import Transaction
from store.operations import AddMessage, AddSubscription, Atomic, Operation, Owner, Page, RemoveMessage, RemoveOwner
from store.records.commands import (
    encode_add,
    encode_commit,
    encode_remove,
    encode_subscription,
    encode_unsubscribe,
    subscription_key,
)
from store.records.errors import Unencodable
from store.records.message import Destination, DestinationKind, Message
from store.records.openwire import encode_message
from store.records.transactions import LocalTransactionId, TransactionId


class Connection(Protocol):
    """What the engine uses of a connection. ``client`` is the engine's own slot in it."""

    client: Any

    @property
    def id(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def session(self) -> Session: ...

    @property
    def is_writable(self) -> bool: ...

    def touch(self) -> None: ...

    def close(self, after_flush: bool = True) -> None: ...


class Store(Protocol):
    """What the engine asks of a store (store.store.Store, store.memory.MemoryStore)."""

    epoch: int
    is_congested: bool

    def queue(self, destination: Destination) -> int: ...

    def subscription(self, client_id: str, name: str, destination: Destination) -> int: ...

    def append(self, operation: Operation) -> None: ...

    def owners(self) -> list[Owner]: ...


class Client:
    """What the engine knows of one connection. ``is_open``: commands count; ``is_there``: it can be told something."""

    __slots__ = (
        "connection",
        "id",
        "is_open",
        "is_there",
        "session",
        "subscriptions",
        "transactions",
        "transactions_begun",
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.session = connection.session
        self.id: str | None = None
        self.is_open = True
        self.is_there = True
        self.subscriptions: dict[str, Subscription] = {}
        self.transactions: dict[str, Transaction] = {}
        self.transactions_begun = 0


# What the engine gives the store as context: who waits, and for which receipt.
Waiting = tuple[Client, str | None]


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


class _Opening:
    """Context of a new durable subscription's AddSubscription."""

    __slots__ = ("client", "receipt", "subscription")

    def __init__(self, client: Client, receipt: str | None, subscription: Subscription) -> None:
        self.client = client
        self.receipt = receipt
        self.subscription = subscription


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
        self._clock = clock
        self._on_drained = on_drained
        self._memory = Memory(
            settings.memory_limit, settings.non_persistent_memory_limit, settings.transactions_memory_limit
        )
        self._destinations = Destinations(settings, self._memory, store.queue, store.owners())
        self._by_name = self._destinations.by_name
        self._by_owner = self._destinations.by_owner
        self._clients: set[Client] = set()
        self._client_ids: dict[str, Client] = {}
        self._dead_letters = 0
        self._expired = 0
        self._sweep_from = 0
        self._handlers: dict[type, Callable[[Client, Any], None]] = {
            Send: self._send,
            Ack: self._ack,
            Nack: self._nack,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
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
        queues = dict.fromkeys(self._close(subscription) for subscription in subscriptions.values())
        for queue in queues:
            if queue is not None:
                self._dispatch(queue)

    def _close(self, subscription: Subscription) -> Queue | None:
        queue = subscription.queue
        if queue is not None:
            queue.close(subscription)
        elif isinstance(subscription, TopicSubscription) and subscription.topic is not None:
            subscription.topic.close(subscription)
        return queue

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
            self._transaction(client, command.transaction).send(message)
            self._tell_receipt(client, command.receipt)
            return
        destination = message.destination
        queue = self._by_name.get(destination)
        if queue is None:
            queue = self._destinations.route(destination)
        if not queue.owner or not message.persistent:
            self._send_otherwise(client, message, queue, command.receipt)
            return
        try:
            payload = encode_add(message, encode_message(message))
        except Unencodable as error:
            raise _unencodable(error) from error
        receipt = command.receipt
        self._append(AddMessage(message, queue.owners, payload, None if receipt is None else (client, receipt)))

    def _send_otherwise(self, client: Client, message: Message, target: Queue | Topic, receipt: str | None) -> None:
        """To a topic, or without the store."""
        owners = self._stored_by(message, target, client)
        if owners:
            self._append(AddMessage(message, owners, _payload(message), (client, receipt)))
            return
        if isinstance(target, Queue) or target.durables:
            self._check_memory(message)
        self._show(client, message, target)
        self._tell_receipt(client, receipt)

    def _stored_by(self, message: Message, target: Queue | Topic, client: Client) -> tuple[int, ...]:
        """The owners for which the store must keep ``message``; none when it is not to be stored."""
        if not message.persistent or target.destination.kind > DestinationKind.TOPIC:
            return ()
        return target.owners if isinstance(target, Queue) else target.takers(client.connection)

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

    # ---- in: subscriptions

    def _subscribe(self, client: Client, command: Subscribe) -> None:
        if command.id in client.subscriptions:
            raise ClientError(f"Subscription {command.id!r} exists already", "Each needs its own id.")
        settings = self._settings
        if len(client.subscriptions) >= settings.subscriptions_max:
            raise ClientError(f"More than {settings.subscriptions_max} subscriptions (subscriptions_max)")
        destination = command.destination
        if command.durable_name is not None:
            self._subscribe_durable(client, command, command.durable_name)
            return
        if destination.is_topic:
            prefetch = self._prefetch(command, settings.topic_prefetch)
            plain = TopicSubscription(
                command.id, client.connection, command.ack, prefetch, settings, no_local=command.no_local
            )
            self._destinations.topic(destination).open(plain)
            client.subscriptions[command.id] = plain
            self._tell_receipt(client, command.receipt)
            return
        queue = self._destinations.queue(destination)
        prefetch = self._prefetch(command, settings.queue_prefetch)
        subscription = Subscription(command.id, client.connection, command.ack, prefetch)
        client.subscriptions[command.id] = subscription
        # The receipt precedes the first message (ActiveMQ).
        self._tell_receipt(client, command.receipt)
        queue.open(subscription)
        self._dispatch(queue)

    def _prefetch(self, command: Subscribe, default: int) -> int:
        """At least one: a consumer that can never get anything is a mistake."""
        wanted = default if command.prefetch is None else command.prefetch
        return max(1, min(wanted, self._settings.prefetch_max))

    def _subscribe_durable(self, client: Client, command: Subscribe, name: str) -> None:
        destination = command.destination
        if destination.kind is not DestinationKind.TOPIC:
            raise ClientError(f"{destination} is no topic", "Only a topic has durable subscriptions.")
        client_id = _client_id(client)
        durable = self._destinations.durables.get(subscription_key(client_id, name))
        is_new = durable is None
        if durable is not None and durable.destination != destination:
            # As JMS wants it: another destination under the same name is another subscription.
            self._check_unused(durable)
            self._delete(durable, None)
            is_new = True
        if is_new:
            owner = self._store.subscription(client_id, name, destination)
            durable = self._destinations.add_durable(destination, owner, client_id, name)
        assert durable is not None, "it was found or made"
        prefetch = self._prefetch(command, self._settings.durable_topic_prefetch)
        subscription = Subscription(command.id, client.connection, command.ack, prefetch, no_local=command.no_local)
        durable.reserve(subscription)
        client.subscriptions[command.id] = subscription
        if is_new:
            payload = encode_subscription(destination, client_id, name, no_local=command.no_local)
            self._append(AddSubscription(durable.owner, payload, _Opening(client, command.receipt, subscription)))
            return
        self._tell_receipt(client, command.receipt)
        durable.open(subscription)
        self._dispatch(durable)

    def _unsubscribe(self, client: Client, command: Unsubscribe) -> None:
        durable = None
        if command.durable_name is not None:
            durable = self._destinations.durables.get(subscription_key(_client_id(client), command.durable_name))
            if durable is None:
                raise ClientError(
                    f"No durable subscription {command.durable_name!r} of client {client.id!r}", is_fatal=False
                )
            if durable.subscription is not None and durable.subscription.outlet is not client.connection:
                self._check_unused(durable)
        queue = None
        if command.id is not None:
            subscription = client.subscriptions.pop(command.id, None)
            if subscription is None:
                raise ClientError(f"No subscription matched {command.id!r}", is_fatal=False)
            queue = self._close(subscription)
        if durable is not None:
            if durable.subscription is not None:
                client.subscriptions.pop(durable.subscription.id, None)
                durable.close(durable.subscription)
            self._delete(durable, (client, command.receipt))
            return
        self._tell_receipt(client, command.receipt)
        if queue is not None:
            self._dispatch(queue)

    def _check_unused(self, durable: DurableSubscription) -> None:
        if durable.subscription is not None:
            raise durable.in_use()

    def _delete(self, durable: DurableSubscription, waiting: Waiting | None) -> None:
        self._destinations.remove_durable(durable)
        payload = encode_unsubscribe(durable.destination, durable.client_id, durable.name)
        self._append(RemoveOwner(durable.owner, payload, waiting))

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
            self._tell_receipt(client, receipt)
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
            self._tell_receipt(client, receipt)
        if queue.ready or queue.returned or queue.is_paged:
            self._dispatch(queue)

    def _remove(self, queue: Queue, entry: Entry, waiting: Waiting | None = None) -> None:
        message_id = entry.message.message_id
        payload = encode_remove(queue.destination, message_id, None, queue.subscription_key)
        self._append(
            RemoveMessage(queue.owner, entry.order_key, entry.location, message_id, payload, waiting, entry.size)
        )

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
        self._tell_receipt(client, command.receipt)
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
            self._tell_receipt(client, command.receipt)
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
                self._bury(queue, entry, cause, waiting)
                waiting = None
        if waiting is not None:
            self._tell_receipt(client, command.receipt)
        if queue is not None:
            self._dispatch(queue)

    def _bury(self, queue: Queue, entry: Entry, cause: str, waiting: Waiting | None = None) -> None:
        """``entry``, which is stored and out of its queue, moves to the dead letter queue in one piece."""
        self._dead_letters += 1
        message_id = None
        if queue.subscription_key is not None:
            message_id = f"ID:dead-letter-{self._store.epoch}:1:1:{self._dead_letters}"
        letter = dead_letter(entry.message, cause, message_id)
        target = self._destinations.queue(letter.destination)
        remove = RemoveMessage(
            queue.owner,
            entry.order_key,
            entry.location,
            entry.message.message_id,
            encode_remove(queue.destination, entry.message.message_id, None, queue.subscription_key),
            None,
            entry.size,
        )
        self._append(Atomic((AddMessage(letter, target.owners, _payload(letter)), remove), None, waiting))

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
        self._tell_receipt(client, command.receipt)

    def _abort(self, client: Client, command: Abort) -> None:
        transaction = self._transaction(client, command.transaction)
        del client.transactions[command.transaction]
        self._undo(transaction)
        self._tell_receipt(client, command.receipt)

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
                owners = self._stored_by(message, self._destinations.route(message.destination), client)
                if owners:
                    operations.append(AddMessage(message, owners, _payload(message, identity)))
                else:
                    volatile.append(message)
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
        self._tell_receipt(client, commitment.receipt)

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
                if queue is not None and queue.topic is None:
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
        elif isinstance(context, _Opening):
            self._tell_receipt(context.client, context.receipt)
            queue = context.subscription.queue
            if context.subscription.is_open and queue is not None:
                queue.open(context.subscription)
                touched[queue] = None
        elif isinstance(context, _Farewell):
            self._tell_receipt(context.client, context.receipt)
            if context.client.is_there:
                context.client.is_there = False
                context.client.connection.close()
        elif isinstance(operation, Atomic):
            self._durable_atomic(operation, touched)
        elif context is not None:
            assert isinstance(context, tuple), "who waits, and for which receipt"
            self._tell_receipt(*context)

    def _durable_atomic(self, atomic: Atomic, touched: dict[Queue, None]) -> None:
        context = atomic.context
        for part in atomic.operations:
            if isinstance(part, AddMessage):
                queue = self._by_owner.get(part.owners[0])
                if queue is not None and queue.topic is None:
                    queue.add(part.message, part.order_key, part.location, part.size)
                    touched[queue] = None
                elif isinstance(context, _Commitment):
                    self._published(part, context.client.connection, touched)
        if isinstance(context, _Commitment):
            self._committed(context)
        elif isinstance(context, tuple):
            self._tell_receipt(*context)

    # ---- out

    def _tell_receipt(self, client: Client, receipt: str | None) -> None:
        if receipt is not None and client.is_there:
            client.session.receipt(receipt)
            client.connection.touch()

    def _dispatch(self, queue: Queue) -> None:
        """Give out what can be given, and see to it that the next messages are read in time."""
        now = self._clock()
        while True:
            deliveries = queue.dispatch(now)
            if deliveries:
                self._deliver(deliveries)
            if queue.expired:
                self._expire(queue, now)
            if not queue.has_more:
                break
        if queue.is_paged and queue.wants_page:
            self._append(queue.ask_page())

    def _deliver(self, deliveries: Iterable[Delivery]) -> None:
        last = None
        for subscription, tag, entry in deliveries:
            outlet = subscription.outlet
            outlet.session.deliver(subscription.id, tag, entry.message, entry.redeliveries > 0, subscription.ack)
            if outlet is not last:
                outlet.touch()
                last = outlet
            if entry.order_key and subscription.is_auto and subscription.queue is not None:
                self._remove(subscription.queue, entry)

    def _dispatch_pending(self, subscription: Subscription) -> None:
        assert isinstance(subscription, TopicSubscription), "only a topic's subscription has no queue"
        while subscription.pending:
            deliveries = subscription.dispatch(self._clock())
            if not deliveries:
                break
            self._deliver(deliveries)

    # ---- time

    def tick(self, now: int) -> None:
        """Once a second: what expired in memory is cleared away, a bounded number of messages each time; when memory
        runs short, queues without consumers leave theirs to the store."""
        queues = list(self._by_owner.values())
        queues += [queue for queue in self._destinations.queues() if not queue.owner]
        budget = self._settings.expiry_entries_per_tick
        for number in range(len(queues)):
            queue = queues[(self._sweep_from + number) % len(queues)]
            budget -= queue.sweep(now)
            if queue.expired:
                self._expire(queue, now)
                self._dispatch(queue)
            if budget <= 0:
                self._sweep_from += number + 1
                break
        if self._memory.stored * 2 > self._memory.stored_max:
            for queue in queues:
                queue.evict()

    def _expire(self, queue: Queue, now: int) -> None:
        expired, queue.expired = queue.expired, []
        self._expired += len(expired)
        for entry in expired:
            queue.forget(entry)
            if not entry.order_key:
                continue
            if queue.is_dead_letter_queue:
                self._remove(queue, entry)
            else:
                self._bury(queue, entry, f"Message expired at {entry.message.expiration}, met at {now}")

    def statistics(self) -> dict[str, Any]:
        """Figures for ``status``: a dict of plain values."""
        counts = {
            "clients": len(self._clients),
            "dead_letters_total": self._dead_letters,
            "expired_total": self._expired,
        }
        return statistics(self._destinations, self._memory, counts)


def _payload(message: Message, transaction: TransactionId | None = None) -> bytes:
    try:
        return encode_add(message, encode_message(message), transaction)
    except Unencodable as error:
        raise _unencodable(error) from error


def _unencodable(error: Unencodable) -> ClientError:
    return ClientError(f"The message cannot be stored: {error}", is_fatal=False)


def _unexpected(name: str, command: Ack | Nack) -> ClientError:
    return ClientError(
        f"Unexpected {name} received for delivery {command.tag} of subscription {command.id!r}",
        "It must name a MESSAGE of an open subscription that was not acknowledged yet.",
        is_fatal=False,
    )


def _client_id(client: Client) -> str:
    if client.id is None:
        raise ClientError("A durable subscription needs a client id", "CONNECT with the header client-id.")
    return client.id
