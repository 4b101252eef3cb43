"""Carry out the commands of consumers that grant each delivery and settle it with an outcome (AMQP): GRANT, GIVE BACK.

A grant is a limit of the number of deliveries that a subscription has had, so it does not matter which of them are
settled, and when.
"""

from __future__ import annotations

from tandemmq.broker.core.client import Client, ReceiptDue
from tandemmq.broker.core.commands import GiveBack, Grant
from tandemmq.broker.core.containment import tell
from tandemmq.broker.core.delivery import Entry, QueueBase, Subscription
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.topics.topic import TopicSubscription
from tandemmq.broker.engine.acknowledge import Acknowledger
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.part import Part, Shared

# A drain is answered when the deliveries in progress are made. Seconds before the first check, which double for each
# further check, and number of checks (2.5 s in all).
DRAIN_POLL_SECONDS = 0.005
DRAIN_POLLS_MAX = 9
# Cost of making a dead letter, in items of a step.
_DEAD_LETTERED = 8


class Granting(Part):
    """Carries out Grant and GiveBack. Runs on the loop."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher, acknowledger: Acknowledger) -> None:
        super().__init__(shared)
        self._dispatcher = dispatcher
        self._acknowledger = acknowledger

    def grant(self, client: Client, command: Grant) -> None:
        """Set the limit, send the receipt, and deliver up to it; with ``is_drain``, end the rest of the grant."""
        subscription = client.subscriptions.get(command.id)
        if subscription is None or not subscription.is_pull:
            client.send_receipt(command.receipt)
            return
        subscription.pulled = number = subscription.pulled + 1  # ends an earlier drain
        subscription.credit = max(0, command.limit - subscription.tag)
        client.send_receipt(command.receipt)  # later deliveries belong to this grant
        self._acknowledger.resume(subscription)
        if command.is_drain and not self._dispatcher.browsing.is_under_way(subscription):
            self._end_drain(subscription, number, 0)  # a browser reports its end itself

    def _end_drain(self, subscription: Subscription, number: int, polls: int) -> None:
        """Report the end of a drain, unless the grant is used up, or a later one replaced it."""
        if not subscription.is_open or subscription.pulled != number or subscription.credit <= 0:
            return
        if polls < DRAIN_POLLS_MAX and _is_under_way(subscription):
            seconds = DRAIN_POLL_SECONDS * (1 << polls)
            self._call_later(seconds, lambda: self._end_drain(subscription, number, polls + 1))
            return
        subscription.credit = 0
        outlet = subscription.outlet
        tell(outlet, outlet.session.nothing, subscription.id)

    def give_back(self, client: Client, command: GiveBack) -> Work[None]:
        """Give deliveries back to their queues, or make dead letters of those that were refused too often."""
        subscription = client.subscriptions.get(command.id)
        covered = [] if subscription is None else subscription.take_range(command.first, command.tag)
        refused: dict[QueueBase, list[Entry]] = {}
        dead: list[tuple[QueueBase, Entry]] = []
        topic = subscription if isinstance(subscription, TopicSubscription) else None
        of_topic: list[Entry] = []
        pace = Pace()
        for _, entry in covered:
            if pace.is_full():
                yield
            queue = entry.queue
            if queue is None:
                # No durable subscription: no other consumer gets the message, and it never becomes a dead letter.
                policy = self._policies.of(entry.message.destination).redelivery
                if topic is not None and not (command.is_failed and policy.is_over(entry.refusals)):
                    of_topic.append(topic.take_back(entry, is_seen=command.is_failed))
                continue
            if not command.is_failed:
                queue.give_back(entry, is_seen=False)  # prove: released-does-not-count ", is_seen=False"
                continue
            redelivery = self._policies.of(queue.destination).redelivery
            if redelivery.is_over(entry.refusals) and not queue.is_dead_letter_queue:
                queue.settle(entry)
                dead.append((queue, entry))
            elif self._acknowledger.refuse(queue, entry, redelivery.delay(entry.refusals)):
                refused.setdefault(queue, []).append(entry)
        for queue, entries in refused.items():
            self._dispatcher.suspects.count(queue, entries)
        last = next((entry for _, entry in reversed(dead) if entry.order_key), None)
        for queue, entry in dead:
            cause = f"refused by its consumer after {entry.redeliveries} redeliveries"
            is_last = entry is last and command.receipt is not None
            waiting = ReceiptDue(client, command.receipt) if is_last else None
            self._dispatcher.dead_letters.send_to_dlq(queue, entry, cause, waiting)
            if pace.is_full(_DEAD_LETTERED):
                yield
        if last is None:
            client.send_receipt(command.receipt)
        for queue in dict.fromkeys(entry.queue for _, entry in covered if entry.queue is not None):
            self._dispatcher.dispatch(queue)
        if topic is not None and of_topic:
            yield from topic.give_back(of_topic, pace)  # prove: topics-take-deliveries-back
        if subscription is not None:
            self._acknowledger.resume(subscription)


def _is_under_way(subscription: Subscription) -> bool:
    """Return whether deliveries to the subscription may follow at once: its output is full, a page is being read, or
    one of its queues continues in the next step."""
    if not subscription.outlet.is_writable:
        return True
    return any(queue.is_page_asked or (isinstance(queue, Queue) and queue.has_more) for queue in subscription.queues)
