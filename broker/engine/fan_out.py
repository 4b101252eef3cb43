"""Deliver a topic's message to its subscribers: at once, or, if there are very many, in slices of the loop's time.

The messages of a topic go out one after the other, each to those who subscribed before it was published. While a
message is going out, no command of its publisher is carried out (``call_when_out``): so no more messages wait than
there are publishers, except those of transactions, of the store's batches and of the broker itself, which have a bound.

A message is published within one step, whatever the selectors of its subscribers cost: selectors that would take longer
are postponed (broker.core.topics.topic).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from tandemmq.broker.core.charging import charged
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.delivery import Delivery, Entry, Outlet
from tandemmq.broker.core.memory import Holder
from tandemmq.broker.core.slices import CLOCK, ITEMS, Pace, Work
from tandemmq.broker.core.topics.topic import Topic, TopicSubscription
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.store.records.message import Message

log = logging.getLogger(__name__)

#: Maximum number of messages of one topic that are going out. Above it, they are completed before any other work.
WAITING_MAX = 10_000


# The origin of messages that no client sent: it is only compared.
NOBODY = cast("Outlet", object())


@dataclass(slots=True, eq=False, repr=False)
class _Outgoing:
    """A message that is going out. The first ``position`` subscribers of ``audience`` have it."""

    entry: Entry
    origin: Outlet
    audience: tuple[TopicSubscription, ...]
    payer: Holder | None
    position: int = 0


class FanOut:
    """Delivers a topic's message to its subscribers, to very many in slices. ``deliver`` passes deliveries to
    sessions; ``start`` does work in slices."""

    __slots__ = ("_deliver", "_start", "_then", "_waiting", "origins")

    def __init__(self, deliver: Callable[[Sequence[Delivery]], None], start: Callable[[Work[None]], object]) -> None:
        self._deliver = deliver
        self._start = start
        self._waiting: dict[Topic, deque[_Outgoing]] = {}
        self._then: dict[Outlet, Callable[[None], None]] = {}
        self.origins: Counter[Outlet] = Counter()  # of messages that are going out

    def publish(
        self,
        topic: Topic,
        message: Message,
        origin: Outlet,
        audience: Sequence[TopicSubscription] | None = None,
        count: int = 1,
        payer: Outlet | None = None,
    ) -> None:
        """Deliver ``message``, one of ``count`` that are published together, to the plain subscribers of ``topic``, or
        to ``audience`` alone. Later work is charged to ``payer``; None: to ``origin``, if that is a client."""
        waiting = self._waiting.get(topic)
        subscribers = topic.subscribers if audience is None else audience
        if waiting is None:
            if not subscribers:
                topic.note(message)
                return
            if len(subscribers) * count <= ITEMS:
                self._deliver(topic.give(topic.enter(message), origin, subscribers))
                return
        if payer is None and origin is not NOBODY:
            payer = origin
        holder = None if payer is None else payer.holder
        everyone = tuple(subscribers)
        if waiting is not None and waiting[-1].audience == everyone:
            everyone = waiting[-1].audience  # all messages share one tuple
        going = _Outgoing(topic.enter(message), origin, everyone, holder)
        self.origins[origin] += 1
        if waiting is None:
            waiting = self._waiting[topic] = deque((going,))
            self._start(self._send(topic, waiting))
            return
        waiting.append(going)
        while len(waiting) > WAITING_MAX:
            self._step(topic, waiting)

    def call_when_out(self, origin: Outlet, then: Callable[[None], None]) -> None:
        """Call ``then`` once no message from ``origin`` is going out: at once, if there is none now."""
        if origin in self.origins:
            self._then[origin] = then
        else:
            then(None)

    def _send(self, topic: Topic, waiting: deque[_Outgoing]) -> Work[None]:
        while waiting:
            try:
                self._step(topic, waiting)
            except Exception:  # the other subscribers still get the message
                log.exception("%s: a message %s", topic.destination, ERROR_OF_BROKER)
            yield

    def _step(self, topic: Topic, waiting: deque[_Outgoing]) -> None:
        going = waiting[0]
        piece = going.audience[going.position : going.position + ITEMS]
        going.position += ITEMS
        began = CLOCK.now() - CLOCK.apart
        try:
            self._deliver(topic.give(going.entry, going.origin, [each for each in piece if each.is_open]))
        finally:
            if going.payer is not None:
                going.payer.busy += CLOCK.now() - CLOCK.apart - began
            if going.position >= len(going.audience):
                waiting.popleft()
                self._is_out(topic, going.origin)

    def _is_out(self, topic: Topic, origin: Outlet) -> None:
        if not self._waiting[topic]:
            del self._waiting[topic]
        self.origins[origin] -= 1
        if not self.origins[origin]:
            del self.origins[origin]
            then = self._then.pop(origin, None)
            if then is not None:
                then(None)


class Sifting(Part):
    """Evaluates the selectors of plain topic subscriptions that were postponed when a message was published.

    The selectors of each client are evaluated in slices, as one work. So the client with expensive selectors waits for
    them, and neither the producer nor another subscriber does. If this client is too slow, it loses the oldest
    messages, like every slow subscriber of a topic. ``deliver`` passes deliveries to sessions."""

    def __init__(self, shared: Shared, deliver: Callable[[Sequence[Delivery]], None]) -> None:
        super().__init__(shared)
        self._deliver = deliver
        self._waiting: dict[Outlet, dict[TopicSubscription, None]] = {}

    def put_off(self, subscription: TopicSubscription) -> None:
        """Begin with ``subscription``, which now has ``unsifted`` messages, and had none."""
        waiting = self._waiting.get(subscription.outlet)
        if waiting is not None:
            waiting[subscription] = None
            return
        self._waiting[subscription.outlet] = {subscription: None}
        self._start(charged(self._sift(subscription.outlet), subscription.outlet.holder))

    def _sift(self, outlet: Outlet) -> Work[None]:
        waiting = self._waiting[outlet]
        pace = Pace()
        pace.begin()
        try:
            while waiting:
                subscription = next(iter(waiting))
                del waiting[subscription]
                if not subscription.is_open:
                    continue
                try:
                    while subscription.unsifted:
                        self._sift_one(subscription)
                        if pace.is_over():
                            yield
                            break  # continue with the next subscription
                except Exception:  # the others still get their messages
                    log.exception("%r: a message for %r %s", outlet, subscription.id, ERROR_OF_BROKER)
                if subscription.is_open and subscription.unsifted:
                    waiting[subscription] = None
        finally:
            del self._waiting[outlet]

    def _sift_one(self, subscription: TopicSubscription) -> None:
        message = subscription.unsifted[0].message
        dropped = subscription.dropped
        delivery = subscription.sift(self._clock())
        topic = self._destinations.by_name.get(message.destination)
        if isinstance(topic, Topic):
            topic.dropped += subscription.dropped - dropped
            topic.dispatched += delivery is not None
        if delivery is not None:
            self._deliver((delivery,))
