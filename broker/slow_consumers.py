"""Consumers that do not keep up: told of (advisory_for_slow_consumers), and cut off where a policy says so.

Looked at once a second, and not at all when no policy asks for it. Slow is who has no room while something waits for
it, and took nothing since the last look (AbortSlowConsumerStrategy); with ``max_time_since_last_ack`` who acknowledged
nothing for so long (AbortSlowAckConsumerStrategy).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import chain
from typing import Protocol

from broker.advising import Advising, name_of
from broker.core.advisor import SlowConsumerFact
from broker.core.client import Client
from broker.core.commands import ClientError, ErrorKind
from broker.core.policies import AbortSlow, DestinationPolicy, Policies
from broker.core.queue import Queue
from broker.core.slices import Pace, Work
from broker.core.subscription import Subscription
from broker.core.topic import Topic, TopicSubscription
from store.records.message import Destination

log = logging.getLogger(__name__)


# What it takes to look at a consumer, in items of a step.
_LOOKED_AT = 4


class Abort(Protocol):
    """Ends a consumer, or (``ends_connection``) the connection that it is on. ``error`` says why."""

    def __call__(
        self, client: Client, subscription: Subscription, error: ClientError, *, ends_connection: bool
    ) -> None: ...


class _Progress:
    """How one consumer gets on. ``slow_since`` 0: it is not slow."""

    __slots__ = ("acknowledged", "acknowledged_at", "delivered", "slow_count", "slow_since")

    def __init__(self, now: int) -> None:
        self.delivered = -1
        self.acknowledged = 0
        self.acknowledged_at = now
        self.slow_since = 0
        self.slow_count = 0


class SlowConsumers:
    """See the module."""

    def __init__(self, policies: Policies, advising: Advising, abort: Abort) -> None:
        self.aborted = 0
        self._policies = policies
        self._advising = advising
        self._abort = abort
        self._is_asked_for = policies.any(lambda policy: _concerns(policy))
        self._paces: dict[Subscription, _Progress] = {}

    @property
    def count(self) -> int:
        """How many are slow now, of those that a policy asks for."""
        return sum(pace.slow_since > 0 for pace in self._paces.values())

    def tick(self, now: int, clients: Iterable[Client]) -> Work[None]:
        """Once a second."""
        if not self._is_asked_for:
            return
        step = Pace()
        former, self._paces = self._paces, {}
        for client in list(clients):
            if client.is_busy:
                continue
            for subscription in list(client.subscriptions.values()):
                if step.is_full(_LOOKED_AT + (len(subscription.queues) + len(subscription.topics)) // 64):
                    yield
                found = self._policy(subscription)
                if found is None or not subscription.is_open:
                    continue
                pace = former.get(subscription) or _Progress(now)
                self._paces[subscription] = pace
                self._look(client, subscription, pace, *found, now)

    def _policy(self, subscription: Subscription) -> tuple[Destination, DestinationPolicy] | None:
        """Of the first destination that asks for it."""
        targets: Iterable[Queue | Topic] = chain[Queue | Topic](subscription.queues, subscription.topics)
        for target in targets:
            policy = self._policies.of(target.destination)
            if _concerns(policy):
                return target.destination, policy
        return None

    def _look(
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
            if policy.advisory_for_slow_consumers and self._advising.is_heard:
                self._advising.tell(SlowConsumerFact(name_of(client), subscription.id, destination))
        reason = None if strategy is None else _verdict(pace, strategy, now)
        if strategy is not None and reason is not None:
            self.aborted += 1
            text = f"Consumer {subscription.id} of {destination} is cut off: {reason}"
            log.warning("%s (%s, %s)", text, name_of(client), client.connection.peer)
            error = ClientError(
                text,
                "What it did not acknowledge goes to others (slow_consumer_strategy).",
                is_fatal=strategy.abort_connection,
                kind=ErrorKind.RESOURCE,
            )
            self._abort(client, subscription, error, ends_connection=strategy.abort_connection)


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
        return bool(subscription.pending)
    return any(queue.has_work for queue in subscription.queues)


def _verdict(pace: _Progress, strategy: AbortSlow, now: int) -> str | None:
    """Why it is to be cut off now; None: it is not."""
    duration, count = strategy.max_slow_duration, strategy.max_slow_count
    if duration and now - pace.slow_since >= duration:
        return f"slow for {now - pace.slow_since} ms (max_slow_duration {duration} ms)"
    if count and pace.slow_count >= count:
        return f"slow for the {pace.slow_count}. time (max_slow_count {count})"
    return None
