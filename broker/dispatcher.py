"""What leaves the queues: deliveries to sessions, removals to the store, dead letters, and what time takes away.

The core decides who gets what; here it is told to the sessions, and what is gone by that is told to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.core.client import Waiting
from broker.core.commands import ClientError
from broker.core.deadletter import dead_letter
from broker.core.destinations import Destinations
from broker.core.queue import Delivery, Queue
from broker.core.settings import EngineSettings
from broker.core.subscription import Entry, Memory, Subscription
from broker.core.topic import TopicSubscription
from store.operations import AddMessage, Atomic, Operation, RemoveMessage
from store.records.commands import encode_add, encode_remove
from store.records.errors import Unencodable
from store.records.message import Message
from store.records.message_ids import broker_producer
from store.records.openwire import encode_message
from store.records.transactions import TransactionId


class Dispatcher:
    """See the module. ``append`` is the store's; ``epoch`` makes the ids of dead letters unique for ever."""

    def __init__(
        self,
        append: Callable[[Operation], None],
        epoch: int,
        destinations: Destinations,
        memory: Memory,
        settings: EngineSettings,
        clock: Callable[[], int],
    ) -> None:
        self.dead_letters = 0
        self.expired = 0
        self._append = append
        self._epoch = epoch
        self._destinations = destinations
        self._memory = memory
        self._settings = settings
        self._clock = clock
        self._sweep_from = 0

    def dispatch(self, queue: Queue) -> None:
        """Give out what can be given, and see to it that the next messages are read in time."""
        now = self._clock()
        while True:
            deliveries = queue.dispatch(now)
            if deliveries:
                self.deliver(deliveries)
            if queue.expired:
                self._expire(queue, now)
            if not queue.has_more:
                break
        if queue.is_paged and queue.wants_page:
            self._append(queue.ask_page())

    def deliver(self, deliveries: Iterable[Delivery]) -> None:
        """Tell the sessions. What an AUTO subscription got is acknowledged by that (STOMP 1.2, SUBSCRIBE)."""
        last = None
        for subscription, tag, entry in deliveries:
            outlet = subscription.outlet
            outlet.session.deliver(subscription.id, tag, entry.message, entry.redeliveries > 0, subscription.ack)
            if outlet is not last:
                outlet.touch()
                last = outlet
            if entry.order_key and subscription.is_auto and subscription.queue is not None:
                self.remove(subscription.queue, entry)

    def dispatch_pending(self, subscription: Subscription) -> None:
        """Give a plain topic subscription what waits for it."""
        assert isinstance(subscription, TopicSubscription), "only a topic's subscription has no queue"
        while subscription.pending:
            deliveries = subscription.dispatch(self._clock())
            if not deliveries:
                break
            self.deliver(deliveries)

    def remove(self, queue: Queue, entry: Entry, waiting: Waiting | None = None) -> None:
        """``entry``, which is stored, is gone from ``queue``: the store forgets it. ``waiting`` is told when it has."""
        message_id = entry.message.message_id
        payload = encode_remove(queue.destination, message_id, None, queue.subscription_key)
        self._append(
            RemoveMessage(queue.owner, entry.order_key, entry.location, message_id, payload, waiting, entry.size)
        )

    def bury(self, queue: Queue, entry: Entry, cause: str, waiting: Waiting | None = None) -> None:
        """``entry``, which is stored and out of its queue, moves to the dead letter queue in one piece."""
        self.dead_letters += 1
        message_id = None
        if queue.subscription_key is not None:
            message_id = f"{broker_producer(f'ID:dead-letter-{self._epoch}')}:{self.dead_letters}"
        letter = dead_letter(entry.message, cause, message_id)
        target = self._destinations.dead_letter_queue(letter.destination)
        remove = RemoveMessage(
            queue.owner,
            entry.order_key,
            entry.location,
            entry.message.message_id,
            encode_remove(queue.destination, entry.message.message_id, None, queue.subscription_key),
            None,
            entry.size,
        )
        self._append(Atomic((AddMessage(letter, target.owners, encode_payload(letter)), remove), None, waiting))

    # ---- time

    def tick(self, now: int) -> None:
        """Once a second: what expired in memory is cleared away, a bounded number of messages each time; when memory
        runs short, queues without consumers leave theirs to the store."""
        queues = list(self._destinations.by_owner.values())
        queues += [queue for queue in self._destinations.queues() if not queue.owner]
        budget = self._settings.expiry_entries_per_tick
        for number in range(len(queues)):
            queue = queues[(self._sweep_from + number) % len(queues)]
            budget -= queue.sweep(now)
            if queue.expired:
                self._expire(queue, now)
                self.dispatch(queue)
            if budget <= 0:
                self._sweep_from += number + 1
                break
        if self._memory.stored * 2 > self._memory.stored_max:
            for queue in queues:
                queue.evict()

    def _expire(self, queue: Queue, now: int) -> None:
        expired, queue.expired = queue.expired, []
        self.expired += len(expired)
        for entry in expired:
            queue.forget(entry)
            if not entry.order_key:
                continue
            if queue.is_dead_letter_queue:
                self.remove(queue, entry)
            else:
                self.bury(queue, entry, f"Message expired at {entry.message.expiration}, met at {now}")


def encode_payload(message: Message, transaction: TransactionId | None = None) -> bytes:
    """The record that stores ``message``. ClientError if OpenWire has no room for something in it."""
    try:
        return encode_add(message, encode_message(message), transaction)
    except Unencodable as error:
        raise ClientError(f"The message cannot be stored: {error}", is_fatal=False) from error
