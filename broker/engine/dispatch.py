"""Output of the queues: deliveries to sessions, removals to the store, and expired messages.

The core decides which consumer gets a message; this module passes it to the session, and the removal to the store.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from tandemmq.broker.core.advisor import MessageEvent
from tandemmq.broker.core.commands import Undeliverable
from tandemmq.broker.core.containment import ERROR_OF_BROKER, hang_up
from tandemmq.broker.core.delivery import Delivery, Entry, Outlet, QueueBase, Session, Subscription
from tandemmq.broker.core.operations import removal
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import STEP_SECONDS, Pace, Rounds, Work, at_once, begin
from tandemmq.broker.core.topics.topic import DurableSubscription, Topic, TopicSubscription
from tandemmq.broker.engine.browsing import Browsing
from tandemmq.broker.engine.dead_letters import DeadLetters, Expiring
from tandemmq.broker.engine.deferred_delivery import Preparing
from tandemmq.broker.engine.fan_out import FanOut, Sifting
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.ports import Callback, Notify, Tracing
from tandemmq.broker.engine.redelivery import Suspects
from tandemmq.limited_log import LimitedLog
from tandemmq.store.histogram import Histogram
from tandemmq.store.operations import AddMessage, Page
from tandemmq.store.records.acknowledgements import AckType
from tandemmq.store.records.message import Destination, Message

log = logging.getLogger(__name__)

# Interval of ``tick``; nothing is checked more often.
TICK_MS: Final = 1_000
# Rounds in one step of a queue's dispatch (broker.core.queue.queue).
ROUNDS_MAX: Final = 8
# Upper bounds of the buckets of "store_to_delivery_seconds". A sample is kept until its time is beyond the last bound.
DELIVERY_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Time between two samples; the first message after it is the next one, so that slow messages are not preferred.
SAMPLE_SECONDS: Final = 0.1


class Dispatcher(Part):
    """Hands messages to consumers, and removals to the store. ``fan_out`` gives messages of a topic to its plain
    subscribers."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        policies, loop = shared.policies, shared.loop
        self.fan_out = FanOut(self.deliver, loop.start)
        # If set, called with the outlet that gets a message and the reply address of the message.
        self.gives: Callable[[Outlet, Destination], None] | None = None
        self.preparing = Preparing(loop.prepare_in_thread, self.deliver, self.dispatch)
        # Publishes events of messages; deliveries and acknowledgements only if a policy may want them.
        self.tell: Notify = lambda event, message, destination, subscription: None
        self.tells_arrived = policies.any(lambda policy: policy.advisory_for_delivery)
        self._tells_dispatched = policies.any(lambda policy: policy.advisory_for_dispatched)
        self.tells_consumed = policies.any(lambda policy: policy.advisory_for_consumed)
        self._tells = self._tells_dispatched or self.tells_consumed
        self._beginning: set[Queue] = set()  # queues that wait before they begin to deliver
        self.dead_letters = DeadLetters(shared, self.fan_out, self.added)
        self.browsing = Browsing(shared, self.deliver)
        self.sifting = Sifting(shared, self.deliver)
        # Queues that got messages by reports of the store; they are dispatched at the end of the step. ``pace``: how
        # full that step is.
        self.touched: dict[Queue, None] = {}
        self.pace = Pace(2 * STEP_SECONDS)  # long: every message passes here, and each turn of the loop has a cost
        self.suspects = Suspects(shared, self.dead_letters, self.dispatch)
        self._page_read = Callback(None, self._take_page)
        self._rounds = Rounds(loop.start, self._dispatch_rest)
        self._expiring = Expiring(shared, self.dead_letters, self.dispatch)
        # Some stored messages before their first delivery, by order key, and the time when they were stored.
        self.sampled: dict[int, float] = {}
        self.sample_due = 0.0
        self.delivery_seconds = Histogram(DELIVERY_SECONDS)
        self.monotonic = loop.monotonic
        self._limited = LimitedLog(log)
        self._sweep_from = 0
        self._swept = 0

    def trace(self, tracing: Tracing) -> None:
        """Pass arrivals and deliveries to ``tracing`` from now on. Before any other part of the engine is made."""
        self.tells_arrived = self._tells_dispatched = self._tells = True
        tell = self.tell

        def traced(
            event: MessageEvent, message: Message, destination: Destination, subscription: Subscription | None
        ) -> None:
            if event is MessageEvent.DELIVERED:
                tracing.arrived(message)
            elif event is MessageEvent.DISPATCHED:
                tracing.delivered(message, destination)
            tell(event, message, destination, subscription)

        self.tell = traced

    def dispatch(self, queue: QueueBase) -> None:
        """Deliver the messages that can be delivered, and have the next ones read in time. Work beyond one step
        continues in slices."""
        if self._give_out(queue):
            self._rounds.ask(queue)

    def _give_out(self, queue: QueueBase) -> bool:
        """Do one step of a dispatch. Return whether there may be more."""
        assert isinstance(queue, Queue), "all queues that are dispatched are Queues"
        now = self._clock() if queue.expires else 0
        if queue.start is not None and not self._has_begun(queue, now):
            return False
        rounds = ROUNDS_MAX
        while rounds > 0:
            rounds -= 1
            deliveries = queue.dispatch(now)
            if deliveries:
                self.deliver(deliveries)
            if queue.expired:
                self._expiring.ask(queue)
            if queue.assignment is not None and queue.assignment.is_placing:
                rounds = 0  # the step has put the maximum number into lanes
            if not queue.has_more:
                break
        else:
            return True
        # Expired messages must be gone before more are read.
        if queue.is_paged and not queue.expired and queue.wants_page:
            page = queue.ask_page()
            page.context = self._page_read
            self._append(page)
        return False

    def _take_page(self, page: Page) -> None:
        """Pass on a page that the store read for a queue."""
        queue = self._destinations.by_owner.get(page.owner)
        if queue is not None:
            self.suspects.read(queue, page, partial(self._take_in, page))

    def _take_in(self, page: Page) -> None:
        queue = self._destinations.by_owner.get(page.owner)
        if isinstance(queue, DurableSubscription) and queue.selector is not None:
            begin(self._sift(queue, page), self._start)
        elif queue is not None:
            self._put_in(queue, page)
            self.touched[queue] = None

    def _put_in(self, queue: Queue, page: Page) -> None:
        queue.page(page.messages, page.is_end)
        if any(paged.message.redelivery_counter for paged in page.messages):
            self.suspects.look_through(queue)

    def _sift(self, queue: DurableSubscription, page: Page) -> Work[None]:
        """Put the messages of the page that the selector takes into the queue."""
        unwanted = yield from queue.sift(page)
        if queue.is_dropped:
            return
        self._put_in(queue, page)
        for entry in unwanted:
            self._append(removal(queue, entry, kind=AckType.UNMATCHED))
        self.dispatch(queue)

    def _has_begun(self, queue: Queue, now: int) -> bool:
        """Return whether the queue delivers yet; if not, dispatch it again in time."""
        assert queue.start is not None, "only a queue with a start condition is checked"
        left = queue.start.waits(len(queue.consumers), now)
        if left and queue not in self._beginning:
            self._beginning.add(queue)
            self._call_later(left / 1000, lambda: self._begin(queue))
        return not left

    def _begin(self, queue: Queue) -> None:
        self._beginning.discard(queue)
        self.dispatch(queue)

    def _dispatch_rest(self, queue: QueueBase) -> Work[None]:
        yield
        while self._give_out(queue):
            yield

    def dispatch_all(self, queues: Iterable[QueueBase], pace: Pace) -> Work[None]:
        """Dispatch each queue, in steps; an error concerns its own queue. ``queues`` must not change meanwhile."""
        for queue in queues:
            dispatched = queue.dispatched
            try:
                if self._give_out(queue):
                    self._rounds.ask(queue)
            except Exception:  # the others are dispatched nevertheless
                log.exception("%s: delivering its messages %s", queue.destination, ERROR_OF_BROKER)
            given = 1 + queue.dispatched - dispatched
            is_assigned = isinstance(queue, Queue) and queue.assignment is not None
            if pace.is_over(given) if is_assigned else pace.is_full(given):
                yield

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Pass deliveries to the sessions, each by itself (broker.core.containment). The delivery to an AUTO
        subscription acknowledges the message (STOMP 1.2, SUBSCRIBE)."""
        last: Outlet | None = None
        ready: Outlet | None = None  # it is not held, and ``session`` is its session
        session: Session | None = None
        gives = self.gives
        sampled = self.sampled
        for subscription, tag, entry in deliveries:
            if sampled and entry.order_key in sampled:
                seconds = self.monotonic() - sampled.pop(entry.order_key)
                self.delivery_seconds.counts[bisect_left(DELIVERY_SECONDS, seconds)] += 1
                self.delivery_seconds.sum += seconds
            outlet = subscription.outlet
            if outlet is not ready or session is None:
                if outlet.is_held:
                    self.preparing.follow((subscription, tag, entry))
                    continue
                ready = outlet
                session = outlet.session
            try:
                if gives is not None and entry.message.reply_to is not None:
                    ready = None  # this may deliver, too
                    gives(outlet, entry.message.reply_to)
                prepare = session.deliver(subscription.id, tag, entry.message, entry.redeliveries, subscription.ack)
            except Undeliverable as reason:
                ready = None
                self._undeliverable(subscription, tag, entry, reason)
                continue
            except Exception:
                ready = None
                hang_up(outlet)
            else:
                if prepare is not None:
                    ready = None
                    self.preparing.begin(prepare, (subscription, tag, entry))
                    continue
                if outlet is not last:
                    outlet.touch()
                    last = outlet
            if entry.order_key and subscription.is_auto and entry.queue is not None:
                self._append(removal(entry.queue, entry))
        if self._tells:
            self._publish_deliveries(deliveries)

    def _undeliverable(self, subscription: Subscription, tag: int, entry: Entry, reason: Undeliverable) -> None:
        """Make a dead letter, unchanged, of a damaged message that a session cannot deliver."""
        text = f"message {entry.message.message_id} cannot be delivered to {subscription.outlet!r}: {reason}"
        self._limited.warning(type(subscription.outlet.session).__name__, "undeliverable", text)
        if not subscription.is_auto:
            subscription.take_one(tag)
        queue = entry.queue
        if queue is not None:
            if not subscription.is_auto:
                queue.settle(entry)
            self.dead_letters.send_to_dlq(queue, entry, f"it cannot be delivered to a consumer: {reason}")
            self._rounds.ask(queue)  # there is room for another one

    def _publish_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Publish deliveries, except those to browsers. A delivery to an AUTO subscription also consumes the
        message."""
        for subscription, _, entry in deliveries:
            if self._tells_dispatched and not subscription.is_browser:
                self.tell(MessageEvent.DISPATCHED, entry.message, entry.message.destination, subscription)
        if self.tells_consumed:
            self.consumed(each for each in deliveries if each[0].is_auto and not each[0].is_browser)

    def added(self, add: AddMessage, origin: Outlet) -> Work[None]:
        """Make a stored message visible to any number of owners."""
        message = add.message
        topic = self._destinations.by_name.get(message.destination)
        if isinstance(topic, Topic):
            self.fan_out.publish(topic, message, origin)
        if self.tells_arrived:
            self.arrived(message)
        for owner in add.owners:
            queue = self._destinations.by_owner.get(owner)
            if queue is not None:
                queue.add(message, add.order_key, add.location, add.size)
                self.touched[queue] = None
            if self.pace.is_full():
                yield

    def arrived(self, message: Message) -> None:
        """Publish that a message became visible in its destination. Called while ``tells_arrived``."""
        self.tell(MessageEvent.DELIVERED, message, message.destination, None)

    def consumed(self, deliveries: Iterable[Delivery]) -> None:
        """Publish that messages were acknowledged. Called while ``tells_consumed``."""
        for subscription, _, entry in deliveries:
            self.tell(MessageEvent.CONSUMED, entry.message, entry.message.destination, subscription)

    def dispatch_pending(self, subscription: Subscription) -> None:
        """Deliver the messages that wait for a plain topic subscription."""
        at_once(self.pending(subscription, Pace()))

    def pending(self, subscription: Subscription, pace: Pace) -> Work[None]:
        """Deliver the messages that wait for a plain topic subscription, in steps."""
        assert isinstance(subscription, TopicSubscription), "only a topic's subscription has no queue"
        while subscription.pending:
            deliveries = subscription.dispatch(self._clock())
            if not deliveries:
                break
            self.deliver(deliveries)
            if pace.is_full(len(deliveries)):
                yield

    # ---- time

    def tick(self, now: int) -> Work[None]:
        """Clear, once a second, a bounded number of messages that expired in memory; when memory runs short, release
        the messages of queues without consumers to the store."""
        pace = Pace()
        self._end_samples()
        queues: list[Queue | Topic] = [*self._destinations.by_owner.values(), *self._destinations.by_name.values()]
        stored = len(self._destinations.by_owner)
        budget = self._settings.expiry_entries_per_tick
        for number in range(len(queues)):
            place = (self._sweep_from + number) % len(queues)
            queue = queues[place]
            if pace.is_full():
                yield
            # Stored queues come first, and must not be swept twice.
            if isinstance(queue, Topic) or (place >= stored and queue.owner) or not self._is_sweep_due(queue, now):
                continue
            budget -= queue.held
            yield from queue.sweep(now, pace)
            if queue.expired:
                self.dispatch(queue)
            if budget <= 0:
                self._sweep_from = place + 1
                break
        self._swept = now
        if self._memory.used * 2 > self._memory.window_max:
            for queue in queues:
                if isinstance(queue, Queue):
                    yield from queue.evict(pace)
                    if pace.is_full():
                        yield

    def _end_samples(self) -> None:
        """End the samples that no consumer got in time, which are beyond all bounds: so their number is bounded."""
        now = self.monotonic()
        for key, since in list(self.sampled.items()):
            if now - since <= DELIVERY_SECONDS[-1]:
                break
            del self.sampled[key]
            self.delivery_seconds.note(now - since)

    def _is_sweep_due(self, queue: Queue, now: int) -> bool:
        """Return whether the sweep of a queue is due: at multiples of its period, also those between two calls."""
        if not queue.expiring_at or queue.expiring_at > now:
            return False
        period = self._policies.of(queue.destination).expire_messages_period
        return 0 < period <= TICK_MS or (period > 0 and now // period > self._swept // period)
