"""Evaluate the selectors of plain topic subscriptions that were postponed when a message was published.

A message is published within one step, whatever the selectors of its subscribers cost: selectors that would take longer
are postponed (broker.core.topics.topic). The selectors of each client are then evaluated in slices, as one work. So the
client with expensive selectors waits for them, and neither the producer nor another subscriber does. If this client is
too slow, it loses the oldest messages, like every slow subscriber of a topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tandemmq.broker.core.charging import charged
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.delivery import Delivery, Outlet
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.topics.topic import Topic, TopicSubscription
from tandemmq.broker.engine.part import Part, Shared

log = logging.getLogger(__name__)


class Sifting(Part):
    """Evaluates selectors on the loop. ``deliver`` passes deliveries to sessions."""

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
                            break  # the next one has its turn
                except Exception:  # the others get their messages all the same
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
