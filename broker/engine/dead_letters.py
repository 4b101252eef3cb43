"""Dead letters: the policy decides whether a message that could not be delivered, or has expired, is moved or removed.

A dead letter is a copy, as in RegionBroker.sendToDeadLetterQueue: it keeps the original destination, has no
expiration, and a property states the cause.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from tandemmq.broker.core import names
from tandemmq.broker.core.advisor import MessageEvent
from tandemmq.broker.core.client import ReceiptDue
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.core.delivery import Entry, Outlet, QueueBase
from tandemmq.broker.core.operations import encode_payload, removal, unmatched_acks
from tandemmq.broker.core.policies import DEFAULT_TARGET, DeadLetterStrategy
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import ITEMS, Work, begin
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.broker.engine.fan_out import NOBODY, FanOut
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.ports import Callback, Notify
from tandemmq.store.operations import AddMessage, Atomic, OrderKey, RemoveMessage
from tandemmq.store.records.acknowledgements import AckType
from tandemmq.store.records.altered import EXPIRATION_PROPERTY, ORIGINAL_ID_PROPERTY, altered
from tandemmq.store.records.message import Destination, Message, PropertyValue
from tandemmq.store.records.message_ids import broker_producer
from tandemmq.store.records.properties import Long

log = logging.getLogger(__name__)

CAUSE_PROPERTY = "dlqDeliveryFailureCause"
DELIVERY_MODE_PROPERTY = "originalDeliveryMode"
# Maximum number of remembered dead letters of durable subscriptions. If another subscription gives up the same message,
# it makes no second dead letter.
BURIED_MAX = 100_000
# Maximum number of expired messages that one round passes to the store.
ROUND_MAX = 128
# Cost of an expired message, which may become a dead letter, in items of a step; and the messages of one queue in a
# step.
_EXPIRED_ITEMS = 8
STEP_MAX = ITEMS // _EXPIRED_ITEMS


class DeadLetters(Part):
    """Makes dead letters. ``added`` makes stored messages visible, ``fan_out`` gives letters of a topic to its
    non-durable subscribers. ``tell`` publishes events of messages."""

    def __init__(self, shared: Shared, fan_out: FanOut, added: Callable[[AddMessage, Outlet], Work[None]]) -> None:
        super().__init__(shared)
        self.count = 0
        self.expired = 0
        self.tell: Notify = lambda event, message, destination, subscription: None
        self._publish = fan_out.publish
        self._added = added
        self.watchers: list[Counter[str]] = []  # count the message ids of dead letters
        # Dead letters of durable subscriptions, the oldest first: their destination, and the original message.
        self._buried: dict[tuple[Destination, OrderKey | str], None] = {}

    def send_to_dlq(self, queue: QueueBase, entry: Entry, cause: str, waiting: ReceiptDue | None = None) -> bool:
        """Make ``entry``, which is out of its queue, a dead letter, or remove it if the policy keeps none. Return
        whether the store calls ``waiting`` later; False: the store does not have the message, so there is nothing to
        store."""
        return self._send_to_dlq(queue, entry, cause, waiting, is_expired=False)

    def expire(self, queue: QueueBase, entry: Entry, waiting: ReceiptDue | None = None) -> bool:
        """Make a dead letter of a message that has expired, as ``send_to_dlq`` does."""
        self.expired += 1
        self.tell(MessageEvent.EXPIRED, entry.message, queue.destination, None)
        cause = f"Message expired at {entry.message.expiration}, found at {self._clock()}"
        return self._send_to_dlq(queue, entry, cause, waiting, is_expired=True)

    def _send_to_dlq(
        self, queue: QueueBase, entry: Entry, cause: str, waiting: ReceiptDue | None, *, is_expired: bool
    ) -> bool:
        destination = queue.destination
        strategy = self._policies.of(destination).dead_letter
        key = queue.subscription_key
        maker = self._maker(destination, key, strategy)
        target = self._place(strategy.target(destination, key), destination, maker)
        message = entry.message
        why = AckType.EXPIRED if is_expired else AckType.POISON
        if (
            target is None
            or target == destination
            or queue.is_dead_letter_queue
            or not strategy.wants(is_persistent=message.persistent, is_expired=is_expired)
            or (
                key is not None
                and strategy.enable_audit
                and self._is_buried(target, entry.order_key or message.message_id)
            )
        ):
            if entry.order_key:
                self._append(removal(queue, entry, context=waiting, kind=why))
            return bool(entry.order_key)
        # Copies of one message have the same id. Two of them may come into one queue: as dead letters, or when one of
        # them is retried and moved. A replay would treat the second as a duplicate.
        # prove: copies-have-letters-of-their-own "message.original_destination is not None" -> "False"
        has_own_id = key is not None or message.original_destination is not None
        letter = self._letter(message, destination, target, strategy, cause, has_own_id=has_own_id)
        parts: list[AddMessage | RemoveMessage] = [removal(queue, entry, kind=why)] if entry.order_key else []
        if target.is_topic:
            return self._bury_in_topic(self._destinations.dead_letter_topic(target, maker), letter, parts, waiting)
        self._bury([self._add(letter, target, maker), *parts], waiting)
        return True

    def _maker(self, of: Destination, key: str | None, strategy: DeadLetterStrategy) -> str | None:
        """Return the user whose quota the dead letters' destination uses. ``key``: key of a durable subscription."""
        if key is None or not strategy.destination_per_durable_subscriber:
            return self._destinations.maker(of)
        durable = self._destinations.durables.get(key)
        return None if durable is None else durable.user  # prove: letters-of-durables-count-for-their-users

    def _place(self, target: Destination | None, of: Destination, maker: str | None) -> Destination | None:
        """Return ``target``, or the shared dead letter queue if ``maker`` may not have one more destination. The maker
        of a destination from before a restart is not known: together they may use at most half of the destinations."""
        if target is None or of == DEFAULT_TARGET or (maker is None and not self._access.has_rights):
            return target
        if self._destinations.has_room_for(target, maker):
            return target
        return DEFAULT_TARGET  # prove: dead-letters-leave-room "DEFAULT_TARGET" -> "target"

    def _letter(
        self,
        message: Message,
        of: Destination,
        target: Destination,
        strategy: DeadLetterStrategy,
        cause: str,
        *,
        has_own_id: bool,
    ) -> Message:
        """Return the dead letter of a message. ``has_own_id``: it gets a new id, because it may have copies."""
        self.count += 1
        for watcher in self.watchers:
            watcher[message.message_id] += 1
        self.tell(MessageEvent.DEAD_LETTER, message, of, None)
        message_id = None
        if has_own_id:
            message_id = f"{broker_producer(f'ID:dead-letter-{self._store.epoch}')}:{self.count}"
        expiration = self._clock() + strategy.expiration if strategy.expiration else 0
        return dead_letter(message, target, cause, message_id, expiration)

    def _add(self, letter: Message, target: Destination, user: str | None) -> AddMessage:
        return AddMessage(letter, self._destinations.dead_letter_queue(target, user).owners, encode_payload(letter))

    def _bury_in_topic(
        self,
        topic: Topic,
        letter: Message,
        parts: Sequence[AddMessage | RemoveMessage],
        waiting: ReceiptDue | None,
    ) -> bool:
        """Store the letter for the durable subscriptions. If there are none, the present subscribers get it once its
        original is removed. ``parts``: operations that are done in the same Atomic."""
        owners = topic.takers(letter, None)
        if owners:
            add = AddMessage(letter, owners, encode_payload(letter))
            add.unmatched_acks = unmatched_acks(letter, topic, owners)
            parts = [add, *parts]
        if not parts:
            self._publish(topic, letter, NOBODY)
            return False
        self._bury(parts, waiting, None if owners else (topic, letter))
        return True

    def bury_lost(self, message: Message) -> None:
        """Make a dead letter of ``message``, which a slow consumer of a topic lost, if the policy keeps it and the
        store is not full. All consumers that lose the message make one letter."""
        strategy = self._policies.of(message.destination).dead_letter
        maker = self._destinations.maker(message.destination)
        target = self._place(strategy.target(message.destination), message.destination, maker)
        if (
            target is None
            or target.is_topic
            or not strategy.wants(is_persistent=message.persistent, is_expired=False)
            or self._store.is_full
            or (strategy.enable_audit and self._is_buried(target, message.message_id))
        ):
            return
        cause = "a consumer of its topic did not keep up"
        letter = self._letter(message, message.destination, target, strategy, cause, has_own_id=True)
        self._bury((self._add(letter, target, maker),), None)

    def bury_due(
        self, message: Message, user: str | None, cause: str, parts: Sequence[AddMessage | RemoveMessage]
    ) -> Destination | None:
        """Make a dead letter of a due ``message`` that ``user`` may not send to its destination: it goes to the dead
        letter destination of the first destination that it names, together with ``parts``. Return this target;
        None: the policy keeps no such letter, and only ``parts`` are done."""
        of = names.split(message.destination)[0]
        strategy = self._policies.of(of).dead_letter
        target = self._place(strategy.target(of), of, user)
        if target is None or not strategy.wants(is_persistent=message.persistent, is_expired=False):
            self._bury(parts, None)
            return None
        letter = self._letter(message, of, target, strategy, cause, has_own_id=False)
        if target.is_topic:
            topic = self._destinations.dead_letter_topic(target, user)
            if topic.takers(letter, None):
                self._bury_in_topic(topic, letter, parts, None)
                return target
            target = DEFAULT_TARGET  # no durable subscription keeps it there
            letter = altered(letter, destination=target)
        self._bury((self._add(letter, target, user), *parts), None)
        return target

    def _bury(
        self,
        parts: Sequence[AddMessage | RemoveMessage],
        due: ReceiptDue | None,
        volatile: tuple[Topic, Message] | None = None,
    ) -> None:
        """Hand ``parts`` to the store as one Atomic. When it is durable, send the receipt of ``due``. ``volatile``: a
        letter that no durable subscription of its topic wants, which the subscribers get when its original is
        removed."""

        def buried(atomic: Atomic) -> Work[None]:
            for part in atomic.operations:
                if isinstance(part, AddMessage):
                    yield from self._added(part, NOBODY)
            if volatile is not None:
                self._publish(*volatile, NOBODY)
            if due is not None:
                due.durable(atomic)

        self._append(Atomic(parts, None, Callback(None if due is None else due.client, buried)))

    def _is_buried(self, target: Destination, which: OrderKey | str) -> bool:
        """Return whether another subscription of the topic gave up the same message, and remember the message."""
        buried = self._buried
        key = target, which
        if key in buried:
            return True
        if len(buried) >= BURIED_MAX:
            del buried[next(iter(buried))]
        buried[key] = None
        return False


