"""What leaves the queues: deliveries to sessions, removals to the store, dead letters, and what time takes away.

The core decides who gets what; here it is told to the sessions, and what is gone by that is told to the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from broker.core.advisor import MessageEvent
from broker.core.browse import Browse
from broker.core.client import Waiting
from broker.core.commands import ClientError, Undeliverable
from broker.core.deadletter import dead_letter
from broker.core.destinations import Destinations
from broker.core.memory import Holder, Memory
from broker.core.policies import Policies
from broker.core.queue import ROUND_MESSAGES, Delivery, Queue
from broker.core.settings import EngineSettings
from broker.core.slices import Pace, Rounds, Work, at_once
from broker.core.subscription import Entry, Outlet, Session, Subscription
from broker.core.telling import ERROR_OF_BROKER, hang_up, tell
from broker.core.topic import Topic, TopicSubscription
from broker.preparing import InThread, Preparing
from store.operations import (
    AddMessage,
    Atomic,
    Operation,
    Owner,
    Page,
    PreparedTransaction,
    RemoveMessage,
)
from store.records.commands import encode_add, encode_remove
from store.records.errors import Unencodable
from store.records.message import Destination, Message
from store.records.message_ids import broker_producer
from store.records.openwire import encode_message
from store.records.transactions import TransactionId

log = logging.getLogger(__name__)

# ``tick`` comes so often; nothing is looked at more often.
TICK_MS = 1_000
# A step of a queue's dispatch is so many rounds (broker.core.queue); one that meets what has expired is as many more.
ROUNDS_MAX = 8
EXPIRED_ROUNDS = 3


class Store(Protocol):
    """What the engine asks of a store (store.store.Store, store.memory.MemoryStore)."""

    epoch: int

    @property
    def is_congested(self) -> bool: ...

    @property
    def handed_over(self) -> int: ...

    @property
    def is_full(self) -> bool: ...

    @property
    def full_reason(self) -> str: ...

    def may_speak(self) -> bool: ...

    def look_soon(self) -> None: ...

    def queue(self, destination: Destination) -> int: ...

    def subscription(self, client_id: str, name: str, destination: Destination) -> int: ...

    def append(self, operation: Operation) -> None: ...

    def owners(self) -> list[Owner]: ...

    def connections(self) -> list[tuple[str, str]]: ...

    def prepared(self) -> list[PreparedTransaction]: ...


class Nobody:
    """The origin of what no client sent."""

    is_writable = False
    is_held = False

    @property
    def holder(self) -> Holder:
        raise AssertionError("nothing is held for nobody")

    @property
    def session(self) -> Session:
        raise AssertionError("nobody is told nothing")

    def touch(self) -> None:
        raise AssertionError("nobody is told nothing")

    def close(self, after_flush: bool = True) -> None:
        raise AssertionError("nobody is hung up on")


NOBODY = Nobody()


class Tell(Protocol):
    """Where it is told what happened to a message of ``destination``, and which consumer had to do with it."""

    def __call__(
        self, event: MessageEvent, message: Message, destination: Destination, subscription: Subscription | None
    ) -> None: ...


def _tell_nobody(
    event: MessageEvent, message: Message, destination: Destination, subscription: Subscription | None
) -> None:
    """Nobody is there to be told."""


class BrowsePage:
    """Context of a Page that is read for a browser."""

    __slots__ = ("browse", "subscription")

    def __init__(self, subscription: Subscription, browse: Browse) -> None:
        self.subscription = subscription
        self.browse = browse


class Dispatcher:
    """See the module. ``append`` is the store's; ``epoch`` makes the ids of dead letters unique for ever."""

    def __init__(
        self,
        append: Callable[[Operation], None],
        epoch: int,
        destinations: Destinations,
        memory: Memory,
        settings: EngineSettings,
        policies: Policies,
        clock: Callable[[], int],
        prepare_in_thread: InThread,
        start: Callable[[Work[None]], object],
    ) -> None:
        # Told to whom the address of a reply is about to be given, where that matters.
        self.gives: Callable[[Outlet, Destination], None] | None = None
        self.preparing = Preparing(prepare_in_thread, self.deliver, self.dispatch)
        # Told what happens to messages; of deliveries and acknowledgements only if a policy may want it told.
        self.tell: Tell = _tell_nobody
        self._tells_delivered = policies.any(lambda policy: policy.advisory_for_delivery)
        self.tells_consumed = policies.any(lambda policy: policy.advisory_for_consumed)
        self._tells = self._tells_delivered or self.tells_consumed
        self.dead_letters = 0
        self.expired = 0
        self._append = append
        self._epoch = epoch
        self._destinations = destinations
        self._memory = memory
        self.settings = settings
        self._policies = policies
        self._clock = clock
        self._rounds = Rounds(start, self._go_on)
        self._browses: dict[Subscription, list[Browse]] = {}
        self._shows = Rounds(start, self._show)
        self._sweep_from = 0
        self._swept = 0

    def dispatch(self, queue: Queue) -> None:
        """Give out what can be given, and see to it that the next messages are read in time. What is more than a step
        goes on in slices."""
        if self._give_out(queue):
            self._rounds.ask(queue)

    def _give_out(self, queue: Queue) -> bool:
        """A step of it. Whether there may be more."""
        now = self._clock()
        rounds = ROUNDS_MAX
        while rounds > 0:
            rounds -= 1
            deliveries = queue.dispatch(now)
            if deliveries:
                self.deliver(deliveries)
            if queue.expired:
                self._expire(queue, now)
                rounds -= EXPIRED_ROUNDS
            if queue.routes is not None and queue.routes.is_placing:
                rounds = 0  # as many were put into lanes as a step may have
            if not queue.has_more and not queue.expired:
                break
        else:
            return True
        if queue.is_paged and queue.wants_page:
            self._append(queue.ask_page())
        return False

    def _go_on(self, queue: Queue) -> Work[None]:
        yield
        while self._give_out(queue):
            yield

    def dispatch_all(self, queues: Iterable[Queue], pace: Pace) -> Work[None]:
        """``dispatch`` of each, in steps, each by itself. ``queues`` are not to change meanwhile."""
        for queue in queues:
            dispatched = queue.dispatched
            try:
                self.dispatch(queue)
            except Exception:  # the others give out what they hold all the same
                log.exception("%s: giving out what it holds %s", queue.destination, ERROR_OF_BROKER)
            if pace.is_full(1 + queue.dispatched - dispatched):
                yield

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Tell the sessions, each by itself (broker.core.telling). What an AUTO subscription got is acknowledged by
        that (STOMP 1.2, SUBSCRIBE)."""
        last = None
        gives = self.gives
        for subscription, tag, entry in deliveries:
            outlet = subscription.outlet
            if outlet.is_held:
                self.preparing.follow((subscription, tag, entry))
                continue
            try:
                if gives is not None and entry.message.reply_to is not None:
                    gives(outlet, entry.message.reply_to)
                prepare = outlet.session.deliver(
                    subscription.id, tag, entry.message, entry.redeliveries, subscription.ack
                )
            except Undeliverable as reason:
                self._undeliverable(subscription, tag, entry, reason)
                continue
            except Exception:
                hang_up(outlet)
            else:
                if prepare is not None:
                    self.preparing.begin(prepare, (subscription, tag, entry))
                    continue
                if outlet is not last:
                    outlet.touch()
                    last = outlet
            if entry.order_key and subscription.is_auto and entry.queue is not None:
                self.remove(entry.queue, entry)
        if self._tells:
            self._tell_of(deliveries)

    def _undeliverable(self, subscription: Subscription, tag: int, entry: Entry, reason: Undeliverable) -> None:
        """It is a dead letter, where others find it whole."""
        log.warning("message %s cannot be told to %r: %s", entry.message.message_id, subscription.outlet, reason)
        if not subscription.is_auto:
            subscription.take_one(tag)
        queue = entry.queue
        if queue is not None:
            if not subscription.is_auto:
                queue.settle(entry)
            self.bury(queue, entry, f"it cannot be told to a consumer: {reason}")
            self._rounds.ask(queue)  # there is room for another one

    def _tell_of(self, deliveries: Sequence[Delivery]) -> None:
        """What an AUTO subscription got is consumed by that; what a browser is shown is neither."""
        for subscription, _, entry in deliveries:
            if self._tells_delivered and not subscription.is_browser:
                self.tell(MessageEvent.DELIVERED, entry.message, entry.message.destination, subscription)
        if self.tells_consumed:
            self.consumed(each for each in deliveries if each[0].is_auto and not each[0].is_browser)

    def consumed(self, deliveries: Iterable[Delivery]) -> None:
        """They were acknowledged. Asked for while ``tells_consumed``."""
        for subscription, _, entry in deliveries:
            self.tell(MessageEvent.CONSUMED, entry.message, entry.message.destination, subscription)

    def dispatch_pending(self, subscription: Subscription) -> None:
        """Give a plain topic subscription what waits for it."""
        at_once(self.pending(subscription, Pace()))

    def pending(self, subscription: Subscription, pace: Pace) -> Work[None]:
        """As ``dispatch_pending``, in steps."""
        assert isinstance(subscription, TopicSubscription), "only a topic's subscription has no queue"
        while subscription.pending:
            deliveries = subscription.dispatch(self._clock())
            if not deliveries:
                break
            self.deliver(deliveries)
            if pace.is_full(len(deliveries)):
                yield

    # ---- browsers

    def browse(self, subscription: Subscription, queues: Iterable[Queue]) -> Work[None]:
        """``subscription`` begins to look at what those queues hold, each as it is when its turn comes."""
        pace = Pace()
        browses = []
        for queue in queues:
            browses.append((yield from queue.browse(subscription, pace)))
            if not subscription.is_open:
                return
        self._browses[subscription] = browses
        self.show(subscription)

    def is_browsing(self, subscription: Subscription) -> bool:
        """Whether there is, or may be, more that it was not shown."""
        return subscription in self._browses

    def end_browse(self, subscription: Subscription) -> None:
        """It looks no more."""
        self._browses.pop(subscription, None)

    def show(self, subscription: Subscription) -> None:
        """Give a browser what it has room for, one queue after the other, and tell it when it has seen all. What is
        more than a step goes on in slices."""
        self._shows.ask(subscription)

    def _show(self, subscription: Subscription) -> Work[None]:
        pace = Pace()
        browses = self._browses.get(subscription)
        if browses is None:
            return
        while browses:
            browse = browses[0]
            yield from browse.look(pace)
            if subscription not in self._browses or not subscription.is_open:
                return
            if deliveries := browse.dispatch(self._clock()):
                self.deliver(deliveries)
                if pace.is_full(len(deliveries)):
                    yield
                continue
            if browse.wants_look:
                continue
            if not browse.is_over or subscription.outlet.is_held:
                if browse.wants_page:
                    page = browse.ask_page()
                    page.context = BrowsePage(subscription, browse)
                    self._append(page)
                return
            del browses[0]
        del self._browses[subscription]
        outlet = subscription.outlet
        tell(outlet, outlet.session.nothing, subscription.id)

    def browsed(self, page: Page) -> None:
        """A page came back that was read for a browser."""
        context = page.context
        assert isinstance(context, BrowsePage), "asked for by show"
        context.browse.page(page.messages, page.is_end)
        self.show(context.subscription)

    # ---- out of a queue

    def remove(self, queue: Queue, entry: Entry, waiting: Waiting | None = None) -> None:
        """``entry``, which is stored, is gone from ``queue``: the store forgets it. ``waiting`` is told when it has."""
        self._append(removal(queue, entry, context=waiting))

    def bury(self, queue: Queue, entry: Entry, cause: str, waiting: Waiting | None = None) -> bool:
        """``entry``, which is out of its queue, becomes a dead letter, or goes for good when nobody wants it as one.
        Returns whether ``waiting`` is told when the store has done so; nothing is to be done for what it never had."""
        return self._bury(queue, entry, cause, waiting, is_expired=False)

    def expire(self, queue: Queue, entry: Entry, now: int, waiting: Waiting | None = None) -> bool:
        """As ``bury``, for a message whose time is over."""
        self.expired += 1
        self.tell(MessageEvent.EXPIRED, entry.message, queue.destination, None)
        cause = f"Message expired at {entry.message.expiration}, met at {now}"
        return self._bury(queue, entry, cause, waiting, is_expired=True)

    def _bury(self, queue: Queue, entry: Entry, cause: str, waiting: Waiting | None, *, is_expired: bool) -> bool:
        destination = queue.destination
        strategy = self._policies.of(destination).dead_letter
        target = strategy.target(destination)
        message = entry.message
        if (
            target is None
            or target == destination
            or queue.is_dead_letter_queue
            or not strategy.wants(is_persistent=message.persistent, is_expired=is_expired)
        ):
            if entry.order_key:
                self.remove(queue, entry, waiting)
            return bool(entry.order_key)
        self.dead_letters += 1
        self.tell(MessageEvent.DEAD_LETTER, message, destination, None)
        message_id = None
        if queue.subscription_key is not None:
            message_id = f"{broker_producer(f'ID:dead-letter-{self._epoch}')}:{self.dead_letters}"
        expiration = self._clock() + strategy.expiration if strategy.expiration else 0
        letter = dead_letter(message, target, cause, message_id, expiration)
        add = AddMessage(letter, self._destinations.dead_letter_queue(target).owners, encode_payload(letter))
        if not entry.order_key:
            self._append(Atomic((add,), None, waiting))
            return True
        self._append(Atomic((add, removal(queue, entry)), None, waiting))
        return True

    # ---- time

    def tick(self, now: int) -> Work[None]:
        """Once a second: what expired in memory is cleared away, a bounded number of messages each time; when memory
        runs short, queues without consumers leave theirs to the store."""
        pace = Pace()
        queues: list[Queue | Topic] = [*self._destinations.by_owner.values(), *self._destinations.by_name.values()]
        stored = len(self._destinations.by_owner)
        budget = self.settings.expiry_entries_per_tick
        for number in range(len(queues)):
            place = (self._sweep_from + number) % len(queues)
            queue = queues[place]
            if pace.is_full():
                yield
            # What is stored comes first, and is not to be looked at twice.
            if isinstance(queue, Topic) or (place >= stored and queue.owner) or not self._is_sweep_due(queue, now):
                continue
            looked_at = queue.sweep(now)
            budget -= looked_at
            if queue.expired:
                self.dispatch(queue)
            if pace.is_full(looked_at // 8):
                yield
            if budget <= 0:
                self._sweep_from = place + 1
                break
        self._swept = now
        if self._memory.used * 2 > self._memory.window_max:
            for queue in queues:
                if isinstance(queue, Queue):
                    held = queue.held
                    queue.evict()
                    if pace.is_full(1 + held // 8):
                        yield

    def _is_sweep_due(self, queue: Queue, now: int) -> bool:
        """As often as its policy says: at multiples of the period, those that fell between two calls included."""
        if not queue.expiring_at or queue.expiring_at > now:
            return False
        period = self._policies.of(queue.destination).expire_messages_period
        return 0 < period <= TICK_MS or (period > 0 and now // period > self._swept // period)

    def _expire(self, queue: Queue, now: int) -> None:
        expired, queue.expired = queue.expired[:ROUND_MESSAGES], queue.expired[ROUND_MESSAGES:]
        for entry in expired:
            queue.forget(entry)
            self.expire(queue, entry, now)


def removal(
    queue: Queue, entry: Entry, transaction: TransactionId | None = None, context: object = None
) -> RemoveMessage:
    """What has the store forget ``entry``, which it has, of ``queue``."""
    message_id = entry.message.message_id
    payload = encode_remove(queue.destination, message_id, transaction, queue.subscription_key)
    return RemoveMessage(queue.owner, entry.order_key, entry.location, message_id, payload, context, entry.size)


def encode_payload(message: Message, transaction: TransactionId | None = None) -> bytes:
    """The record that stores ``message``. ClientError if OpenWire has no room for something in it."""
    try:
        return encode_add(message, encode_message(message), transaction)
    except Unencodable as error:
        raise ClientError(f"The message cannot be stored: {error}", is_fatal=False) from error
