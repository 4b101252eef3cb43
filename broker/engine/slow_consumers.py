"""Slow consumers: reported (advisory_for_slow_consumers), and ended if a policy requires it.

They are checked once a second, and only if a policy requires it. A consumer is slow if it has no room while messages
wait for it, and took nothing since the last check (AbortSlowConsumerStrategy); with ``max_time_since_last_ack`` if it
acknowledged nothing for that time (AbortSlowAckConsumerStrategy).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, islice

from tandemmq import log_events
from tandemmq.broker.core.advisor import SlowConsumerFact
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import ClientError, ErrorKind
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.policies import AbortSlow, DestinationPolicy, Policies
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.topics.topic import TopicSubscription
from tandemmq.broker.engine.advisories import Advising, name_of
from tandemmq.store.records.message import Destination

log = logging.getLogger(__name__)

# (client, consumer, error, ends_connection): ends a consumer, or the connection that it is on. ``error`` shows why.
AbortConsumer = Callable[[Client, Subscription, ClientError, bool], None]

# Cost of checking a consumer, in items of a step.
_CHECKED = 4
# Number of the oldest messages, waiting or unacknowledged, whose topics are checked for a subscription with wildcards.
_OLDEST = 16


@dataclass(slots=True, eq=False, repr=False)
class _Progress:
    """Progress of one consumer. ``slow_since`` 0: it is not slow."""

    acknowledged_at: int
    acknowledged: int = 0
    delivered: int = -1
    slow_since: int = 0
    slow_count: int = 0

    def skip(self, milliseconds: int) -> None:
        """Exclude a time during which the client waited for the broker."""
        self.acknowledged_at += milliseconds
        if self.slow_since:
            self.slow_since += milliseconds


class SlowConsumers:
    """Finds slow consumers, once a second. ``patterns_of`` returns the patterns of a subscription."""

    def __init__(
        self,
        policies: Policies,
        advising: Advising,
        abort: AbortConsumer,
        patterns_of: Callable[[Subscription], Iterable[Destination]],
    ) -> None:
        self.aborted = 0
        self._patterns_of = patterns_of
        self._policies = policies
        self._advising = advising
        self._abort = abort
        self._is_asked_for = policies.any(_concerns)
        self._paces: dict[Subscription, _Progress] = {}
        self._checked_at = 0

    @property
    def count(self) -> int:
        """Number of slow consumers, of those that a policy concerns."""
        return sum(pace.slow_since > 0 for pace in self._paces.values())

    def tick(self, now: int, clients: Iterable[Client]) -> Work[None]:
        """Check all consumers, once a second."""
        if not self._is_asked_for:
            return
        step = Pace()
        former, self._paces = self._paces, {}
        milliseconds, self._checked_at = now - self._checked_at, now
        for client in list(clients):
            for subscription in list(client.subscriptions.values()):
                if step.is_full(_CHECKED + len(subscription.queues) // 64):
                    yield
                pace = former.get(subscription)
                if not client.is_ready:  # it waits for the broker: only this time does not count
                    if pace is not None and subscription.is_open:
                        pace.skip(milliseconds)
                        self._paces[subscription] = pace
                    continue
                found = self._policy(subscription)
                if found is None or not subscription.is_open:
                    continue
                pace = self._paces[subscription] = pace or _Progress(now)
                self._check(client, subscription, pace, *found, now)

    def _policy(self, subscription: Subscription) -> tuple[Destination, DestinationPolicy] | None:
        """Return the first destination with such a policy, and the policy."""
        for destination in self._sources(subscription):
            policy = self._policies.of(destination)
            if _concerns(policy):
                return destination, policy
        return None

    def _sources(self, subscription: Subscription) -> Iterable[Destination]:
        """Return the destinations whose messages ``subscription`` gets. For a pattern of topics: the pattern, and the
        topics of the oldest messages, for which the consumer would be slow."""
        if not isinstance(subscription, TopicSubscription):
            return (each.destination for each in subscription.queues)
        oldest = chain(islice(subscription.unacked.values(), _OLDEST), islice(subscription.pending, _OLDEST))
        patterns = self._patterns_of(subscription)
        named = (each.destination for each in subscription.topics)
        return chain(named, patterns, (each.message.destination for each in oldest) if patterns else ())

    def _check(
        self,
        client: Client,
        subscription: Subscription,
        pace: _Progress,
        destination: Destination,
        policy: DestinationPolicy,
        now: int,
    ) -> None:
        strategy = policy.abort_slow
        if not _is_slow(subscription, pace, strategy, now):
            pace.slow_since = 0
            return
        if not pace.slow_since:
            pace.slow_since = now
            pace.slow_count += 1
            if policy.advisory_for_slow_consumers and self._advising.has_listeners:
                self._advising.tell(SlowConsumerFact(name_of(client), subscription.id, destination))
        reason = None if strategy is None else _verdict(pace, strategy, now)
        if strategy is not None and reason is not None:
            self.aborted += 1
            text = f"Consumer {subscription.id} of {destination} is cut off: {reason}"
            log.warning("%s (%s, %s)", text, name_of(client), client.connection.peer, extra=log_events.CONSUMER_CUT_OFF)
            error = ClientError(
                text,
                "Its unacknowledged messages go to other consumers (slow_consumer_strategy).",
                is_fatal=strategy.abort_connection,
                kind=ErrorKind.RESOURCE,
            )
            self._abort(client, subscription, error, strategy.abort_connection)


def _concerns(policy: DestinationPolicy) -> bool:
    return policy.abort_slow is not None or policy.advisory_for_slow_consumers


def _is_slow(subscription: Subscription, pace: _Progress, strategy: AbortSlow | None, now: int) -> bool:
    acknowledged = subscription.tag - len(subscription.unacked)
    if acknowledged != pace.acknowledged:
        pace.acknowledged, pace.acknowledged_at = acknowledged, now
    has_moved = subscription.tag != pace.delivered
    pace.delivered = subscription.tag
    if strategy is not None and strategy.max_time_since_last_ack is not None:
        if strategy.ignore_idle_consumers and not subscription.unacked:
            pace.acknowledged_at = now
            return False
        return now - pace.acknowledged_at >= strategy.max_time_since_last_ack
    if has_moved or subscription.is_pull or subscription.is_browser:
        return False
    if subscription.credit > 0 and subscription.outlet.is_writable:
        return False
    if isinstance(subscription, TopicSubscription):
        return bool(subscription.pending or subscription.unsifted)
    return any(queue.has_work for queue in subscription.queues)


def _verdict(pace: _Progress, strategy: AbortSlow, now: int) -> str | None:
    """Return the reason why the consumer is cut off now; None: it is not."""
    duration, count = strategy.max_slow_duration, strategy.max_slow_count
    if duration and now - pace.slow_since >= duration:
        return f"slow for {now - pace.slow_since} ms (max_slow_duration {duration} ms)"
    if count and pace.slow_count >= count:
        return f"slow {pace.slow_count} times (max_slow_count {count})"
    return None
