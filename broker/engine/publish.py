"""SEND: a message of a client is submitted to the store, or becomes visible at once; or it waits, because a limit is
reached.

Most messages go to one queue or topic: that takes one look-up in a dictionary of the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard, cast

from tandemmq.broker.core import names
from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.client import Client, Connection
from tandemmq.broker.core.commands import ClientError, ErrorKind, Receipt, Send, refusal
from tandemmq.broker.core.memory import Holder, Memory
from tandemmq.broker.core.operations import Copies, Target, encode_payload, unencodable, unmatched_acks
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.scheduling.scheduled_message import PENDING
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import ITEMS, Pace, Work
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.broker.engine.limits import (
    MEMORY_LIMIT,
    PAUSED,
    STORE_LIMIT,
    Line,
    MustWait,
    memory_full,
    paused,
    store_full,
)
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.receipts import Arrivals, Commitment, Stored
from tandemmq.broker.engine.routing import COPIED_BYTES, Router
from tandemmq.broker.engine.scheduler import Scheduler, is_management, may_be_scheduled
from tandemmq.store.operations import AddMessage, Atomic, RemoveMessage
from tandemmq.store.records.commands import encode_remove
from tandemmq.store.records.errors import Unencodable
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.message_ids import is_made_by_broker
from tandemmq.store.records.stored import encode_stored
from tandemmq.store.records.transactions import TransactionId, XaTransactionId
from tandemmq.store.writer.space import StoreFull


class Sender(Part):
    """Passes messages of clients to the store. Messages that are not stored become visible at once. Runs on the loop;
    raises ClientError."""

    def __init__(self, shared: Shared, router: Router, arrivals: Arrivals) -> None:
        super().__init__(shared)
        self.refused = 0  # messages that a full store did not take
        self.arrivals = arrivals
        self.router = router
        self._loop = shared.loop
        self._without_receipt = Stored(arrivals, None, None)  # for a message to one queue that requests no receipt
        pending = shared.destinations.pending
        if pending is not None:
            self._begin_scheduler(pending.id, pending.count)

    def send(self, client: Client, command: Send) -> Work[MustWait | None] | MustWait | None:
        """Send outside of a transaction. The receipt is sent when the message is durable, or visible if it is not
        stored.

        None: the message was accepted. If a Work is returned, the caller must do its steps before the client's next
        command; it has the same result. MustWait, or a ClientError: nothing was done."""
        message = command.message
        receipt = command.receipt
        target = client.targets.get(message.destination)
        if (
            target is None
            or target.is_dropped
            or not message.persistent
            or (message.may_have_properties and may_be_scheduled(message))
        ):
            return self._send_otherwise(client, message, receipt)
        if isinstance(target, Queue):
            owners = target.owners
            stored = self._without_receipt if receipt is None else Stored(self.arrivals, client, receipt)
        else:
            if _is_wide(target) or not (owners := target.takers(message, client.id)):
                return self._send_otherwise(client, message, receipt)
            stored = Stored(self.arrivals, client, receipt)
        try:
            payload = encode_stored(message)
            add = AddMessage(message, owners, payload, stored, is_audited=not is_made_by_broker(message.message_id))
            if owners is not target.owners:
                assert isinstance(target, Topic), "a queue is its own owner"
                add.unmatched_acks = unmatched_acks(message, target, owners, None)
            self._append(add)
        except StoreFull as error:
            return store_full(str(error), message.destination)
        except Unencodable as error:
            raise unencodable(error) from error
        return None

    def _send_otherwise(
        self, client: Client, message: Message, receipt: Receipt | None
    ) -> Work[MustWait | None] | MustWait | None:
        target = self.router.known_target(client, message)
        if target is not None and not _is_wide(target):
            return self._send_to(client, message, target, receipt)
        if is_management(message.destination):
            self._manage(client, message)
            client.send_receipt(receipt)
            return None
        return self._send_routed(client, self.scheduled(client, message), receipt)

    def _send_routed(self, client: Client, message: Message, receipt: Receipt | None) -> Work[MustWait | None]:
        pace = Pace()
        routed = yield from self.router.routes(client, message, pace)
        if len(routed) == 1 and not _is_wide(routed[0][1]) and not routed[0][1].is_dropped:
            return self._send_to(client, *routed[0], receipt)
        # Copies of one message: all or none.
        copies = Copies(client.holder)
        try:
            yield from self._make(client, routed, None, pace, copies)
        except BaseException:
            copies.give_back()
            raise
        operations, volatile = self.settle(client, copies, None)
        closed = paused((target.destination for _, target in routed), self._destinations.closed_to_producers)
        if closed is not None:
            return closed
        if operations and self._store.is_full:
            return store_full(self._store.full_reason, message.destination)
        for copy, target in volatile:
            reason = memory_full(copy, target, self._memory)
            if reason is not None:
                return reason
        yield from self.commit(operations, Commitment(self.arrivals, client, receipt, volatile), pace)
        return None

    def commit(
        self, operations: Sequence[AddMessage | RemoveMessage], commitment: Commitment, pace: Pace
    ) -> Work[None]:
        """Hand ``operations`` to the store as one atomic operation; ``commitment`` is called when it is durable."""
        if operations:
            self._append(Atomic(operations, None, commitment))
        else:
            yield from self.arrivals.committed(commitment, pace)

    def _send_to(self, client: Client, message: Message, target: Target, receipt: Receipt | None) -> MustWait | None:
        """Send to that target alone."""
        closed = paused((target.destination,), self._destinations.closed_to_producers)
        if closed is not None:
            return closed
        owners = self._stored_by(message, target, client)
        if owners:
            add = _add(client, message, target, owners)
            add.context = Stored(self.arrivals, client, receipt)
            try:
                self._append(add)
            except StoreFull as error:
                return store_full(str(error), message.destination)
            return None
        reason = memory_full(message, target, self._memory)
        if reason is None:
            self.arrivals.show(client, message, target)
            client.send_receipt(receipt)
        return reason

    # ---- later

    def scheduled(self, client: Client, message: Message) -> Message:
        """Return the message to store for a scheduled message; any other message is returned itself. A scheduled
        message is not scheduled again when it is sent at its due time."""
        if message.destination == PENDING:
            raise refusal(
                f"{PENDING} is reserved for the broker",
                "Scheduled messages wait there: send to their destination, with AMQ_SCHEDULED_DELAY.",
                ErrorKind.DESTINATION,
            )
        if client.is_acting or not may_be_scheduled(message):
            return message
        destination = message.destination
        self.router.check_may_send_all(client, message, destination, fits=True)  # prove: schedule-refused-at-once
        return self._begun_scheduler().take(message, client.principal.owner) or message

    def _begun_scheduler(self) -> Scheduler:
        return self.arrivals.scheduler or self._begin_scheduler(self._store.queue(PENDING), 0)

    def _begin_scheduler(self, owner: int, count: int) -> Scheduler:
        settings = self._settings
        self.arrivals.scheduler = scheduler = Scheduler(
            self._append,
            self,
            owner,
            count,
            self._store.epoch,
            self._loop,
            repeat_max=settings.max_scheduler_repeat_allowed,
        )
        self.router.pending = Queue(PENDING, owner, settings, Share(self._memory))
        return scheduler

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
            self.router.check_may_send_all(client, message, message.reply_to)  # prove: reply-refused-at-once
        self._begun_scheduler().manage(message, user, self.acting(client.principal))

    def acting(self, principal: Principal) -> Client:
        """Return a client for later work of the broker for ``principal``. It receives nothing."""
        client = Client(cast("Connection", _Absent(self._memory)))
        client.is_acting = True
        client.principal = principal
        return client

    def acting_for(self, user: str | None) -> Client:
        """Return a client for later work; see ports.DueSender."""
        # prove: due-with-the-rights-of-now "self._access.identify(user)" -> "Principal('root', may_everything=True)"
        client = self.acting(self._access.identify(user))
        client.is_due = True
        return client

    def check_due(self, client: Client, message: Message) -> None:
        """Check the rights of a due message; see ports.DueSender."""
        self.router.check_may_send_all(client, message, message.destination)

    def check_room(self, message: Message) -> None:
        """Check the room of its user; see ports.DueSender."""
        if self._stored is not None and message.sender is not None:
            self._stored.check(message.sender, message.size)

    def send_due(
        self, client: Client, message: Message, parts: Sequence[AddMessage | RemoveMessage], pace: Pace
    ) -> Work[None]:
        """Send a due message; see ports.DueSender."""
        copies = yield from self.make(client, (message,), None, pace)
        operations, volatile = self.settle(client, copies, None)
        yield from self.commit([*operations, *parts], Commitment(self.arrivals, None, None, volatile), pace)

    def bury_due(
        self, user: str | None, message: Message, cause: str, parts: Sequence[AddMessage | RemoveMessage]
    ) -> Destination | None:
        """Store a due message as a dead letter; see ports.DueSender."""
        return self.arrivals.dispatcher.dead_letters.bury_due(message, user, cause, parts)

    # ---- operations for the store

    def make(
        self, client: Client, messages: Iterable[Message], transaction: TransactionId | None, pace: Pace
    ) -> Work[Copies]:
        """Prepare messages for the store and memory, in steps; ``settle`` completes it. ClientError if one may not be
        sent to its destination, or the copies of one take more memory than the client may hold."""
        copies = Copies(client.holder)
        try:
            for message in messages:
                target = self.router.known_target(client, message)
                if target is not None and not _is_wide(target):
                    if pace.is_full(1 + self._make_one(client, message, target, transaction, copies) // COPIED_BYTES):
                        yield
                    continue
                message = self.scheduled(client, message)
                routed = yield from self.router.routes(client, message, pace)
                yield from self._make(client, routed, transaction, pace, copies)
        except BaseException:
            copies.give_back()
            raise
        return copies

    def _make(
        self,
        client: Client,
        routed: list[tuple[Message, Target]],
        transaction: TransactionId | None,
        pace: Pace,
        copies: Copies,
    ) -> Work[None]:
        """Prepare the copies of one message."""
        copies.begin()
        for message, target in routed:
            if _is_wide(target):
                known = target.owners
                add = yield from self._add_in_steps(client, message, target, transaction, pace)
                copies.parts.append((message, target, known, add))
            else:
                self._make_one(client, message, target, transaction, copies)
            if pace.is_full(1 + message.size // COPIED_BYTES):
                if len(routed) > ITEMS:
                    copies.count()
                yield

    def _make_one(
        self, client: Client, message: Message, target: Target, transaction: TransactionId | None, copies: Copies
    ) -> int:
        """Prepare a message for one target; return the number of bytes of its record, 0 if it is not stored."""
        owners = self._stored_by(message, target, client)
        add = None
        if owners or _is_for_later(message, target, transaction):
            add = _add(client, message, target, owners, transaction)
        copies.parts.append((message, target, target.owners, add))
        return 0 if add is None else len(add.payload)

    def _add_in_steps(
        self, client: Client, message: Message, topic: Topic, transaction: TransactionId | None, pace: Pace
    ) -> Work[AddMessage | None]:
        """Return the operation for a topic with very many durable subscriptions."""
        if not message.persistent:
            return None
        owners = []
        unmatched = []
        for durable in list(topic.durables.values()):
            if durable.wants(message, client.id):
                owners.append(durable.owner)
            else:
                key = durable.subscription_key
                unmatched.append(encode_remove(message.destination, message.message_id, transaction, key, b""))
            if pace.is_over() if durable.is_expensive else pace.is_full():
                yield
        if not owners and not _is_for_later(message, topic, transaction):
            return None
        return _add(client, message, topic, tuple(owners), transaction, tuple(unmatched))

    def settle(
        self, client: Client, copies: Copies, transaction: TransactionId | None
    ) -> tuple[list[AddMessage], list[tuple[Message, Target]]]:
        """Return the part of ``copies`` that the store keeps, and the part that only memory keeps, for the present
        queues and durable subscriptions. A queue that ended between the steps begins again, as with a new message.
        ClientError if it may not. The result must be carried out in the same turn."""
        copies.give_back()
        operations: list[AddMessage] = []
        volatile: list[tuple[Message, Target]] = []
        for message, target, known, add in copies.parts:
            if isinstance(target, Queue):
                if target.is_dropped:  # prove: a-queue-that-ended-begins-again "target.is_dropped" -> "False"
                    if self._is_over(message):
                        continue
                    self.router.check_may_send(client, message.destination)
                    queue = self._destinations.begin_queue(message.destination, client.principal.owner)
                    owners = self._stored_by(message, queue, client)
                    target, add = queue, _add(client, message, queue, owners, transaction) if owners else None
            elif target.owners is not known:
                owners = self._stored_by_now(message, target, client, known, add)
                is_stored = owners or _is_for_later(message, target, transaction)
                add = _add(client, message, target, owners, transaction) if is_stored else None
            if add is None:
                volatile.append((message, target))
            else:
                operations.append(add)
        return operations, volatile

    def _is_over(self, message: Message) -> bool:
        """Return whether the ended queue of the message must not begin again: it is temporary, private, or belongs to a
        virtual topic, for which a queue is like a subscription."""
        queue, origin = message.destination, message.original_destination
        if queue.kind > DestinationKind.TOPIC or names.is_private(queue):
            return True
        return origin is not None and origin.is_topic and self._destinations.is_fed(queue, origin.name)

    def _stored_by(self, message: Message, target: Target, client: Client) -> tuple[int, ...]:
        """Return the owners for which the store must keep ``message``; none if it is not to be stored."""
        if target is self.router.pending:
            return target.owners  # a scheduled message is always stored
        if not message.persistent or target.destination.kind > DestinationKind.TOPIC:
            return ()
        return target.owners if isinstance(target, Queue) else target.takers(message, client.id)

    def _stored_by_now(
        self, message: Message, topic: Topic, client: Client, known: tuple[int, ...], add: AddMessage | None
    ) -> tuple[int, ...]:
        """Return the owners that want the message now: ``known`` were checked before, ``add`` has those of them that
        want it, and only newer ones are checked. See ``_stored_by``."""
        if not message.persistent or topic.destination.kind > DestinationKind.TOPIC:
            return ()
        checked, wanted = set(known), set(() if add is None else add.owners)
        return tuple(
            each.owner
            for each in topic.durables.values()
            if each.owner in wanted or (each.owner not in checked and each.wants(message, client.id))
        )

    def is_stored(self, client: Client, message: Message) -> bool:
        """Return whether the store is to keep the message, or a copy of it, as far as that is known at once."""
        return message.persistent and any(
            not _is_wide(target) and self._stored_by(message, target, client)
            for target in self.router.targets(client, message)
        )

    def may_be_stored(self, client: Client, message: Message) -> bool:
        """Return whether ``message`` may be stored, also if this is known only later: it is scheduled, or for very
        many."""
        return may_be_scheduled(message) or (
            message.persistent
            and any(self._may_be_stored(message, each, client) for each in self.router.targets(client, message))
        )

    def _may_be_stored(self, message: Message, target: Target, client: Client) -> bool:
        if _is_wide(target) and message.persistent and target.destination.kind is DestinationKind.TOPIC:
            return True
        return bool(self._stored_by(message, target, client))

    # ---- limits

    def lines_of(self, client: Client, message: Message) -> set[Line]:
        """Return the limits that apply to ``message``, each with its destination (None: a limit of the broker)."""
        lines: set[Line] = set()
        for target in self.router.targets(client, message):
            if target.destination in self._destinations.closed_to_producers:
                lines.add((PAUSED, target.destination))
            elif self._may_be_stored(message, target, client):
                lines.add((STORE_LIMIT, None))
            elif isinstance(target, Queue) or target.durables:
                lines.add((MEMORY_LIMIT, target.destination))
        return lines


def _is_wide(target: Target) -> TypeGuard[Topic]:
    """Return whether a message to ``target`` takes steps: many subscriptions hold it, or the selection is expensive."""
    return isinstance(target, Topic) and target.is_wide


def _is_for_later(message: Message, target: Target, transaction: TransactionId | None) -> bool:
    """Return whether the store keeps a message without a holder: one of a branch that is being prepared. The commit
    gives it to the durable subscriptions of that moment, also under another master."""
    is_kept = message.persistent and target.destination.kind is DestinationKind.TOPIC
    return is_kept and isinstance(transaction, XaTransactionId)  # prove: prepared-for-later-subscriptions


class _Absent:
    """Connection of a client that receives nothing."""

    __slots__ = ("holder",)

    def __init__(self, memory: Memory) -> None:
        self.holder = Holder(memory, is_bounded=True)

    @property
    def session(self) -> _Absent:
        """The object itself; an attribute would be a cycle that keeps it in memory (as in engine.in_process)."""
        return self


def _add(
    client: Client,
    message: Message,
    target: Target,
    owners: tuple[int, ...],
    transaction: TransactionId | None = None,
    unmatched: tuple[bytes, ...] | None = None,
) -> AddMessage:
    """Return the operation that stores a message of a client. If the client made the id, it may send the message again
    after a failover. The id of a message that the broker sends later was checked when the message arrived, and its
    sender does not send it again."""
    payload = encode_payload(message, transaction)
    if client.is_acting:  # prove: what-is-moved-is-compared "client.is_acting" -> "False"
        add = AddMessage(message, owners, payload)
    else:
        is_new = is_made_by_broker(message.message_id)
        add = AddMessage(message, owners, payload, is_audited=not is_new, is_new=is_new)
    if isinstance(target, Topic):
        add.unmatched_acks = unmatched_acks(message, target, owners, transaction) if unmatched is None else unmatched
    return add