def dead_letter(
    message: Message, target: Destination, cause: str, message_id: str | None = None, expiration: int = 0
) -> Message:
    """Return the copy for the queue ``target``.

    The copy keeps its id, or gets ``message_id``: several durable subscriptions may each give up the same message, and
    the store identifies a message of a queue by its id.
    """
    added: dict[str, PropertyValue] = {CAUSE_PROPERTY: cause}
    if message.expiration:
        added[EXPIRATION_PROPERTY] = Long(message.expiration)
    if not message.persistent:
        added[DELIVERY_MODE_PROPERTY] = "NON_PERSISTENT"
    if message_id is not None:
        added[ORIGINAL_ID_PROPERTY] = message.message_id
    return altered(
        message,
        destination=target,
        original_destination=message.destination,
        message_id=message_id,
        properties_added=added,
        expiration=expiration,
        persistent=True,
        redelivery_counter=0,
    )


class Expiring(Part):
    """Removes expired messages in bounded rounds, so that the store stays free for messages of clients.

    A queue collects the expired messages that it finds (``Queue.expired``). They are removed in steps, one queue after
    the other, queues with consumers first. The operations of a round must be durable before the next round begins.
    ``cleared`` is called with a queue that has no expired messages any more."""

    def __init__(self, shared: Shared, dead_letters: DeadLetters, cleared: Callable[[Queue], None]) -> None:
        super().__init__(shared)
        self._expire = dead_letters.expire
        self._cleared = cleared
        # Queues that hold expired messages: with consumers, and without.
        self._awaited: dict[Queue, None] = {}
        self._others: dict[Queue, None] = {}
        self._is_under_way = False

    def ask(self, queue: Queue) -> None:
        """Remove the expired messages of ``queue``, now or in a later round."""
        if queue.consumers:
            self._others.pop(queue, None)
            self._awaited[queue] = None
        elif queue not in self._awaited:
            self._others[queue] = None
        if not self._is_under_way:
            self._begin_round()

    def _begin_round(self) -> None:
        """Begin the next round: the operations of the last one are durable."""
        self._is_under_way = bool(self._awaited or self._others)
        if self._is_under_way:
            begin(self._round(), self._start)

    def _round(self) -> Work[None]:
        """Do one round, and pass an empty operation to the store after it: the next round begins when the store has
        completed this operation."""
        stored = 0
        for _ in range(ROUND_MAX // STEP_MAX):
            stored += self._step(self._awaited or self._others)
            if not self._awaited and not self._others:
                break
            yield
        if stored:
            self._append(Atomic((), None, Callback(None, lambda _: self._begin_round())))
        else:
            self._begin_round()

    def _step(self, queues: dict[Queue, None]) -> int:
        """Remove expired messages of the next queue. Return the number of operations for the store."""
        queue = next(iter(queues))
        del queues[queue]
        count = min(len(queue.expired), STEP_MAX)
        stored = 0
        for _ in range(count):
            entry = queue.expired.popleft()
            queue.forget(entry)
            try:
                stored += self._expire(queue, entry)
            except Exception:  # no client caused the error: the other messages are removed
                log.exception("%s: removing expired messages %s", queue.destination, ERROR_OF_BROKER)
        if queue.expired:
            queues[queue] = None
        elif count:
            self._cleared(queue)
        return stored
