"""Engine: connects the core, which makes decisions, with the store and with the sessions of the clients.

No method waits. The core decides each command at once. Operations that must survive a failure are passed to the store,
which reports them in order by ``durable``. Only then the client gets its RECEIPT, and consumers get the MESSAGE.
Operations that need not survive take the same path without the store. All methods are called on the event loop.

An engine exists for one term as master. It does not handle the loss of the store: then all connections are closed, and
the next promotion makes a new engine.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Final, cast

from tandemmq.broker.core import commands
from tandemmq.broker.core.access import Access, OpenAccess, Operation, PrivateAccess
from tandemmq.broker.core.advisor import Advisor
from tandemmq.broker.core.client import Client, Connection
from tandemmq.broker.core.commands import Ack, ClientError, Command, ErrorKind, Send, refusal
from tandemmq.broker.core.containment import ERROR_OF_BROKER, hang_up, tell
from tandemmq.broker.core.delivery import QueueBase, Subscription
from tandemmq.broker.core.destinations import Destinations
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.core.policies import DestinationPolicy, Policies, RedeliveryPolicy
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.selector import compile_selector, is_quick
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import Pace, Rounds, Work, at_once, begin, pieces
from tandemmq.broker.core.statistics import statistics
from tandemmq.broker.core.topics.topic import TopicSubscription
from tandemmq.broker.engine.acknowledge import Acknowledger
from tandemmq.broker.engine.advisories import Advising
from tandemmq.broker.engine.clients import Clients, Handler
from tandemmq.broker.engine.declarations import Declarations, IdleDestinations
from tandemmq.broker.engine.dispatch import SAMPLE_SECONDS, Dispatcher
from tandemmq.broker.engine.granting import Granting
from tandemmq.broker.engine.inventory import Inventory
from tandemmq.broker.engine.limits import StoredBytes
from tandemmq.broker.engine.login import Login, Sessions
from tandemmq.broker.engine.memory_holders import MemoryHolders
from tandemmq.broker.engine.part import Loop, Shared
from tandemmq.broker.engine.ports import Completion, Store, Tracing
from tandemmq.broker.engine.producing import Producing
from tandemmq.broker.engine.publish import Sender
from tandemmq.broker.engine.receipts import Arrivals, Stored
from tandemmq.broker.engine.routing import Router
from tandemmq.broker.engine.slow_consumers import SlowConsumers
from tandemmq.broker.engine.subscribe import Subscriber
from tandemmq.broker.engine.transactions import Transactions
from tandemmq.store.histogram import Histogram
from tandemmq.store.operations import AddMessage
from tandemmq.store.operations import Operation as StoreOperation
from tandemmq.store.records.message import Destination, DestinationKind

log = logging.getLogger(__name__)

# Number of reported operations between two readings of the clock, and their items of a step: 1,024 operations fill a
# step whose time is not over.
OPERATIONS_MAX = 64
_OPERATIONS_ITEMS: Final = 16
# Cost of ending a subscription, in items of a step.
_CLOSED: Final = 4


def _compile(selector: str) -> None:
    """Compile a selector on a thread. The result, or the error, is cached for the next compilation."""
    try:
        compile_selector(selector)
    except ClientError:
        pass


def _traced(send: Handler, tracing: Tracing) -> Handler:
    def watched(command: commands.Send, work: Work[None]) -> Work[None]:
        try:
            yield from work
        except ClientError as error:
            tracing.refused(command.message, error.message)
            raise

    def sent(client: Client, command: commands.Send) -> Work[None] | None:
        tracing.sent(command.message)
        try:
            work = send(client, command)
        except ClientError as error:
            tracing.refused(command.message, error.message)
            raise
        return None if work is None else watched(command, work)

    return sent


def destinations_of(
    store: Store, settings: EngineSettings, policies: Policies, start: Callable[[Work[None]], object]
) -> Work[Destinations]:
    """Return the destinations with which an engine on ``store`` begins, in steps. The arguments are those of Engine."""
    destinations = Destinations(settings, Memory(settings.memory_limit), store.queue, policies, start)
    yield from destinations.take_over(store.owners(), chain.from_iterable(each.adds_to for each in store.prepared()))
    return destinations


class Engine:
    """Carries out the commands of all clients over one store, for one term as master. Runs on the loop.

    ``on_drained``: called when producers, which are held back while ``is_congested``, may continue. ``advisor``: makes
    the messages of advisory topics; None: there are no such messages. ``destinations``: result of ``destinations_of``
    for this engine, if the caller has made it. ``tracing``: receives the events of messages. ``of_settings``: see
    PrivateAccess.
    """

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        loop: Loop,
        *,
        on_drained: Callable[[], object] = lambda: None,
        policies: Policies | None = None,
        access: Access | None = None,
        advisor: Advisor | None = None,
        destinations: Destinations | None = None,
        tracing: Tracing | None = None,
        of_settings: Iterable[Principal] = (),
    ) -> None:
        self.store = store
        guarded = PrivateAccess(access or OpenAccess(is_everywhere=True), of_settings)
        self.check = guarded.check
        self._guarded = guarded
        self._in_thread = loop.in_thread
        self._start = start = loop.start
        self._start_first = loop.start_first or start
        self._settings = settings
        self._is_expiring = False
        self._on_drained = on_drained
        policies = policies or Policies(
            (), DestinationPolicy(redelivery=RedeliveryPolicy(settings.maximum_redeliveries))
        )
        self._destinations = destinations or at_once(destinations_of(store, settings, policies, start))
        self.memory = memory = self._destinations.memory
        self._reported: deque[list[StoreOperation]] = deque()  # reports of the store that are not processed yet
        self.is_behind = False  # True if more than one report waits
        self._is_taking_in = False
        self.reports = 0  # number of reports of the store
        most = settings.user_stored_bytes_max
        self.stored = None if most is None else StoredBytes(most, store.append, store.user_balance)
        shared = Shared(store, settings, policies, guarded, self._destinations, loop, self.stored)
        self._destinations.clock = loop.clock
        self._dispatcher = dispatcher = Dispatcher(shared)
        dispatcher.preparing.on_space = lambda outlet: self.writable(cast("Connection", outlet))
        self._advising = advising = Advising(shared, dispatcher, advisor)
        if guarded.has_rights:
            dispatcher.gives = advising.given
        dispatcher.tell = dispatcher.dead_letters.tell = advising.message
        if tracing is not None:
            dispatcher.trace(tracing)
        self._destinations.on_new = advising.began
        self._destinations.on_joined = dispatcher.dispatch
        self._clients = clients = Clients(shared, dispatcher.fan_out, self.handle, self.writable)
        self._login = login = Login(shared, clients, advising)
        self.memory_holders = MemoryHolders(memory, clients.all, self._destinations, loop.call_later)
        self._router = Router(shared)
        self._arrivals = Arrivals(shared, dispatcher)
        self._sender = Sender(shared, self._router, self._arrivals)
        self._transactions = Transactions(shared, dispatcher, self._sender)
        self._acknowledger = Acknowledger(shared, dispatcher, self._transactions)
        granting = Granting(shared, dispatcher, self._acknowledger)
        self._subscriber = Subscriber(shared, dispatcher, advising)
        producing = Producing(
            shared, self._sender, self._transactions, clients, advising, dispatcher, self._acknowledger
        )
        self.flow = producing.flow
        self._declarations = Declarations(shared, self._router, advising)
        self._slow_consumers = SlowConsumers(policies, advising, self._abort_consumer, shared.destinations.patterns_of)
        self._idle_destinations = IdleDestinations(
            shared, self._declarations, lambda: bool(self._transactions.branches.by_key)
        )
        branches = self._transactions.branches.by_key
        self.inventory = Inventory(self._destinations, clients.all, branches, self._declarations.producing.__getitem__)
        clients.on_leave = self._left
        clients.endings = (
            self._transactions.left,
            self._close_subscriptions,
            lambda client, left, pace: self._declarations.left(client, pace),
            lambda client, left, pace: advising.disconnected(client),
            lambda client, left, pace: client.holder.end(),
            lambda client, left, pace: login.ended(client),
        )
        self._ticking: tuple[Callable[[int], None], ...] = (self.flow.tick, self.memory_holders.tick, self._fire)
        self._expiring: tuple[Callable[[int], Work[None]], ...] = (
            dispatcher.tick,
            lambda now: self._slow_consumers.tick(now, list(clients.all)),
            self._idle_destinations.tick,
            lambda now: self._subscriber.end_unused_shares(),
        )
        self._writable_again = Rounds(start, self._resume_deliveries)
        self._handlers: dict[type, Handler] = {
            Send: producing.send,
            Ack: self._acknowledger.ack,
            commands.AckOfMessage: self._acknowledger.ack_of_message,
            commands.AckOfNothing: self._acknowledger.ack_of_nothing,
            commands.Nack: self._acknowledger.nack,
            commands.GiveUp: self._acknowledger.give_up,
            commands.Redelivered: self._acknowledger.redelivered,
            commands.Move: producing.move,
            commands.Delivered: self._acknowledger.delivered,
            commands.GiveBack: granting.give_back,
            commands.Grant: granting.grant,
            commands.Pull: self._acknowledger.pull,
            commands.SetPrefetch: self._acknowledger.set_prefetch,
            commands.SetNoLocal: self._subscriber.set_no_local,
            commands.Subscribe: self._subscribe,
            commands.Unsubscribe: self._subscriber.unsubscribe,
            commands.FindDurable: self._subscriber.find_durable,
            commands.Begin: self._transactions.begin,
            commands.Prepare: producing.decide,
            commands.Commit: producing.decide,
            commands.Abort: producing.abort,
            commands.Recover: self._transactions.branches.recover,
            commands.Hold: self._declarations.hold,
            commands.AddProducer: self._declarations.add_producer,
            commands.RemoveProducer: self._declarations.remove_producer,
            commands.AddDestination: self._declarations.add_destination,
            commands.RemoveDestination: self._declarations.remove_destination,
            commands.LogIn: login.log_in,
            commands.ShareClientId: login.share_client_id,
            commands.Connect: login.connect,
            commands.Disconnect: self._disconnect,
            commands.ProtocolFailure: self._protocol_failure,
        }
        if tracing is not None:
            self._handlers[Send] = _traced(producing.send, tracing)
        self._producing: Producing | None = producing if tracing is None else None

    @property
    def is_congested(self) -> bool:
        """True if the store, or the processing of its reports, is behind. Producers then wait for ``on_drained``."""
        return self.store.is_congested or self.is_behind

    def drained(self) -> None:
        """Note that the store made progress: producers continue if neither the store nor this engine is behind."""
        if not self.is_congested:
            self._on_drained()

    def take_prefetches(self) -> None:
        """Apply changed prefetch policies to the consumers."""
        begin(self._acknowledger.take_prefetches(list(self._clients.all)), self._start)

    def end(self) -> None:
        """End the term. Call it when the engine has no connections any more. Afterwards the engine starts no work."""
        self.flow.end()
        self._dispatcher.preparing.end()

    # ---- actions of operators

    def opened_as(self, connection: Connection, principal: Principal) -> None:
        """Register a connection whose user is known."""
        self.opened(connection)
        client: Client = connection.client
        client.principal = principal
        client.is_inside = True

    def opened_for(self, connection: Connection, principal: Principal, state: Destination) -> None:
        """Register a connection of the broker that acts for a disconnected client: with the rights of ``principal``,
        and with the queue of its session."""
        self.opened_as(connection, principal)
        client: Client = connection.client
        client.private = state
        client.is_stand_in = True
        client.user_id = principal.name if self._settings.populate_jmsx_user_id else None

    def act_as_now(self, connection: Connection, user: str | None) -> None:
        """Give ``connection`` the rights that ``user`` has now. Raise ClientError as Access.identify does."""
        client: Client = connection.client
        client.principal = self._guarded.identify(user)

    def enter(self, connection: Connection, command: commands.Connect) -> None:
        """Take the client id of ``command`` for a connection that was ``opened_as`` or ``opened_for``. The id is
        refused if another connection has it. A connection that was ``opened_for`` loses the id when the client itself
        connects."""
        client: Client = connection.client
        self._clients.carry_out(client, command, self._login.enter)

    def know_sessions(self, sessions: Sessions) -> None:
        """Use ``sessions`` to look up the users of sessions."""
        self._login.sessions = sessions

    def is_listened_to(self, topic: Destination, prefix: str) -> bool:
        """Return whether a client subscribed to ``topic``, by its name or by a pattern that begins with ``prefix``."""
        return self._destinations.is_listened_to(topic, prefix)

    def queues_named(self, prefix: str) -> Work[list[Destination]]:
        """Return the queues whose names begin with ``prefix``, found in steps."""
        found: list[Destination] = []
        for some in pieces(self._destinations.names()):
            found += [each for each in some if each.kind is DestinationKind.QUEUE and each.name.startswith(prefix)]
            yield
        return found

    def pause(
        self, principal: Principal, name: str, *, consumers: bool | None = None, producers: bool | None = None
    ) -> None:
        """Pause the deliveries of a queue (``consumers``), or its producers (``producers``); False resumes, None does
        not change the state. Valid until the end of this term as master, or until the queue is deleted. ClientError:
        there is no such queue, or ``principal`` may not delete it."""
        destination = Destination(DestinationKind.QUEUE, name)
        self.check(principal, Operation.REMOVE, destination)
        queue = self._destinations.existing(destination)
        if not isinstance(queue, Queue):
            raise refusal(f"There is no destination {destination}", kind=ErrorKind.DESTINATION)
        if consumers is not None and consumers != queue.is_paused:
            if consumers:
                queue.pause()
            else:
                queue.resume()
                self._dispatcher.dispatch(queue)
        closed = self._destinations.closed_to_producers
        if producers:
            closed.add(destination)
            for client in self._clients.all:
                client.targets.pop(destination, None)  # so that the next send is checked again
        elif producers is not None:
            closed.discard(destination)

    def paused(self, queue: Destination) -> tuple[bool, bool]:
        """Return whether the consumers of a queue are paused, and whether its producers are."""
        target = self._destinations.by_name.get(queue)
        return isinstance(target, Queue) and target.is_paused, queue in self._destinations.closed_to_producers

    def on_pause_ended(self, then: Callable[[Destination], object]) -> None:
        """Call ``then`` with each queue that is deleted while it is paused."""
        self._destinations.on_pause_ended = then

    def hang_up(self, connection_id: str) -> bool:
        """Close a connection, as if its client had disconnected. Return False if no connection has that id."""
        client = self.inventory.client(connection_id)
        if client is not None:
            self._clients.hang_up(client)
        return client is not None

    @contextmanager
    def watching_dead_letters(self) -> Iterator[Counter[str]]:
        """Count, within the context, the ids of messages that become dead letters."""
        died: Counter[str] = Counter()
        watchers = self._dispatcher.dead_letters.watchers
        watchers.append(died)
        try:
            yield died
        finally:
            watchers[:] = [each for each in watchers if each is not died]

    def hang_up_users(self, names: Collection[str]) -> None:
        """Close all connections of those users, in slices of the loop's time."""
        begin(self._hang_up_users(names), self._start)

    def _hang_up_users(self, names: Collection[str]) -> Work[None]:
        pace = Pace()
        for client in list(self._clients.all):
            if client.is_open and client.principal.name in names and client.principal.is_proved:
                log.info("%r disconnected: user %s was removed", client.connection, client.principal.name)
                self._clients.hang_up(client)
            if pace.is_full():
                yield

    def consumers_of(self, destination: Destination) -> int:
        """Return the number of consumers of a queue."""
        target = self._destinations.by_name.get(destination)
        return len(target.users) if isinstance(target, Queue) else 0

    def waiting_in(self, queue: Destination) -> int | None:
        """Return the number of messages of a queue that are not delivered to a consumer; None: there is no such
        queue."""
        target = self._destinations.by_name.get(queue)
        if isinstance(target, Queue):
            return target.count - target.in_flight
        return self._destinations.sleeping(queue).count if self._destinations.exists(queue) else None

    # ---- connections

    def opened(self, connection: Connection) -> None:
        """Register a new connection; ``closed`` ends it."""
        self._clients.opened(connection)

    def closed(self, connection: Connection) -> None:
        """End a connection: roll its transactions back, and redeliver its unacknowledged messages to others."""
        client: Client | None = connection.client
        if client is not None:
            client.is_lost = client.is_lost or (client.is_open and connection.has_hung_up)
            self._clients.closed(client)
        self._dispatcher.preparing.gone(connection)

    def writable(self, connection: Connection) -> None:
        """Continue deliveries to a connection whose output has space again."""
        self._dispatcher.preparing.resume(connection)
        client: Client | None = connection.client
        if client is not None:
            self._writable_again.ask(client)

    def _resume_deliveries(self, client: Client) -> Work[None]:
        pace = Pace()
        for subscription in list(client.subscriptions.values()):
            if isinstance(subscription, TopicSubscription) and not subscription.holder.is_held_back:
                yield from self._dispatcher.pending(subscription, pace)
            else:
                self._acknowledger.resume(subscription)
            if pace.is_full(1 + len(subscription.queues)):
                yield

    def handle(self, connection: Connection, command: Command) -> None:
        """Carry out one command. An error of the client goes to its session and is not raised."""
        client: Client | None = connection.client
        if client is None or not client.is_ready:
            self._clients.wait(connection, command)
            return
        try:
            if type(command) is Send and self._producing is not None:
                work = self._producing.send(client, command)  # direct calls of the two most frequent commands
            elif type(command) is Ack:
                work = self._acknowledger.ack(client, command)
            else:
                work = self._handlers[type(command)](client, command)
        except ClientError as error:
            self._clients.refuse(client, command, error)
            return
        if work is not None:
            self._clients.work_for(client, command, work)

    def _left(self, client: Client) -> None:
        self._login.left(client)
        self.flow.left(client)

    def _close_subscriptions(self, client: Client, left: dict[QueueBase, None], pace: Pace) -> Work[None]:
        subscriptions, client.subscriptions = client.subscriptions, {}
        # All subscriptions are closed before their messages are dispatched, so that no message goes to another
        # subscription of this client.
        for each in subscriptions.values():
            try:
                yield from self._subscriber.close(each, left, pace, is_lost=client.is_lost)
            except Exception:
                log.exception("%r: the end of %r %s", client.connection, each.id, ERROR_OF_BROKER)
            if pace.is_full(_CLOSED):
                yield
        yield from self._dispatcher.dispatch_all(left, pace)

    def _subscribe(self, client: Client, command: commands.Subscribe) -> Work[None] | None:
        selector = command.selector
        if selector is None or is_quick(selector):
            return self._subscriber.subscribe(client, command)
        clients = self._clients
        clients.when_known(
            client,
            partial(self._compile_in_thread, selector),
            lambda _: clients.carry_out(client, command, self._subscriber.subscribe),
        )
        return None

    def _compile_in_thread(self, selector: str, then: Callable[[None], None]) -> None:
        self._in_thread(partial(_compile, selector), lambda: then(None))

    def _protocol_failure(self, client: Client, command: commands.ProtocolFailure) -> None:
        if command.transaction is not None:
            self._transactions.mark_rollback_only(client, command.transaction, command.error.message)
        raise command.error

    def _disconnect(self, client: Client, command: commands.Disconnect) -> None:
        """Delay a disconnect until the earlier commands of its client are complete. The time limit for the next login
        restarts then."""
        clients = self._clients
        client.is_lost = client.connection.has_hung_up  # True: the end of the connection caused this command
        if command.is_awaited:
            client.connection.await_login()
        if self.flow.is_holding and self.flow.holds_any_of(client):
            sent = partial(self.flow.call_when_sent, client)
            clients.when_known(client, sent, lambda _: clients.disconnect(client, command), is_read=True)
        else:
            clients.disconnect(client, command)

    def _abort_consumer(
        self, client: Client, subscription: Subscription, error: ClientError, ends_connection: bool
    ) -> None:
        """End a consumer; see slow_consumers.AbortConsumer."""
        is_strict = self._settings.stomp_strict_errors and not client.session.survives_errors
        if ends_connection or is_strict:
            tell(client.connection, client.session.fail, error)
            self._clients.hang_up(client)
            return
        end = partial(self._end_consumer, subscription, error)
        self._clients.carry_out(client, commands.Unsubscribe(subscription.id), end)

    def _end_consumer(
        self, subscription: Subscription, error: ClientError, client: Client, of: commands.Unsubscribe
    ) -> Work[None]:
        del client.subscriptions[subscription.id]
        left: dict[QueueBase, None] = {}
        pace = Pace()
        yield from self._subscriber.close(subscription, left, pace)
        if client.is_there:
            tell(client.connection, client.session.close_consumer, subscription.id, error)
        yield from self._dispatcher.dispatch_all(left, pace)

    # ---- back from the store

    def durable(self, operations: list[StoreOperation]) -> None:
        """Complete operations that are durable, in the order in which the store got them. An error of one operation
        does not affect the others."""
        self.reports += 1
        self._reported.append(operations)
        self.is_behind = len(self._reported) > 1
        if not self._is_taking_in:
            work = self._take_in()
            try:
                next(work)
            except StopIteration:
                pass
            else:
                self._start_first(work)
        if not self.is_congested:
            self._on_drained()

    def _take_in(self) -> Work[None]:
        reported = self._reported
        dispatcher = self._dispatcher
        touched, pace = dispatcher.touched, dispatcher.pace
        pace.begin()
        self._is_taking_in = True
        was_behind = False
        try:
            while reported:
                operations = reported.popleft()
                self.is_behind = len(reported) > 1
                for start in range(0, len(operations), OPERATIONS_MAX):
                    if start and pace.is_over(_OPERATIONS_ITEMS):
                        was_behind = True
                        queues = list(touched)
                        touched.clear()
                        yield from dispatcher.dispatch_all(queues, pace)
                        yield
                    for operation in operations[start : start + OPERATIONS_MAX]:
                        completion: Completion | None = operation.context  # type: ignore[assignment]
                        if completion is None:
                            continue
                        try:
                            if type(completion) is Stored and type(operation) is AddMessage:
                                work = completion.durable(operation)  # a direct call
                            else:
                                work = completion.durable(operation)
                            if work is not None:
                                yield from work
                        except Exception:
                            self._end_waiting(operation, completion)
                last = operations[-1]
                if type(last) is AddMessage:
                    now = dispatcher.monotonic()
                    if now >= dispatcher.sample_due and last.owners[0] in self._destinations.by_owner:
                        dispatcher.sampled[last.order_key] = now
                        dispatcher.sample_due = now + SAMPLE_SECONDS
                if touched:
                    queues = list(touched)
                    touched.clear()
                    yield from dispatcher.dispatch_all(queues, pace)
                if reported:
                    was_behind = True
                    yield
        finally:
            self._is_taking_in = False
        if was_behind:
            self.drained()

    def _end_waiting(self, operation: StoreOperation, completion: Completion) -> None:
        """Disconnect the client that waits for ``operation``; it gets the outcome when it sends again."""
        client = completion.client
        if client is not None:
            hang_up(client.connection)
        else:
            log.exception("%s, for which no client waits, %s", type(operation).__name__, ERROR_OF_BROKER)

    def tick(self, now: int) -> None:
        """Run the periodic tasks (once a second). ``now``: milliseconds since 1970."""
        for each in self._ticking:
            try:
                each(now)
            except Exception:  # no client caused it: the other tasks continue
                log.exception("a periodic task %s", ERROR_OF_BROKER)
        if not self._is_expiring:
            begin(self._expire(now), self._start)

    def _expire(self, now: int) -> Work[None]:
        """Remove messages and destinations whose time is over. If that takes more than a second, the next run comes
        later."""
        self._is_expiring = True
        try:
            for each in self._expiring:
                try:
                    yield from each(now)
                except Exception:  # as in ``tick``
                    log.exception("a periodic task %s", ERROR_OF_BROKER)
        finally:
            self._is_expiring = False

    def _fire(self, now: int) -> None:
        """Send scheduled messages that are due."""
        scheduler = self._arrivals.scheduler
        if scheduler is not None:
            scheduler.tick(now)

    @property
    def delivery_seconds(self) -> Histogram:
        """Time from the storing of a message to its first delivery, of sampled messages."""
        return self._dispatcher.delivery_seconds

    def statistics(self) -> Work[dict[str, Any]]:
        """Return figures for ``status``: a dict of plain values, made in steps."""
        scheduler = self._arrivals.scheduler
        counts = {
            "acknowledgements_unmatched_total": self._acknowledger.unmatched,
            "clients": len(self._clients.all),
            "dead_letters_total": self._dispatcher.dead_letters.count,
            "duplicates_total": self._arrivals.duplicates,
            "expired_total": self._dispatcher.dead_letters.expired,
            "scheduled": 0 if scheduler is None else scheduler.count,
            "scheduled_sent_total": 0 if scheduler is None else scheduler.sent,
            "sends_refused_store_full_total": self._sender.refused,
            "destinations_gone_idle_total": self._idle_destinations.removed,
            "slow_consumers": self._slow_consumers.count,
            "slow_consumers_aborted_total": self._slow_consumers.aborted,
            **self.flow.counts,
            **self.memory_holders.counts,
        }
        figures = yield from statistics(self._destinations, self.memory, counts)
        figures["memory_holders"] = yield from self.memory_holders.largest()
        return figures
