"""SEND: where a message goes, whether there is room for it, and what becomes of its copies.

A message to one queue, which most are, takes one look into a dictionary of its client. Everything else (composites,
virtual topics, limits that a policy sets, rights) is looked at once for each destination and client, or for each
message where it must be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import tzinfo
from typing import TypeGuard

from broker.core import names
from broker.core.access import Access, Operation
from broker.core.advisor import MessageEvent
from broker.core.client import Client
from broker.core.commands import ClientError, ErrorKind, Receipt, Send
from broker.core.destinations import Destinations
from broker.core.made import Made, Target
from broker.core.memory import Memory, Share
from broker.core.pending import PENDING
from broker.core.policies import DestinationPolicy, Policies
from broker.core.queue import Queue
from broker.core.room import NoRoom
from broker.core.slices import ITEMS, Pace, Work
from broker.core.subscription import Outlet
from broker.core.topic import DurableSubscription, Topic
from broker.core.virtual_topics import VIRTUAL_TOPIC_PREFIX
from broker.dispatcher import NOBODY, Dispatcher, Store, encode_payload
from broker.fan_out import FanOut
from broker.scheduler import Scheduler, is_management, may_be_scheduled
from store.operations import AddMessage, Atomic, RemoveMessage
from store.records.altered import altered
from store.records.commands import encode_remove
from store.records.message import Destination, DestinationKind, Message
from store.records.message_ids import is_made_by_broker
from store.records.transactions import TransactionId
from store.space import StoreFull

log = logging.getLogger(__name__)

FULL_ADVICE = "Nothing was stored. Send it later: consumers go on, and what they acknowledge gives space back."
# Limits by the names under which a producer is told of them.
STORE_LIMIT = "store"
MEMORY_LIMIT = "memory_limit"


class Commitment:
    """Context of an Atomic that a client asked for (None: nobody did, its time had come): what becomes visible with it
    although it is not stored."""

    __slots__ = ("client", "receipt", "volatile")

    def __init__(self, client: Client | None, receipt: Receipt | None, volatile: list[tuple[Message, Target]]) -> None:
        self.client = client
        self.receipt = receipt
        self.volatile = volatile


# Of a message, that take as long to copy as one more item of a step.
_COPIED_BYTES = 16 * 1024


class Sender:
    """See the module."""

    def __init__(
        self,
        store: Store,
        destinations: Destinations,
        dispatcher: Dispatcher,
        fan_out: FanOut,
        memory: Memory,
        policies: Policies,
        access: Access,
        clock: Callable[[], int],
        zone: tzinfo,
    ) -> None:
        self.refused = 0  # messages that a full store did not take
        self._store = store
        self._append = store.append
        self._destinations = destinations
        self._dispatcher = dispatcher
        self._fan_out = fan_out
        self._memory = memory
        self._policies = policies
        self._access = access
        self._clock = clock
        self._zone = zone
        # Messages that wait for their time; None until there is one.
        self.scheduler: Scheduler | None = None
        self._pending: Queue | None = None
        pending = destinations.pending
        if pending is not None:
            self._begin_scheduler(pending.id, pending.count)

    def send(self, client: Client, command: Send) -> Work[None] | None:
        """Outside of a transaction: the receipt is told when the message is durable, or visible if it is not stored.

        What is returned, if anything, is for the caller to make the steps of, before the client's next command. As long
        as it raises NoRoom or another ClientError, nothing has become of the message."""
        message = command.message
        queue = client.targets.get(message.destination)
        if queue is None or queue.is_dropped or not message.persistent or may_be_scheduled(message):
            return self._send_otherwise(client, message, command.receipt)
        receipt = command.receipt
        waiting = None if receipt is None else (client, receipt)
        try:
            self._append(_add(message, queue.owners, encode_payload(message), waiting))
        except StoreFull as error:
            raise self.full(str(error), message.destination) from error

        return None

    def _send_otherwise(self, client: Client, message: Message, receipt: Receipt | None) -> Work[None] | None:
        target = self.known_target(client, message)
        if target is not None and not _is_wide(target):
            self._send_to(client, message, target, receipt)
            return None
        if is_management(message.destination):
            self._manage(client, message)
            client.tell_receipt(receipt)
            return None
        return self._send_routed(client, self.scheduled(client, message), receipt)

    def _send_routed(self, client: Client, message: Message, receipt: Receipt | None) -> Work[None]:
        pace = Pace()
        routed = yield from self._routes(client, message, pace)
        if len(routed) == 1 and not _is_wide(routed[0][1]):
            self._send_to(client, *routed[0], receipt)
            return
        # Copies of one message: all or none.
        made = Made(client.holder)
        try:
            yield from self._make(client, routed, None, pace, made)
        except BaseException:
            made.give_back()
            raise
        operations, volatile = self.settle(client, made, None)
        if operations and self._store.is_full:
            raise self.full(self._store.full_reason, message.destination)
        for copy, target in volatile:
            self.check_memory(copy, target)
        commitment = Commitment(client, receipt, volatile)
        if operations:
            self._append(Atomic(operations, None, commitment))
        else:
            yield from self.committed(commitment, pace)

    def _send_to(self, client: Client, message: Message, target: Target, receipt: Receipt | None) -> None:
        """To that alone."""
        owners = self._stored_by(message, target, client)
        if owners:
            add = _add(message, owners, encode_payload(message), (client, receipt))
            add.passed_over = _passed_over(message, target, owners)
            try:
                self._append(add)
            except StoreFull as error:
                raise self.full(str(error), message.destination) from error
            return
        self.check_memory(message, target)
        self.show(client, message, target)
        client.tell_receipt(receipt)

    # ---- later

    def scheduled(self, client: Client, message: Message) -> Message:
        """What is to be stored in the place of a message that is to wait; any other one itself."""
        if message.destination == PENDING:
            raise ClientError(
                f"{PENDING} is the broker's own",
                "Messages wait there for their time: send to where they belong, with AMQ_SCHEDULED_DELAY.",
                is_fatal=False,
                kind=ErrorKind.DESTINATION,
            )
        if not may_be_scheduled(message):
            return message
        self.check_may_send_all(client, message.destination)
        self._check_size(message, names.count(message.destination))
        return self._begun_scheduler().take(message, client.principal.owner) or message

    def _begun_scheduler(self) -> Scheduler:
        return self.scheduler or self._begin_scheduler(self._store.queue(PENDING), 0)

    def _begin_scheduler(self, owner: int, count: int) -> Scheduler:
        self.scheduler = Scheduler(
            self._append,
            self._send_due,
            owner,
            count,
            self._store.epoch,
            self._clock,
            zone=self._zone,
            repeat_max=self._dispatcher.settings.max_scheduler_repeat_allowed,
        )
        self._pending = Queue(PENDING, owner, self._dispatcher.settings, Share(self._memory))
        return self.scheduler

    def _manage(self, client: Client, message: Message) -> None:
        self._access.check(client.principal, Operation.WRITE, message.destination)
        user = None
        try:
            self._access.check(client.principal, Operation.REMOVE, message.destination)
        except ClientError:
            user = client.principal.owner
            if user is None:
                raise
        if message.reply_to is not None:
            # The broker answers there, in nobody's name.
            self.check_may_send_all(client, message.reply_to)
        self._begun_scheduler().manage(message, user)

    def _send_due(self, message: Message, parts: Sequence[AddMessage | RemoveMessage], pace: Pace) -> Work[None]:
        """The time of ``message`` has come: it goes where it belongs, together with ``parts``. See scheduler.Send."""
        made = yield from self.make(None, (message,), None, pace)
        operations, volatile = self.settle(None, made, None)
        together = [*operations, *parts]
        commitment = Commitment(None, None, volatile)
        if together:
            self._append(Atomic(together, None, commitment))
        else:
            yield from self.committed(commitment, pace)

    # ---- where to

    def _routes(self, client: Client | None, message: Message, pace: Pace) -> Work[list[tuple[Message, Target]]]:
        """Each queue and topic that gets the message, with the copy that is for it. ClientError when one of them may
        not. No client: the broker sends what it was given before."""
        destination = message.destination
        if destination == PENDING:
            assert self._pending is not None, "only the scheduler makes such messages"
            return [(message, self._pending)]
        parts = names.split(destination)
        if len(parts) == 1 and parts[0] == destination:
            return (yield from self._routes_of_one(client, message, pace))
        if len(parts) > names.COMPOSITE_PARTS_MAX:
            raise ClientError(
                f"{destination} names {len(parts)} destinations",
                f"1 to {names.COMPOSITE_PARTS_MAX} may be named.",
                is_fatal=False,
            )
        if client is not None:
            self._check_size(message, len(parts))
        copies = [altered(message, destination=part, original_destination=destination) for part in parts]
        routed = []
        for copy in copies:
            routed += yield from self._routes_of_one(client, copy, pace)
        return routed

    def _check_size(self, message: Message, parts: int) -> None:
        """ClientError when its copies, which are stored together as those of a transaction, are more than one may
        have."""
        limit = self._dispatcher.settings.transaction_bytes_max
        if parts > 1 and message.size * parts > limit:
            raise ClientError(
                f"A message of {message.size} bytes to {parts} destinations is {message.size * parts} bytes",
                f"Together they may have {limit} (transaction_bytes_max): send it to each by itself.",
                is_fatal=False,
                kind=ErrorKind.RESOURCE,
            )

    def _routes_of_one(self, client: Client | None, message: Message, pace: Pace) -> Work[list[tuple[Message, Target]]]:
        destination = message.destination
        policy = self._policies.of(destination)
        if client is not None:
            self.check_may_send(client, destination)
        if policy.max_message_size is not None and message.size > policy.max_message_size:
            raise ClientError(
                f"A message of {message.size} bytes is too large for {destination}",
                f"max_message_size is {policy.max_message_size} bytes there.",
                is_fatal=False,
                kind=ErrorKind.RESOURCE,
            )
        message = self._aged(message, policy)
        target = self._destinations.route(destination, None if client is None else client.principal.owner)
        if isinstance(target, Queue):
            if client is not None and target.owner and _is_plain(policy):
                client.targets[destination] = target
            return [(message, target)]
        routed: list[tuple[Message, Target]] = [(message, target)]
        if destination.kind is DestinationKind.TOPIC and destination.name.startswith(VIRTUAL_TOPIC_PREFIX):
            for each in list(self._destinations.virtual_queues(destination.name)):
                if self._destinations.exists(each):  # it may have ended since the first step
                    copy = altered(message, destination=each, original_destination=destination)
                    routed.append((copy, self._destinations.queue(each)))
                if pace.is_full(1 + message.size // _COPIED_BYTES):
                    yield
        return routed

    def known_target(self, client: Client, message: Message) -> Target | None:
        """The queue or topic that alone takes the message as it is, if all that ``routes`` asks was asked before."""
        destination = message.destination
        queue = client.targets.get(destination)
        if queue is not None:
            return None if queue.is_dropped or may_be_scheduled(message) else queue
        if destination not in client.may_send or destination.name.startswith(VIRTUAL_TOPIC_PREFIX):
            return None  # what may_send has is one name
        topic = self._destinations.by_name.get(destination)
        if not isinstance(topic, Topic) or is_management(destination) or may_be_scheduled(message):
            return None
        return topic if _is_plain(self._policies.of(destination)) else None

    def open(self, client: Client, destination: Destination) -> None:
        """A producer begins: what it names begins with it. ClientError when it may not send there."""
        for part in names.split(destination):
            self.check_may_send(client, part)
            self._destinations.route(part, client.principal.owner)

    def check_may_send_all(self, client: Client, destination: Destination) -> None:
        """ClientError when a part of it is closed to the client."""
        for part in names.split(destination):
            self.check_may_send(client, part)

    def check_may_send(self, client: Client, destination: Destination) -> None:
        """Once for each destination and client. ClientError when it may not, or nobody can."""
        if destination in client.may_send:
            return
        if names.is_wildcard(destination.name):
            raise ClientError(
                f"{destination} has wildcards",
                "A message is sent to destinations by their names; a comma lists several.",
                is_fatal=False,
                kind=ErrorKind.DESTINATION,
            )
        if destination.kind is DestinationKind.TOPIC and destination.name.startswith(names.ADVISORY_TOPICS):
            raise ClientError(
                f"{destination} is the broker's own",
                "Clients act on what they hear there; nobody else is to tell them.",
                is_fatal=False,
                kind=ErrorKind.SECURITY,
            )
        if not self._destinations.exists(destination):
            self._access.check(client.principal, Operation.CREATE, destination)
        self._access.check(client.principal, Operation.WRITE, destination)
        if len(client.may_send) >= MAY_SEND_REMEMBERED:
            client.may_send.clear()
            client.targets.clear()
        client.may_send.add(destination)

    def _aged(self, message: Message, policy: DestinationPolicy) -> Message:
        """As old as the policy lets it become."""
        if not (policy.ttl_ceiling or policy.zero_expiration_override):
            return message
        expiration = policy.expiration(message.timestamp, message.expiration)
        return message if expiration == message.expiration else altered(message, expiration=expiration)

    def _add_of(
        self,
        client: Client | None,
        message: Message,
        target: Target,
        owners: tuple[int, ...],
        transaction: TransactionId | None,
    ) -> AddMessage:
        add = _add(message, owners, encode_payload(message, transaction))
        if client is None:  # its id was known when it came; whoever sent it does not send it again
            add.is_audited = False
        add.passed_over = _passed_over(message, target, owners, transaction)
        return add

    def make(
        self, client: Client | None, messages: Iterable[Message], transaction: TransactionId | None, pace: Pace
    ) -> Work[Made]:
        """What becomes of messages, in steps; ``settle`` ends it. ClientError when one may not go where it is to, or
        the copies of one take more memory than the client may hold."""
        made = Made(None if client is None else client.holder)
        try:
            for message in messages:
                target = None if client is None else self.known_target(client, message)
                if target is not None and not _is_wide(target):
                    self._make_one(client, message, target, transaction, made)
                    if pace.is_full(1 + message.size // _COPIED_BYTES):
                        yield
                    continue
                if client is not None:
                    message = self.scheduled(client, message)
                routed = yield from self._routes(client, message, pace)
                yield from self._make(client, routed, transaction, pace, made)
        except BaseException:
            made.give_back()
            raise
        return made

    def _make(
        self,
        client: Client | None,
        routed: list[tuple[Message, Target]],
        transaction: TransactionId | None,
        pace: Pace,
        made: Made,
    ) -> Work[None]:
        """The copies of one message."""
        made.begin()
        for message, target in routed:
            if _is_wide(target):
                known = target.owners
                add = yield from self._add_in_steps(client, message, target, transaction, pace)
                made.parts.append((message, target, known, add))
            else:
                self._make_one(client, message, target, transaction, made)
            if pace.is_full(1 + message.size // _COPIED_BYTES):
                if len(routed) > ITEMS:
                    made.count()
                yield

    def _make_one(
        self, client: Client | None, message: Message, target: Target, transaction: TransactionId | None, made: Made
    ) -> None:
        owners = self._stored_by(message, target, client)
        add = self._add_of(client, message, target, owners, transaction) if owners else None
        made.parts.append((message, target, target.owners, add))

    def _add_in_steps(
        self, client: Client | None, message: Message, topic: Topic, transaction: TransactionId | None, pace: Pace
    ) -> Work[AddMessage | None]:
        """For very many durable subscriptions."""
        if not message.persistent:
            return None
        origin = _origin(client)
        owners = []
        passed_over = []
        for durable in list(topic.durables.values()):
            if durable.wants(message, origin):
                owners.append(durable.owner)
            else:
                key = durable.subscription_key
                passed_over.append(encode_remove(message.destination, message.message_id, transaction, key, b""))
            if pace.is_full():
                yield
        if not owners:
            return None
        add = _add(message, tuple(owners), encode_payload(message, transaction))
        add.is_audited = add.is_audited and client is not None
        add.passed_over = tuple(passed_over)
        return add

    def settle(
        self, client: Client | None, made: Made, transaction: TransactionId | None
    ) -> tuple[list[AddMessage], list[tuple[Message, Target]]]:
        """What the store is to keep of what was made, and what only memory will: without queues that ended meanwhile,
        and for the durable subscriptions that there are now. To be carried out in the same turn."""
        made.give_back()
        operations: list[AddMessage] = []
        volatile: list[tuple[Message, Target]] = []
        for message, target, known, add in made.parts:
            if isinstance(target, Queue):
                if target.is_dropped:
                    continue
            elif target.owners is not known:
                owners = self._stored_by(message, target, client)
                add = self._add_of(client, message, target, owners, transaction) if owners else None
            if add is None:
                volatile.append((message, target))
            else:
                operations.append(add)
        return operations, volatile

    def _stored_by(self, message: Message, target: Target, client: Client | None) -> tuple[int, ...]:
        """The owners for which the store must keep ``message``; none when it is not to be stored."""
        if target is self._pending:
            return target.owners  # whatever is to wait
        if not message.persistent or target.destination.kind > DestinationKind.TOPIC:
            return ()
        return target.owners if isinstance(target, Queue) else target.takers(message, _origin(client))

    def is_stored(self, client: Client, message: Message) -> bool:
        """Whether the store would have to keep the message, or a copy of it."""
        return message.persistent and any(
            self._stored_by(message, target, client) for target in self._targets(client, message)
        )

    def _targets(self, client: Client, message: Message) -> Iterator[Target]:
        """As ``routes``, without copies."""
        destination = message.destination
        for part in (destination,) if destination == PENDING else names.split(destination):
            if part == PENDING:
                assert self._pending is not None, "only the scheduler makes such messages"
                yield self._pending
                continue
            self.check_may_send(client, part)
            yield self._destinations.route(part, client.principal.owner)
            if part.is_topic:
                yield from map(self._destinations.queue, list(self._destinations.virtual_queues(part.name)))

    # ---- room

    def full(self, reason: str, destination: Destination, count: int = 1) -> NoRoom:
        """What a producer is told whose messages the store cannot take now."""
        return NoRoom(reason, FULL_ADVICE, limit=STORE_LIMIT, destination=destination, count=count)

    def lines_of(self, client: Client, message: Message) -> set[tuple[str, Destination | None]]:
        """The limits that ``message`` has to pass, each with whose it is (None: the broker's)."""
        lines: set[tuple[str, Destination | None]] = set()
        for target in self._targets(client, message):
            if self._stored_by(message, target, client):
                lines.add((STORE_LIMIT, None))
            elif isinstance(target, Queue) or target.durables:
                lines.add((MEMORY_LIMIT, target.destination))
        return lines

    def check_memory(self, message: Message, target: Target) -> None:
        """NoRoom when a message that is not stored has to wait for some. ClientError when it can never have it."""
        if isinstance(target, Topic) and not target.durables:
            return
        memory = self._memory
        destination = target.destination
        for share in (target.share,) if isinstance(target, Queue) else target.shares:
            if share.limit and share.used >= share.limit:
                reason = f"Messages of {destination} fill its memory"
                limit = f"memory_limit is {share.limit} bytes there"
            elif share.not_persistent + message.size > memory.free:
                reason = f"Non-persistent messages of {destination} fill the memory that is free"
                limit = f"memory_limit of the broker is {memory.limit} bytes, of which {memory.used} are used"
            else:
                continue
            if message.size > memory.limit:
                reason = f"A message of {message.size} bytes that is not persistent never has room in {destination}"
                log.warning("%s: memory_limit of the broker is %d bytes", reason, memory.limit)
                advice = f"memory_limit of the broker is {memory.limit} bytes. Send it with persistent:true."
                raise ClientError(reason, advice, is_fatal=False, kind=ErrorKind.RESOURCE)
            advice = f"{limit}. Send with persistent:true, or later."
            raise NoRoom(reason, advice, limit=MEMORY_LIMIT, destination=destination, of=destination, used=share.used)

    # ---- visible

    def show(self, client: Client | None, message: Message, target: Target, count: int = 1) -> None:
        """A message that is not stored becomes visible; ``count``: together with others."""
        if isinstance(target, Queue):
            if not target.consumers:
                self._dispatcher.tell(MessageEvent.NO_CONSUMER, message, target.destination, None)
            target.add_volatile(message)
            self._dispatcher.dispatch(target)
            return
        self._show_to_subscribers(client, message, target, count)
        for durable in list(target.durables.values()):
            self._show_to_durable(durable, message, _origin(client))

    def _show_to_subscribers(self, client: Client | None, message: Message, topic: Topic, count: int) -> None:
        if not topic.subscribers and not topic.durables:
            self._dispatcher.tell(MessageEvent.NO_CONSUMER, message, topic.destination, None)
        self._fan_out.publish(topic, message, _origin(client), count=count)

    def _show_to_durable(self, durable: DurableSubscription, message: Message, origin: Outlet) -> None:
        if not durable.is_dropped and durable.wants(message, origin):
            durable.add_volatile(message)
            self._dispatcher.dispatch(durable)

    def shown(self, client: Client | None, volatile: list[tuple[Message, Target]], pace: Pace) -> Work[None]:
        """As ``show``, of those that become visible together, in steps."""
        count = len(volatile)
        for message, target in volatile:
            if isinstance(target, Queue):
                if not target.is_dropped:
                    self.show(client, message, target, count)
            else:
                self._show_to_subscribers(client, message, target, count)
                origin = _origin(client)
                for durable in list(target.durables.values()):
                    self._show_to_durable(durable, message, origin)
                    if pace.is_full():
                        yield
            if pace.is_full():
                yield

    def publish(self, topic: Topic, message: Message, origin: Outlet, count: int) -> None:
        """A message that is stored becomes visible to the plain subscribers of its topic, with ``count`` together."""
        self._fan_out.publish(topic, message, origin, count=count)

    def committed(self, commitment: Commitment, pace: Pace) -> Work[None]:
        """What was asked for together is durable: what is not stored of it becomes visible, of very much in steps."""
        client = commitment.client
        yield from self.shown(client, commitment.volatile, pace)
        if client is not None:
            client.tell_receipt(commitment.receipt)


def _origin(client: Client | None) -> Outlet:
    return NOBODY if client is None else client.connection


# Destinations of which a client's rights are remembered; beyond it all are forgotten, and asked for again.
MAY_SEND_REMEMBERED = 1000


def _is_wide(target: Target) -> TypeGuard[Topic]:
    """Whether so many hold what is sent there that it takes steps."""
    return isinstance(target, Topic) and len(target.durables) > ITEMS


def _is_plain(policy: DestinationPolicy) -> bool:
    """Whether nothing is to be looked at for each message."""
    return (
        policy.max_message_size is None
        and not policy.ttl_ceiling
        and not policy.zero_expiration_override
        and not policy.gc_inactive_destinations  # a queue that is about to end has to be named to stay
    )


def _add(message: Message, owners: tuple[int, ...], payload: bytes, context: object = None) -> AddMessage:
    """What a client sent. It may send it again after a failover, if the id is its own."""
    return AddMessage(message, owners, payload, context, is_audited=not is_made_by_broker(message.message_id))


def _passed_over(
    message: Message, target: Target, owners: tuple[int, ...], transaction: TransactionId | None = None
) -> tuple[bytes, ...]:
    """A Remove for each durable subscription that must not get the message: a replay of the journal gives it to all.
    Empty acknowledgements, as ActiveMQ writes for what a selector passes over."""
    if isinstance(target, Queue) or len(owners) == len(target.owners):
        return ()
    return tuple(
        encode_remove(message.destination, message.message_id, transaction, key, b"")
        for key in target.passed_over(owners)
    )
