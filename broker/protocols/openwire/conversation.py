"""Open sessions, consumers, producers and transactions of one OpenWire client, by its names, and its commands. Pure.

A command that changes nothing in the broker (it is a repetition, or only information) gives no commands, and is
answered at once if its client waits. All others give commands, the last of which carries the receipt of the client's
command.

An object counts as open from the moment its command is read, so that the next commands find it; the broker may still
refuse it, and then it counts as never opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from tandemmq.broker.core.commands import (
    Ack,
    AckMode,
    AddDestination,
    AddProducer,
    Begin,
    ClientError,
    Command,
    Commit,
    Connect,
    Disconnect,
    ErrorKind,
    GiveUp,
    Prepare,
    Pull,
    Recover,
    RemoveDestination,
    RemoveProducer,
    SetPrefetch,
    Subscribe,
    Unsubscribe,
    refusal,
)
from tandemmq.broker.protocols.openwire import acks, schema, transactions
from tandemmq.broker.protocols.openwire.consumers import LAST_DELIVERED_UNKNOWN, Consumer, subscription_id
from tandemmq.broker.protocols.openwire.hot import read_single_ack
from tandemmq.broker.protocols.openwire.schema import DestinationOperation, TransactionType
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId, ProducerId, SessionId
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.message_ids import is_of_broker

# Limit of one connection's sessions; for consumers the engine has a bound.
SESSIONS_MAX = 10_000
PRODUCERS_MAX = 10_000
# Maximum number of consumers that the broker ended and their client has not closed yet. Beyond it the oldest is
# forgotten, and closing a forgotten one is an error.
ENDED_MAX = 1_000
# Maximum number of transactions whose acknowledgements are remembered; the oldest is forgotten first. A connection has
# so many open ones only if they end on other connections.
TRANSACTIONS_MAX = 10_000

# Each connection has it without opening it: advisory consumers use it (ActiveMQConnection).
CONNECTION_SESSION: Final = -1
_RECOVER: Final = int(TransactionType.RECOVER)


@dataclass(slots=True, eq=False)
class Pending:
    """Receipt that also calls ``done`` or ``failed``. ``command_id``: the command to respond to; None: the client
    awaits no response."""

    command_id: int | None
    done: Callable[[], object] | None = None
    failed: Callable[[], object] | None = None


class Producer(NamedTuple):
    """Producer of the connection. ``has_window``: it counts messages that it sent and that are not confirmed
    (ProducerInfo.windowSize)."""

    id: ProducerId
    has_window: bool

    @property
    def name(self) -> str:
        """Name of the producer in the broker, within the connection."""
        return f"{self.id.session_id}:{self.id.value}"


# Acknowledgements of a transaction: the consumer, the first and the last delivery.
Acknowledged = set[tuple[Consumer, int, int]]


@dataclass(slots=True, eq=False, repr=False)
class Conversation:
    """The open sessions, producers, consumers and transactions of one client. ``producers`` go by their whole ids,
    ``consumers`` by the ids of their subscriptions.

    ``steals_links``: a connection with a client id that is in use takes it over (allowLinkStealing).
    """

    _: KW_ONLY
    steals_links: bool = False
    connection_id: str | None = field(default=None, init=False)
    # True if the client has a failover transport: as in ConnectionInfo, and before that when it comes back
    # (ConnectionControl).
    is_fault_tolerant: bool = field(default=False, init=False)
    _is_restored: bool = field(default=False, init=False)  # it comes back from another connection (failover)
    _ended: dict[str, None] = field(default_factory=dict, init=False)
    _sessions: set[int] = field(default_factory=set, init=False)
    producers: dict[str, Producer] = field(default_factory=dict, init=False)
    consumers: dict[str, Consumer] = field(default_factory=dict, init=False)
    _by_wire_id: dict[bytes, Consumer] = field(default_factory=dict, init=False)
    _transactions: dict[str, Acknowledged] = field(default_factory=dict, init=False)

    def commands_of(self, command: schema.Command, receipt: int | None) -> list[Command]:
        """Return the commands for ``command``, which is not a message. Raises ClientError for a request that is not
        allowed."""
        handler = _HANDLERS.get(type(command))
        if handler is None:
            raise ClientError(f"{type(command).__name__} is not a command that a client sends to a broker")
        return handler(self, command, receipt)

    # ---- the connection

    def _connect(self, command: schema.ConnectionInfo, receipt: int | None) -> list[Command]:
        id = command.connection_id
        if id is None:
            raise ClientError("ConnectionInfo lacks the connection id")
        if id.value == self.connection_id:
            return []  # TransportConnection.processAddConnection: a repetition is not an error
        if self.connection_id is not None:
            raise _not_registered(
                f"This socket already has the connection {self.connection_id}",
                "Open another socket for another connection.",
            )
        if command.client_id is None:
            raise ClientError("No clientID specified for connection request", kind=ErrorKind.CLIENT_ID)
        self.connection_id = id.value
        self.is_fault_tolerant |= command.fault_tolerant
        self._is_restored = command.failover_reconnect
        return [
            Connect(
                command.client_id,
                command.user_name,
                command.password,
                connection_id=id.value,
                receipt=receipt,
                steals_client_id=self.steals_links,
            )
        ]

    def _connection_control(self, command: schema.ConnectionControl, receipt: int | None) -> list[Command]:
        self.is_fault_tolerant = command.fault_tolerant
        return []

    def _shutdown(self, command: schema.ShutdownInfo, receipt: int | None) -> list[Command]:
        return [Disconnect(receipt)]

    def _bridge(self, command: schema.BrokerInfo, receipt: int | None) -> list[Command]:
        raise ClientError(
            f"Broker {(command.broker_name or '')[:80]!r} wants a network connection",
            "This broker does not support networks of brokers.",
        )

    def _pass_over(self, command: schema.Command, receipt: int | None) -> list[Command]:
        """Do nothing: the command requires no action of the broker (TransportConnection)."""
        return []

    def _check_connection(self, connection_id: str | None) -> None:
        if connection_id is None or connection_id != self.connection_id:
            raise _not_registered(
                f"Connection {connection_id} had not been registered on this socket", "ConnectionInfo comes first."
            )

    def _check_session(self, connection_id: str, session_id: int) -> None:
        self._check_connection(connection_id)
        if session_id not in self._sessions and session_id != CONNECTION_SESSION:
            raise _not_registered(
                f"Session {connection_id}:{session_id} had not been registered", "SessionInfo comes first."
            )

    # ---- sessions, producers, consumers

    def _add_session(self, command: schema.SessionInfo, receipt: int | None) -> list[Command]:
        id = command.session_id
        if id is None:
            raise _lacking(command, "session id")
        self._check_connection(id.connection_id)
        if len(self._sessions) >= SESSIONS_MAX and id.value not in self._sessions:
            raise _too_many("sessions", SESSIONS_MAX)
        self._sessions.add(id.value)
        return []

    def _add_producer(self, command: schema.ProducerInfo, receipt: int | None) -> list[Command]:
        id = command.producer_id
        if id is None:
            raise _lacking(command, "producer id")
        self._check_session(id.connection_id, id.session_id)
        if is_of_broker(id.session_id):
            raise refusal(
                f"Producer {id} uses the session number of a broker",
                "The ids of its messages are reserved for the broker.",
                ErrorKind.SECURITY,
            )
        key = str(id)
        if key in self.producers:
            return []
        if len(self.producers) >= PRODUCERS_MAX:
            raise _too_many("producers", PRODUCERS_MAX)
        self.producers[key] = producer = Producer(id, command.window_size > 0)
        destination = None if command.destination is None else without_options(command.destination)
        return [
            AddProducer(producer.name, destination, Pending(receipt, failed=partial(self.producers.pop, key, None)))
        ]

    def _add_consumer(self, command: schema.ConsumerInfo, receipt: int | None) -> list[Command]:
        id = command.consumer_id
        if id is None:
            raise _lacking(command, "consumer id")
        self._check_session(id.connection_id, id.session_id)
        if command.destination is None:
            raise refusal("ConsumerInfo lacks the destination", kind=ErrorKind.DESTINATION)
        destination = without_options(command.destination)
        durable_name = command.subscription_name if destination.is_topic else None
        is_browser = command.browser and not destination.is_topic
        is_plain_topic = destination.is_topic and durable_name is None
        consumer = Consumer(
            id,
            is_lenient=is_browser or is_plain_topic,
            has_groups=not (is_browser or destination.is_topic),
            is_restored=self._is_restored,
        )
        if consumer.id in self.consumers:
            return []
        if command.prefetch_size < 0:
            raise refusal(f"A prefetch of {command.prefetch_size} is impossible")
        self.consumers[consumer.id] = self._by_wire_id[consumer.wire_id] = consumer
        return [
            Subscribe(
                consumer.id,
                destination,
                AckMode.RANGE,
                prefetch=command.prefetch_size,
                durable_name=durable_name,
                selector=command.selector or None,
                no_local=command.no_local,
                is_browser=is_browser,
                is_exclusive=command.exclusive,
                is_retroactive=command.retroactive,
                priority=command.priority,
                receipt=Pending(receipt, failed=partial(self._forget_consumer, consumer)),
            )
        ]

    def _forget_consumer(self, consumer: Consumer) -> None:
        if self.consumers.get(consumer.id) is consumer:
            del self.consumers[consumer.id]
            del self._by_wire_id[consumer.wire_id]

    def end_consumer(self, id: str) -> ConsumerId | None:
        """End a consumer for the broker; its client will close it later. None if that happened already."""
        consumer = self.consumers.get(id)
        if consumer is None:
            return None
        self._forget_consumer(consumer)
        if len(self._ended) >= ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[id] = None
        return consumer.consumer_id

    def _remove(self, command: schema.RemoveInfo, receipt: int | None) -> list[Command]:
        id = command.object_id
        last_delivered = command.last_delivered_sequence_id
        if isinstance(id, ConsumerId):
            consumer = self._consumer(id)
            if consumer is None:
                if self._ended.pop(subscription_id(id), ENDED_MAX) is None:
                    return []
                raise _unknown("Consumer", id)
            return [self._unsubscribe(consumer, last_delivered, receipt)]
        if isinstance(id, ProducerId):
            producer = self.producers.pop(str(id), None)
            if producer is None:
                raise _unknown("Producer", id)
            return [RemoveProducer(producer.name, receipt)]
        if isinstance(id, SessionId):
            return self._remove_session(id, last_delivered, receipt)
        if isinstance(id, ConnectionId):
            self._check_connection(id.value)
            commands: list[Command] = [
                self._unsubscribe(each, last_delivered) for each in list(self.consumers.values())
            ]
            self.connection_id = None
            self._sessions.clear()
            self.producers.clear()
            self._transactions.clear()
            self._ended.clear()
            # After the response the client sends ShutdownInfo and disconnects, or ConnectionInfo, and begins again
            # (pools do): an end before that is an error for it.
            return [*commands, Disconnect(receipt, is_awaited=True)]
        raise _lacking(command, "object id")

    def _remove_session(self, id: SessionId, last_delivered: int, receipt: int | None) -> list[Command]:
        if id.connection_id != self.connection_id or id.value not in self._sessions:
            raise _unknown("Session", id)
        self._sessions.discard(id.value)
        consumers = [each for each in self.consumers.values() if each.consumer_id.session_id == id.value]
        producers = [key for key, each in self.producers.items() if each.id.session_id == id.value]
        commands: list[Unsubscribe | RemoveProducer] = [
            *(self._unsubscribe(each, last_delivered) for each in consumers),
            *(RemoveProducer(self.producers.pop(key).name) for key in producers),
        ]
        if commands:
            commands[-1].receipt = receipt
        return [*commands]

    def _unsubscribe(self, consumer: Consumer, last_delivered: int, receipt: int | None = None) -> Unsubscribe:
        self._forget_consumer(consumer)
        return Unsubscribe(consumer.id, seen=consumer.seen(last_delivered), receipt=receipt)

    def _remove_durable(self, command: schema.RemoveSubscriptionInfo, receipt: int | None) -> list[Command]:
        self._check_connection(None if command.connection_id is None else command.connection_id.value)
        if command.subscription_name is None:
            raise _lacking(command, "subscription name")
        return [Unsubscribe(None, durable_name=command.subscription_name, receipt=receipt)]

    def _consumer(self, id: ConsumerId | None) -> Consumer | None:
        if id is None or id.connection_id != self.connection_id:
            return None
        return self.consumers.get(subscription_id(id))

    # ---- commands of a consumer

    def _acknowledge(self, command: schema.MessageAck, receipt: int | None) -> list[Command]:
        consumer = self._consumer(command.consumer_id)
        if consumer is None:
            nothing = acks.of_nothing(command, receipt)  # its deliveries went back
            return [] if nothing is None else [nothing]
        asked = acks.command_of(command, consumer, receipt)
        if asked is None:
            return []
        if isinstance(asked, Ack) and asked.transaction is not None:
            # A rollback leaves these deliveries with the client, which acknowledges them again (openwire.md 12.1).
            held = self._transactions.get(asked.transaction)
            if held is not None:
                held.add((consumer, asked.first, asked.tag))
        elif isinstance(asked, Ack | GiveUp):
            consumer.forget(asked.first, asked.tag)
        return [asked]

    def single_ack(self, frame: bytes) -> Ack | None:
        """Read a MessageAck of the usual form like ``commands_of``, without the schema; None: use ``commands_of``."""
        single = read_single_ack(frame)
        if single is None:
            return None
        wire_id, message_id, receipt = single
        consumer = self._by_wire_id.get(wire_id)
        if consumer is None:
            return None
        tag = consumer.acknowledge(message_id)
        return None if tag is None else Ack(consumer.id, tag, None, receipt)

    def _pull(self, command: schema.MessagePull, receipt: int | None) -> list[Command]:
        consumer = self._consumer(command.consumer_id)
        if consumer is None:
            raise _unknown("Consumer", command.consumer_id)
        consumer.pull_ms = command.timeout
        return [Pull(consumer.id, command.timeout, receipt)]

    def _consumer_control(self, command: schema.ConsumerControl, receipt: int | None) -> list[Command]:
        consumer = self._consumer(command.consumer_id)
        if consumer is None:
            return []
        if command.close:
            return [self._unsubscribe(consumer, LAST_DELIVERED_UNKNOWN, receipt)]
        if command.start or command.stop or command.flush or command.prefetch < 0:
            return []  # a broker does none of these for a client
        return [SetPrefetch(consumer.id, command.prefetch, receipt)]

    # ---- destinations and transactions

    def _change_destination(self, command: schema.DestinationInfo, receipt: int | None) -> list[Command]:
        self._check_connection(None if command.connection_id is None else command.connection_id.value)
        if command.destination is None:
            raise _lacking(command, "destination")
        destination = without_options(command.destination)
        if command.operation_type == DestinationOperation.REMOVE:
            return [RemoveDestination(destination, receipt)]
        if command.operation_type != DestinationOperation.ADD:
            raise refusal(f"DestinationInfo of the unknown operation {command.operation_type}")
        is_temporary = destination.kind > DestinationKind.TOPIC
        owner, _, number = destination.name.rpartition(":")
        if is_temporary and (owner != self.connection_id or not number):
            # The name contains its owner: no client creates one for another connection, whose id may begin with this
            # connection's id.
            raise refusal(f"{destination} is not named after this connection", kind=ErrorKind.SECURITY)
        return [AddDestination(destination, receipt)]

    def _transact(self, command: schema.TransactionInfo, receipt: int | None) -> list[Command]:
        self._check_connection(None if command.connection_id is None else command.connection_id.value)
        if command.type == _RECOVER:
            return [Recover(receipt)]
        asked = transactions.command_of(command, receipt)
        if asked is None:
            return []
        name = asked.transaction
        if isinstance(asked, Begin):
            if name in self._transactions:
                # TransactionBroker.beginTransaction: a repetition is not an error. Another connection may end a branch.
                return [] if asked.xa is None else [asked]
            self._transactions[name] = set()
            if len(self._transactions) > TRANSACTIONS_MAX:
                del self._transactions[next(iter(self._transactions))]
            asked.receipt = Pending(receipt, failed=partial(self._transactions.pop, name, None))
        elif isinstance(asked, Commit):
            failed = partial(self._transactions.pop, name, None)
            asked.receipt = Pending(receipt, done=partial(self._committed, name), failed=failed)
        elif isinstance(asked, Prepare):
            # Final only if it was read-only: see OpenWireSession.prepared.
            asked.receipt = Pending(receipt, done=partial(self._committed, name))
        else:
            self._transactions.pop(name, None)
        return [asked]

    def _committed(self, name: str) -> None:
        for consumer, first, last in self._transactions.pop(name, ()):
            consumer.forget(first, last)


Handler = Callable[[Conversation, Any, int | None], list[Command]]

_HANDLERS: Final[dict[type[schema.Command], Handler]] = {
    schema.MessageAck: Conversation._acknowledge,
    schema.MessagePull: Conversation._pull,
    schema.TransactionInfo: Conversation._transact,
    schema.ConnectionInfo: Conversation._connect,
    schema.SessionInfo: Conversation._add_session,
    schema.ProducerInfo: Conversation._add_producer,
    schema.ConsumerInfo: Conversation._add_consumer,
    schema.ConsumerControl: Conversation._consumer_control,
    schema.ConnectionControl: Conversation._connection_control,
    schema.DestinationInfo: Conversation._change_destination,
    schema.RemoveInfo: Conversation._remove,
    schema.RemoveSubscriptionInfo: Conversation._remove_durable,
    schema.ShutdownInfo: Conversation._shutdown,
    schema.BrokerInfo: Conversation._bridge,
    schema.FlushCommand: Conversation._pass_over,
    schema.ControlCommand: Conversation._pass_over,
    schema.ConnectionError: Conversation._pass_over,
    schema.MessageDispatchNotification: Conversation._pass_over,
    schema.ProducerAck: Conversation._pass_over,
    schema.Response: Conversation._pass_over,
    schema.ExceptionResponse: Conversation._pass_over,
}


def without_options(destination: Destination) -> Destination:
    """Return the destination without the options of its name, ``A,B?consumer.priority=5``: the client has followed them
    (ActiveMQDestination)."""
    kind, name = destination
    return Destination(kind, name.partition("?")[0]) if "?" in name else destination


def _lacking(command: schema.Command, what: str) -> ClientError:
    return refusal(f"{type(command).__name__} lacks the {what}")


def _unknown(what: str, id: object) -> ClientError:
    return _not_registered(f"{what} {id} had not been registered, or was removed before")


def _not_registered(message: str, detail: str = "") -> ClientError:
    return refusal(message, detail, ErrorKind.STATE)


def _too_many(what: str, limit: int) -> ClientError:
    return refusal(f"More than {limit} {what} on one connection", "Close some.", ErrorKind.RESOURCE)
