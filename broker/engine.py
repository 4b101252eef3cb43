"""Core decides, store remembers, sessions are told: the one place where the three meet.

Nothing in here waits. A command is decided upon at once; what must survive is handed to the store and comes back
through ``durable``, in order, and only then is it told (RECEIPT) and given on (MESSAGE). What need not survive
takes the same way without the store. All methods are called on the event loop.

An engine lives as long as one term as master. Loss of the store is not its affair: its connections are closed, and
the next promotion builds a new one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from datetime import UTC, tzinfo
from functools import partial
from typing import Any, TypeVar, cast

from broker.acknowledger import Acknowledger
from broker.advising import Advising
from broker.connection_ids import ConnectionIds
from broker.core import names
from broker.core.access import ANONYMOUS, Access, Credentials, OpenAccess, Principal
from broker.core.advisor import Advisor
from broker.core.client import Client, Connection, Waiting
from broker.core.commands import (
    Abort,
    Ack,
    AddDestination,
    AddProducer,
    Begin,
    ClientError,
    Command,
    Commit,
    Connect,
    Delivered,
    Disconnect,
    ErrorKind,
    GiveUp,
    Nack,
    Prepare,
    ProtocolFailure,
    Pull,
    Receipt,
    Recover,
    RemoveDestination,
    RemoveProducer,
    Send,
    SetPrefetch,
    Subscribe,
    Unsubscribe,
)
from broker.core.destinations import Destinations
from broker.core.memory import CONNECTION_BYTES, Kind, Memory
from broker.core.policies import DestinationPolicy, Policies, RedeliveryPolicy
from broker.core.queue import Queue
from broker.core.room import NoRoom
from broker.core.selector import compile_selector, is_quick
from broker.core.settings import EngineSettings
from broker.core.slices import Pace, Rounds, Work, at_once, is_done
from broker.core.statistics import statistics
from broker.core.subscription import Outlet, Subscription
from broker.core.telling import ERROR_OF_BROKER, hang_up, tell
from broker.core.topic import DurableSubscription, Topic, TopicSubscription
from broker.declarations import Declarations
from broker.dispatcher import NOBODY, BrowsePage, Dispatcher, Store
from broker.fan_out import FanOut
from broker.flow import FlowControl, Line, Waits
from broker.idle_destinations import IdleDestinations, Leaving
from broker.memory_holders import MemoryHolders
from broker.preparing import InThread, at_once_on_the_loop
from broker.scheduler import Scheduler
from broker.sender import Commitment, Sender
from broker.slow_consumers import SlowConsumers
from broker.subscriber import Opening, Subscriber
from broker.transactions import Transactions
from store.operations import (
    AddConnection,
    AddMessage,
    Atomic,
    EndTransaction,
    Page,
    PrepareTransaction,
    RemoveMessage,
)
from store.operations import (
    Operation as StoreOperation,
)
from store.records.altered import of_user
from store.records.message import Destination, Message
from store.records.message_ids import is_of_numbered

log = logging.getLogger(__name__)

# How often ``tick`` is called.
TICK_SECONDS = 1.0
# A message may repeat what the client said, at any length.
_LOGGED_CHARACTERS_MAX = 500


Answer = TypeVar("Answer")
# What carries out a command: at once, or as work, for which its client waits where it takes more than a step.
Handler = Callable[[Client, Any], Work[None] | None]
# So much of what the store reports is taken in by one step.
OPERATIONS_MAX = 1024
# What it takes to end a subscription, in items of a step.
_CLOSED = 4


def _nothing() -> None:
    """Nobody is there any more."""


def _compile(selector: str) -> None:
    """So that it is remembered, as is what is wrong with it: whoever compiles it next finds it."""
    try:
        compile_selector(selector)
    except ClientError:
        pass


def _address_of(client: Client) -> str:
    """From where it comes, without the port."""
    return client.connection.peer.rpartition(":")[0]


def destinations_of(
    store: Store, settings: EngineSettings, policies: Policies, start: Callable[[Work[None]], object]
) -> Work[Destinations]:
    """What an engine on ``store`` begins with, of very many in steps. The arguments are those of the engine."""
    destinations = Destinations(settings, Memory(settings.memory_limit), store.queue, (), policies, start=start)
    yield from destinations.take_over(store.owners())
    return destinations


class _Farewell:
    """Context of the empty Atomic that follows a client's last operation."""

    __slots__ = ("client", "is_awaited", "receipt")

    def __init__(self, client: Client, receipt: Receipt | None, is_awaited: bool) -> None:
        self.client = client
        self.receipt = receipt
        self.is_awaited = is_awaited


class Engine:
    """See the module. ``clock`` gives milliseconds since 1970; ``on_drained`` is called when producers, held back while
    ``is_congested``, may go on; ``call_later(seconds, function)`` is the loop's; cron entries are meant in ``zone``;
    ``advisor`` makes the messages of advisory topics (None: there are none); ``in_thread(work, then)`` does what takes
    too long for the loop, and calls ``then`` on it afterwards, ``prepare_in_thread`` what takes very long;
    ``start`` has what is long done in slices; ``destinations`` are those of ``destinations_of``, for this engine alone,
    where that was done in slices before."""

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        clock: Callable[[], int],
        *,
        on_drained: Callable[[], object] = lambda: None,
        call_later: Callable[[float, Callable[[], None]], object] = lambda seconds, function: None,
        policies: Policies | None = None,
        access: Access | None = None,
        advisor: Advisor | None = None,
        zone: tzinfo = UTC,
        in_thread: InThread = lambda work, then: then(),
        prepare_in_thread: InThread = at_once_on_the_loop,
        start: Callable[[Work[None]], object] = at_once,
        destinations: Destinations | None = None,
    ) -> None:
        self._store = store
        self._in_thread = in_thread
        self._start = start
        self._append = store.append
        self._settings = settings
        self._clock = clock
        self._call_later = call_later
        self._is_looking = False
        self._is_awaited = False  # a timer runs for a message that waits for its time
        self._on_drained = on_drained
        self._access = access or OpenAccess(is_everywhere=True)
        policies = policies or Policies(
            (), DestinationPolicy(redelivery=RedeliveryPolicy(settings.maximum_redeliveries))
        )
        self._clients: set[Client] = set()
        self._destinations = destinations or at_once(destinations_of(store, settings, policies, start))
        self.memory = memory = self._destinations.memory
        self._memory_holders = MemoryHolders(memory, self._clients, self._destinations, call_later)
        self._by_name = self._destinations.by_name
        self._by_owner = self._destinations.by_owner
        # Those of whom something is still there, and who waits for the end of that.
        self._leavers: dict[Client, list[Callable[[], None]]] = {}
        self._client_ids: dict[str, Client] = {}
        self._connection_ids: dict[str, Client] = {}
        self._connection_owners = ConnectionIds(store.connections())
        self._duplicates = 0
        self._reported: deque[list[StoreOperation]] = deque()  # by the store, and not taken in yet
        self._is_taking_in = False
        self.reports = 0  # how often the store said what is durable
        self._dispatcher = Dispatcher(
            store.append, store.epoch, self._destinations, memory, settings, policies, clock, prepare_in_thread, start
        )
        self._dispatcher.preparing.on_room = lambda outlet: self.writable(cast("Connection", outlet))
        self._fan_out = fan_out = FanOut(self._dispatcher.deliver, start)
        self._advising = advising = Advising(
            self._destinations, self._dispatcher, fan_out, advisor, policies, self._access
        )
        if self._access.has_rights:
            self._dispatcher.gives = advising.given
        self._dispatcher.tell = advising.message
        self._destinations.on_new = advising.began
        self._sender = Sender(
            store, self._destinations, self._dispatcher, fan_out, memory, policies, self._access, clock, zone
        )
        self._transactions = Transactions(
            store, self._destinations, self._dispatcher, settings, self._sender, self._access
        )
        self._acknowledger = Acknowledger(
            self._dispatcher, self._transactions, settings, policies, clock, call_later, start
        )
        self._subscriber = Subscriber(
            store, self._destinations, self._dispatcher, settings, policies, self._access, advising
        )
        self._flow = FlowControl(
            policies,
            advising,
            clock,
            call_later,
            carry_out=self._carry_out_held,
            fail=self._fail_held,
            give_up=self._give_up,
            leave=self._disconnect,
            lines_of=self._lines_of,
            goes_to=self._goes_to,
        )
        self._declarations = Declarations(store, self._destinations, self._sender, advising, self._access)
        self._slow_consumers = SlowConsumers(policies, advising, self._abort_consumer)
        self._idle_destinations = IdleDestinations(
            policies,
            self._destinations,
            self._append,
            self._declarations.end_idle,
            lambda: self._transactions.has_branches,
        )
        # What ends with a client, in this order.
        self._endings: tuple[Callable[[Client, dict[Queue, None], Pace], Work[None] | None], ...] = (
            self._transactions.left,
            self._close_subscriptions,
            lambda client, left, pace: self._declarations.left(client, pace),
            lambda client, left, pace: advising.disconnected(client),
            lambda client, left, pace: client.holder.end(),
        )
        self._ticking: tuple[Callable[[int], None], ...] = (self._flow.tick, self._memory_holders.tick, self._fire)
        self._looking: tuple[Callable[[int], Work[None]], ...] = (
            self._dispatcher.tick,
            lambda now: self._slow_consumers.tick(now, list(self._clients)),
            lambda now: self._idle_destinations.tick(now, self._declarations.producing),
        )
        self._room_again = Rounds(start, self._go_on)
        self._handlers: dict[type, Handler] = {
            Send: self._send,
            Ack: self._acknowledger.ack,
            Nack: self._acknowledger.nack,
            GiveUp: self._acknowledger.give_up,
            Delivered: self._acknowledger.delivered,
            Pull: self._acknowledger.pull,
            SetPrefetch: self._acknowledger.set_prefetch,
            Subscribe: self._subscribe,
            Unsubscribe: self._subscriber.unsubscribe,
            Begin: self._transactions.begin,
            Prepare: self._decide,
            Commit: self._decide,
            Abort: self._abort,
            Recover: self._transactions.recover,
            AddProducer: self._declarations.add_producer,
            RemoveProducer: self._declarations.remove_producer,
            AddDestination: self._declarations.add_destination,
            RemoveDestination: self._declarations.remove_destination,
            Connect: self._connect,
            Disconnect: self._disconnect,
            ProtocolFailure: self._protocol_failure,
        }

    @property
    def is_congested(self) -> bool:
        """Whether the store, or this engine with what that reports, has more to do than it should: producers are to
        wait for ``on_drained``."""
        return self._store.is_congested or len(self._reported) > 1

    @property
    def handed_over(self) -> int:
        """How many operations the store was given so far."""
        return self._store.handed_over

    def may_speak(self) -> bool:
        """Whether anything may be said to anybody: see ``Store.may_speak``."""
        return self._store.may_speak()

    def look_soon(self) -> None:
        """Have it found out, when it may not."""
        self._store.look_soon()

    def drained(self) -> None:
        """The store said what is durable, or took in what was too much for it."""
        if not self.is_congested:
            self._on_drained()

    def end(self) -> None:
        """The term is over: it has no connections any more, and does nothing of its own."""
        self._flow.end()
        self._dispatcher.preparing.end()

    # ---- connections

    def opened(self, connection: Connection) -> None:
        """A connection begins; ``closed`` ends it."""
        client = connection.client = Client(connection)
        client.holder.on_room = partial(self.writable, connection)
        client.holder.add(Kind.STATE, CONNECTION_BYTES)
        self._clients.add(client)

    def closed(self, connection: Connection) -> None:
        """The connection is over: open transactions are rolled back, what it did not acknowledge goes to others."""
        client: Client | None = connection.client
        if client is not None:
            client.is_there = False
            self._leave(client)

    def writable(self, connection: Connection) -> None:
        """More may be written to it."""
        client: Client | None = connection.client
        if client is not None:
            self._room_again.ask(client)

    def _go_on(self, client: Client) -> Work[None]:
        pace = Pace()
        for subscription in list(client.subscriptions.values()):
            if isinstance(subscription, TopicSubscription) and not subscription.is_held_back:
                yield from self._dispatcher.pending(subscription, pace)
            else:
                self._acknowledger.go_on(subscription)
            if pace.is_full(1 + len(subscription.queues)):
                yield

    def handle(self, connection: Connection, command: Command) -> None:
        """Carry out one command. What the peer did wrong is told to its session, not raised."""
        client: Client | None = connection.client
        if client is None or not client.is_open:
            self._after_its_end(connection, client, command)
            return
        if client.awaited is not None:
            client.awaited.append(command)
            return
        self._try(client, command, self._handlers[type(command)])

    def _after_its_end(self, connection: Connection, client: Client | None, command: Command) -> None:
        """What is said behind the end of a connection that keeps its socket (OpenWire): it begins anew, or hangs up."""
        if not connection.session.survives_errors:
            return
        if isinstance(command, Disconnect):
            connection.await_hang_up()
        elif isinstance(command, Connect) and client is not None and client in self._leavers:
            self._leavers[client].append(lambda: self._after_its_end(connection, connection.client, command))
        elif isinstance(command, Connect) and client is None:
            self.opened(connection)
            self.handle(connection, command)

    def _try(self, client: Client, command: Command, handler: Handler) -> None:
        try:
            work = handler(client, command)
            if work is None:
                return
            if is_done(work):
                self._await_out(client)
                return
        except ClientError as error:
            self._refuse(client, command, error)
            return
        client.is_busy = True

        def finish(then: Callable[[None], None]) -> None:
            self._start(self._finish(client, command, work, then))

        self._when_known(client, finish, lambda _: self._await_out(client))

    def _finish(self, client: Client, command: Command, work: Work[None], then: Callable[[None], None]) -> Work[None]:
        """The rest of what was begun for ``client``, who waits meanwhile, or leaves."""
        try:
            yield from work
        except ClientError as error:
            if client.is_open:
                self._refuse(client, command, error)
        except Exception:
            hang_up(client.connection)
        client.is_busy = False
        then(None)
        if not client.is_open:
            yield from self._leaving(client)

    def _refuse(self, client: Client, command: Command, error: ClientError) -> None:
        if error.receipt is None:
            error.receipt = getattr(command, "receipt", None)
        if isinstance(command, Subscribe):
            error.refused_id = command.id
        self._fail(client, command, error)

    def _begin(self, work: Work[None]) -> None:
        """Make the first step of ``work`` at once, and the others in slices."""
        if not is_done(work):
            self._start(work)

    def _fail(self, client: Client, command: Command, error: ClientError) -> None:
        session = client.session
        tell(client.connection, session.fail, error)
        is_fatal = error.is_fatal and (not session.survives_errors or isinstance(command, Connect | ProtocolFailure))
        if is_fatal or (self._settings.stomp_strict_errors and not session.survives_errors):
            log.info("%r hung up on: %s", client.connection, error.message[:_LOGGED_CHARACTERS_MAX])
            self._hang_up(client)

    def _hang_up(self, client: Client, *, after_flush: bool = True) -> None:
        """It is over: what was said to it still goes out, ``after_flush``."""
        client.is_there = False
        self._leave(client)
        client.connection.close(after_flush)

    def _leave(self, client: Client, then: Callable[[], None] | None = None) -> None:
        """Nothing goes to it from now on; what it had open ends in slices, after what was begun for it, and ``then`` is
        called."""
        if not client.is_open:
            return
        client.is_open = False
        client.awaited = None
        self._clients.discard(client)
        try:
            self._flow.left(client)
        except Exception:  # the rest of what it had is to end all the same
            log.exception("%r: its end %s", client.connection, ERROR_OF_BROKER)
        for each in client.subscriptions.values():
            each.end()
        self._leavers[client] = [] if then is None else [then]
        if not client.is_busy:
            self._start(self._leaving(client))

    def _leaving(self, client: Client) -> Work[None]:
        pace = Pace()
        left: dict[Queue, None] = {}
        for end in self._endings:
            try:
                work = end(client, left, pace)
                if work is not None:
                    yield from work
            except Exception:  # the rest of what it had is to end all the same
                log.exception("%r: its end %s", client.connection, ERROR_OF_BROKER)
        if client.id is not None:
            del self._client_ids[client.id]
        if client.connection_id is not None:
            del self._connection_ids[client.connection_id]
        # No cycle is left: what a client leaves is freed at once, and the collector need not look for it.
        client.holder.on_room = _nothing
        client.connection.client = None
        for then in self._leavers.pop(client):
            then()

    def _close_subscriptions(self, client: Client, left: dict[Queue, None], pace: Pace) -> Work[None]:
        subscriptions, client.subscriptions = client.subscriptions, {}
        # First all are closed, then what they left is given on: not from one of this client's to the next.
        for each in subscriptions.values():
            try:
                yield from self._subscriber.close(each, left, pace)
            except Exception:
                log.exception("%r: the end of %r %s", client.connection, each.id, ERROR_OF_BROKER)
            if pace.is_full(_CLOSED):
                yield
        yield from self._dispatcher.dispatch_all(left, pace)

    def _when_left(self, client: Client, then: Callable[[None], None]) -> None:
        """``then`` is called when all is over that belonged to ``client``, who is leaving."""
        self._leavers[client].append(partial(then, None))

    def _connect(self, client: Client, command: Connect) -> None:
        """Find out who that is."""

        def admit(answer: Principal | ClientError) -> None:
            try:
                if isinstance(answer, ClientError):
                    raise answer
                self._admit(client, command, answer)
            except ClientError as error:
                error.receipt = command.receipt
                self._fail(client, command, error)

        peer, certificate = client.connection.peer, client.connection.certificate
        credentials = Credentials(peer, command.login, command.passcode, certificate)
        self._when_known(client, partial(self._access.connect, credentials), admit)

    def _when_known(
        self, client: Client, ask: Callable[[Callable[[Answer], None]], object], then: Callable[[Answer], None]
    ) -> None:
        """Ask something that may take its time. What the client says meanwhile waits, and nothing more is read from it;
        ``then`` gets the answer, unless it left."""
        client.awaited = []
        is_held = False

        def answered(answer: Answer) -> None:
            waiting, client.awaited = client.awaited, None
            if not client.is_open or waiting is None:
                return
            try:
                then(answer)
                if is_held and client.awaited is None:  # else there is more to be asked
                    client.connection.resume_reading()
                for each in waiting:
                    self.handle(client.connection, each)
            except Exception:
                hang_up(client.connection)

        ask(answered)
        if client.awaited is not None and client.is_open:
            is_held = True
            client.connection.stop_reading()

    def _subscribe(self, client: Client, command: Subscribe) -> Work[None] | None:
        selector = command.selector
        if selector is None or is_quick(selector):
            return self._subscriber.subscribe(client, command)

        def compile_first(then: Callable[[None], None]) -> None:
            self._in_thread(partial(_compile, selector), lambda: then(None))

        self._when_known(client, compile_first, lambda _: self._try(client, command, self._subscriber.subscribe))
        return None

    def _admit(self, client: Client, command: Connect, principal: Principal) -> None:
        """It is ``principal``. A connection id is his for good: his answer comes when the store knows that."""
        id, user = command.connection_id, principal.owner
        if id is not None:
            self._check_connection_id(client, id, principal)
        if id is None or user is None:
            self._enter(principal, client, command)
            return
        if self._connection_owners.take(id, user, _address_of(client)):
            self._enter(principal, client, command)
            return

        def store(then: Callable[[None], None]) -> None:
            self._append(AddConnection(id, user, partial(then, None)))

        self._when_known(client, store, lambda _: self._try(client, command, partial(self._enter, principal)))

    def _enter(self, principal: Principal, client: Client, command: Connect) -> None:
        former = None if command.connection_id is None else self._connection_ids.get(command.connection_id)
        if former is not None:
            # The client came back before the loss of its old socket was noticed here (openwire.md 16.3).
            self._hang_up(former, after_flush=False)
        if command.client_id is not None:
            names.check_length("the client id", command.client_id, ErrorKind.CLIENT_ID)
            other = self._client_ids.get(command.client_id)
            if other is not None and command.steals_client_id and other.principal.name == principal.name:
                self._hang_up(other, after_flush=False)
            elif other is not None and other.is_open:
                raise ClientError(
                    f"Client id {command.client_id!r} is connected already from {other.connection.peer}",
                    "A client id belongs to one connection at a time.",
                    kind=ErrorKind.CLIENT_ID,
                )
            former = other or former
        if former is not None and former in self._leavers:
            # What it had is to be over before it begins again under the same name.
            enter = partial(self._enter, principal)
            self._when_known(client, partial(self._when_left, former), lambda _: self._try(client, command, enter))
            return
        if command.client_id is not None:
            self._client_ids[command.client_id] = client
            client.id = command.client_id
        if command.connection_id is not None:
            self._connection_ids[command.connection_id] = client
            client.connection_id = command.connection_id
        client.principal = principal
        client.user_id = principal.name if self._settings.populate_jmsx_user_id else None
        self._advising.connected(client, command.login)
        user = None if principal.name == ANONYMOUS else principal.name
        tell(client.connection, client.session.connected, command, client.connection.id, user)

    def _check_connection_id(self, client: Client, id: str, principal: Principal) -> None:
        """It belongs to the user who had it first, also while he is away: the ids of his messages begin with it."""
        names.check_length("the id of a connection", id, ErrorKind.CLIENT_ID)
        former = self._connection_ids.get(id)
        is_anothers = former is not None and former.principal.name != principal.name
        if not is_anothers and principal.owner is not None:
            is_anothers = self._connection_owners.is_refused(id, principal.owner, _address_of(client))
        if is_anothers or is_of_numbered(id):
            raise ClientError(
                f"Connection {id} belongs to another user, or to a program of other users elsewhere",
                "A connection is taken over by its own user only, and a program connects for others from where it is.",
                kind=ErrorKind.SECURITY,
            )

    def _protocol_failure(self, client: Client, command: ProtocolFailure) -> None:
        if command.transaction is not None:
            self._transactions.doom(client, command.transaction, command.error.message)
        raise command.error

    def _disconnect(self, client: Client, command: Disconnect) -> None:
        if self._flow.is_holding and self._flow.follow_out(client, command):
            return
        if command.is_awaited:
            client.connection.await_login()
        # An empty operation: it comes back when all before it is durable.
        farewell = Atomic((), None, _Farewell(client, command.receipt, command.is_awaited))
        self._leave(client, partial(self._append, farewell))

    def _abort_consumer(
        self, client: Client, subscription: Subscription, error: ClientError, *, ends_connection: bool
    ) -> None:
        """See slow_consumers.Abort."""
        is_strict = self._settings.stomp_strict_errors and not client.session.survives_errors
        if ends_connection or is_strict:
            tell(client.connection, client.session.fail, error)
            self._hang_up(client)
            return

        def end(client: Client, of: Unsubscribe) -> Work[None]:
            del client.subscriptions[subscription.id]
            left: dict[Queue, None] = {}
            pace = Pace()
            yield from self._subscriber.close(subscription, left, pace)
            if client.is_there:
                tell(client.connection, client.session.close_consumer, subscription.id, error)
            yield from self._dispatcher.dispatch_all(left, pace)

        self._try(client, Unsubscribe(subscription.id), end)

    # ---- messages

    def _send(self, client: Client, command: Send) -> Work[None] | None:
        if command.message.user_id != client.user_id:
            command.message = of_user(command.message, client.user_id)
        if self._flow.is_holding and self._flow.follow(client, command):
            return None
        try:
            if command.transaction is None:
                work = self._sender.send(client, command)
                if work is not None and not is_done(work):
                    return self._send_on(client, command, work)
            else:
                self._transactions.send(client, command)
        except NoRoom as refusal:
            self._wait_for_room(client, command, refusal)
        self._await_out(client)
        return None

    def _send_on(self, client: Client, command: Send, work: Work[None]) -> Work[None]:
        """The steps after the first."""
        yield
        try:
            yield from work
        except NoRoom as refusal:
            self._wait_for_room(client, command, refusal)

    def _wait_for_room(self, client: Client, command: Send, refusal: NoRoom) -> None:
        """Or fail, if it is not to wait."""
        if not self._flow.hold(client, command, refusal):
            self._refused(client, command, refusal)
            raise refusal

    def _await_out(self, client: Client) -> None:
        """What it says next is not looked at while something that it sent is going out."""
        if self._fan_out.origins and client.connection in self._fan_out.origins and client.is_open:
            self._when_known(client, partial(self._fan_out.tell_when_out, client.connection), lambda _: None)

    def _decide(self, client: Client, command: Commit | Prepare) -> Work[None]:
        """COMMIT or PREPARE: what is to be stored by it may have to wait for room."""
        transaction = yield from self._transactions.make_ready(client, command)
        try:
            yield from self._end_transaction(client, command)
        finally:
            if transaction is not None:
                self._transactions.forget_made(transaction)

    def _end_transaction(self, client: Client, command: Commit | Prepare) -> Work[None]:
        is_waiting = self._flow.is_holding and self._flow.follow(client, command)
        work: Work[None] | None = None
        if not is_waiting:
            try:
                work = self._carry_out(client, command)
            except NoRoom as refusal:
                is_waiting = self._flow.hold(client, command, refusal)
                if not is_waiting:
                    work = self._do(client, command)
        if is_waiting and command.transaction in client.transactions:
            former = command.transaction
            self._flow.rename(client, former, self._transactions.put_aside(client, former))
        if work is not None:
            yield from work

    def _abort(self, client: Client, command: Abort) -> None:
        if self._flow.is_holding:
            self._flow.release(client, command.transaction)
        self._transactions.abort(client, command)

    # ---- what had to wait for room (broker.flow)

    def _carry_out(self, client: Client, command: Waits) -> Work[None] | None:
        if not isinstance(command, Send):
            self._transactions.check_room(client, command.transaction)
        return self._do(client, command)

    def _carry_out_held(self, client: Client, command: Waits) -> None:
        """All at once: what stands behind it in the line is not to overtake it."""
        work = self._carry_out(client, command)
        if work is not None:
            at_once(work)

    def _lines_of(self, client: Client, command: Waits) -> Collection[Line]:
        if isinstance(command, Send):
            return self._sender.lines_of(client, command.message)
        return self._transactions.lines_of(client, command.transaction)

    def _goes_to(self, client: Client, command: Waits) -> frozenset[Destination]:
        if not isinstance(command, Send):
            return self._transactions.goes_to(client, command.transaction)
        return frozenset(names.split(command.message.destination) if command.transaction is None else ())

    def _do(self, client: Client, command: Waits) -> Work[None] | None:
        """What is returned: see Transactions.commit and Sender.send."""
        if isinstance(command, Commit):
            return self._transactions.commit(client, command)
        if isinstance(command, Prepare):
            self._transactions.prepare(client, command)
        elif command.transaction is None:
            return self._sender.send(client, command)
        else:
            self._transactions.send(client, command)
        return None

    def _refused(self, client: Client, command: Waits, error: ClientError) -> None:
        """It is told to its client: what it belongs to can only be rolled back."""
        self._sender.refused += error.count if isinstance(error, NoRoom) else 0
        if command.transaction is not None:
            self._transactions.doom(client, command.transaction, error.message)
            error.message = f"Transaction {command.transaction!r} can only be aborted: {error.message}"

    def _fail_held(self, client: Client, command: Waits, error: ClientError) -> None:
        if client.is_open:
            error.receipt = command.receipt
            self._fail(client, command, error)

    def _give_up(self, client: Client, command: Waits, error: ClientError) -> None:
        """It waited too long."""
        self._refused(client, command, error)
        if not isinstance(command, Send):
            try:
                self._do(client, command)  # which rolls it back
            except ClientError as rolled_back:
                error = rolled_back
        self._fail_held(client, command, error)

    # ---- back from the store

    def durable(self, operations: list[StoreOperation]) -> None:
        """Those operations hold, in the order in which they were handed over. Where one of them leads to an error, all
        others hold none the less."""
        self.reports += 1
        self._reported.append(operations)
        if not self._is_taking_in:
            self._begin(self._take_in())
        self.drained()

    def _take_in(self) -> Work[None]:
        reported = self._reported
        pace = Pace()
        self._is_taking_in = True
        was_behind = False
        try:
            while reported:
                operations = reported.popleft()
                for start in range(0, len(operations), OPERATIONS_MAX):
                    if start:
                        was_behind = True
                        yield
                    yield from self._hold(operations[start : start + OPERATIONS_MAX], pace)
                if reported:
                    was_behind = True
                    yield
        finally:
            self._is_taking_in = False
        if was_behind:
            self.drained()

    def _hold(self, operations: list[StoreOperation], pace: Pace) -> Work[None]:
        by_owner = self._by_owner
        touched: dict[Queue, None] = {}
        for operation in operations:
            try:
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
                        taken = self._published(operation, operation.context[0].connection, touched)  # type: ignore[index]
                        if pace.is_full(taken):
                            yield
                elif kind is not RemoveMessage:
                    yield from self._hold_otherwise(operation, touched, pace)
                    continue
                waiting: Waiting | None = operation.context  # type: ignore[assignment]
                if waiting is not None:
                    client, receipt = waiting
                    if client.is_there and receipt is not None:
                        client.session.receipt(receipt)
                        client.connection.touch()
            except Exception:
                self._end_waiting(operation)
        yield from self._dispatcher.dispatch_all(touched, pace)

    def _end_waiting(self, operation: StoreOperation) -> None:
        """From an ``except``: who waits for ``operation`` is hung up on, and learns the outcome when he sends again."""
        context = operation.context
        client = context[0] if isinstance(context, tuple) else getattr(context, "client", None)
        if isinstance(client, Client):
            hang_up(client.connection)
        else:
            log.exception("%s, for which no client waits, %s", type(operation).__name__, ERROR_OF_BROKER)

    def _duplicate(self, message: Message) -> None:
        """Its producer sent it before, it was stored then, and nobody is given it twice."""
        self._duplicates += 1
        log.debug("sent again, and stored before: %s", message.message_id)

    def _published(self, operation: AddMessage, origin: Outlet, touched: dict[Queue, None]) -> int:
        """A topic's message is durable, or one that waits for its time. Subscriptions that were deleted meanwhile are
        left out. Returns how many have it."""
        scheduler = self._sender.scheduler
        if scheduler is not None and operation.owners[0] == scheduler.owner:
            scheduler.durable(operation)
            self._await_next()
            return 1
        message = operation.message
        topic = self._by_name.get(message.destination)
        count = len(operation.owners)
        if isinstance(topic, Topic):
            self._fan_out.publish(topic, message, origin)
            count += len(topic.subscribers)
        for owner in operation.owners:
            queue = self._by_owner.get(owner)
            if queue is not None:
                queue.add(message, operation.order_key, operation.location, operation.size)
                touched[queue] = None
        return count

    def _hold_otherwise(self, operation: StoreOperation, touched: dict[Queue, None], pace: Pace) -> Work[None]:
        context = operation.context
        if isinstance(operation, Page) and isinstance(context, BrowsePage):
            self._dispatcher.browsed(operation)
        elif isinstance(operation, Page) and operation.owner not in self._by_owner:
            scheduler = self._sender.scheduler
            if scheduler is not None and operation.owner == scheduler.owner:
                self._begin(self._read_scheduled(scheduler, operation))
        elif isinstance(operation, Page):
            queue = self._by_owner.get(operation.owner)
            if queue is not None:
                queue.page(operation.messages, operation.is_end)
                if isinstance(queue, DurableSubscription):
                    for entry in queue.take_unwanted():
                        self._dispatcher.remove(queue, entry)
                touched[queue] = None
        elif isinstance(context, Opening):
            stored = context.is_stored()
            if stored is not None:
                self._begin(self._subscriber.serve(stored, context.subscription))
        elif isinstance(operation, AddConnection):
            assert callable(context), "the client waits for it"
            context()
        elif isinstance(context, Leaving):
            self._idle_destinations.passed(context)
        elif isinstance(context, _Farewell):
            context.client.tell_receipt(context.receipt)
            if context.client.is_there:
                context.client.is_there = False
                if not context.is_awaited:
                    context.client.connection.close()
        elif isinstance(operation, PrepareTransaction):
            self._transactions.has_prepared(operation)
        elif isinstance(operation, EndTransaction):
            yield from self._transactions.has_ended(operation, touched, pace)
        elif isinstance(operation, Atomic):
            yield from self._hold_together(operation, touched, pace)
        elif context is not None:
            assert isinstance(context, tuple), "who waits, and for which receipt"
            context[0].tell_receipt(context[1])

    def _hold_together(self, atomic: Atomic, touched: dict[Queue, None], pace: Pace) -> Work[None]:
        context = atomic.context
        origin: Outlet = NOBODY
        if isinstance(context, Commitment) and context.client is not None:
            origin = context.client.connection
        for part in atomic.operations:
            if isinstance(part, AddMessage):
                queue = self._by_owner.get(part.owners[0])
                if part.is_duplicate:
                    self._duplicate(part.message)
                elif queue is not None and queue.topic is None:
                    queue.add(part.message, part.order_key, part.location, part.size)
                    touched[queue] = None
                    if pace.is_full():
                        yield
                elif pace.is_full(self._published(part, origin, touched)):
                    yield
        if isinstance(context, Commitment):
            yield from self._sender.committed(context, pace)
        elif isinstance(context, tuple):
            context[0].tell_receipt(context[1])

    def tick(self, now: int) -> None:
        """Once a second, with the time in milliseconds since 1970."""
        for each in self._ticking:
            try:
                each(now)
            except Exception:  # nobody's request: the others go on, and so does the broker
                log.exception("what is due once a second %s", ERROR_OF_BROKER)
        if not self._is_looking:
            self._begin(self._look(now))

    def _look(self, now: int) -> Work[None]:
        """At what time takes away. Where that takes more than a second, the next look comes later."""
        self._is_looking = True
        try:
            for each in self._looking:
                try:
                    yield from each(now)
                except Exception:  # as in ``tick``
                    log.exception("what is due once a second %s", ERROR_OF_BROKER)
        finally:
            self._is_looking = False

    def _read_scheduled(self, scheduler: Scheduler, page: Page) -> Work[None]:
        """Beside what others wait for."""
        yield from scheduler.read(page)
        self._await_next()

    def _fire(self, now: int) -> None:
        """Send what waited for its time, and come again when the next is due, if that is before the next tick."""
        scheduler = self._sender.scheduler
        if scheduler is None:
            return
        scheduler.tick(now)
        self._await_next()

    def _await_next(self) -> None:
        scheduler = self._sender.scheduler
        due = None if scheduler is None else scheduler.next_due
        if due is None or self._is_awaited:
            return
        seconds = max(0, due - self._clock()) / 1000
        if seconds < TICK_SECONDS:
            self._is_awaited = True
            self._call_later(seconds, self._is_due)

    def _is_due(self) -> None:
        self._is_awaited = False
        self._fire(self._clock())

    def blocked_producers(self) -> list[dict[str, Any]]:
        """Who waits for room, of plain values."""
        return self._flow.blocked()

    def held_back(self) -> list[dict[str, Any]]:
        """Connections that are delivered nothing, for they hold too much memory: some of them, of plain values."""
        return self._memory_holders.held_back()

    def statistics(self) -> Work[dict[str, Any]]:
        """Figures for ``status``: a dict of plain values, made in steps."""
        scheduler = self._sender.scheduler
        counts = {
            "clients": len(self._clients),
            "dead_letters_total": self._dispatcher.dead_letters,
            "duplicates_total": self._duplicates,
            "expired_total": self._dispatcher.expired,
            "scheduled": 0 if scheduler is None else scheduler.count,
            "scheduled_sent_total": 0 if scheduler is None else scheduler.sent,
            "sends_refused_store_full_total": self._sender.refused,
            "destinations_gone_idle_total": self._idle_destinations.removed,
            "slow_consumers": self._slow_consumers.count,
            "slow_consumers_aborted_total": self._slow_consumers.aborted,
            **self._flow.counts,
            **self._memory_holders.counts,
        }
        figures = yield from statistics(self._destinations, self.memory, counts)
        figures["memory_holders"] = yield from self._memory_holders.largest()
        return figures
