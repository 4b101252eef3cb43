"""Durable subscriptions: their records in the store, one for each topic, and the consumer that takes their messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandemmq.broker.core import names
from tandemmq.broker.core.client import Client, ReceiptDue
from tandemmq.broker.core.commands import ErrorKind, Receipt, Subscribe, refusal
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import PART_BYTES, Kind
from tandemmq.broker.core.slices import Pace, Work, begin
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.core.topics.shared import SharedSubscriber
from tandemmq.broker.core.topics.topic import DurableSubscription, Topic
from tandemmq.broker.engine.dispatch import Dispatcher
from tandemmq.broker.engine.id_owners import may_use
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.ports import Callback
from tandemmq.store.operations import AddSubscription, RemoveOwner
from tandemmq.store.records.commands import encode_subscription, encode_unsubscribe, subscription_key
from tandemmq.store.records.hints import with_user_hint
from tandemmq.store.records.message import Destination, DestinationKind

# Cost of adding a topic to a durable subscription, and of removing one, in items of a step.
_BEGUN, _ENDED = 8, 8
# Maximum number of topics of a durable subscription that are passed to the store at the same time.
BEGINNING_MAX = 1_000


@dataclass(slots=True, eq=False, repr=False)
class _Stored:
    """State of a new durable subscription until the store has its ``count`` records. Then the receipt is sent, and
    ``consumer`` gets the messages of all ``parts``, new and old."""

    client: Client | None
    receipt: Receipt | None
    count: int
    consumer: Subscription
    parts: list[DurableSubscription]


class DurableSubscriptions(Part):
    """Begins and ends durable subscriptions, here and in the store."""

    def __init__(self, shared: Shared, dispatcher: Dispatcher) -> None:
        super().__init__(shared)
        self._dispatcher = dispatcher
        self._used: dict[Subscription, DurableSubscriber] = {}  # without shared subscriptions
        self._ending: set[str] = set()  # keys of durable subscriptions that are being deleted
        shared.destinations.on_topic = self._join

    def get(self, client_id: str, name: str) -> DurableSubscriber | None:
        """Return the durable subscription of that client id and name; None: there is none. ClientError if client id and
        name result in the key of a shared subscription."""
        durable = self._destinations.durables.get(subscription_key(client_id, name))
        # prove: shared-ones-are-no-clients "isinstance(durable, SharedSubscriber)" -> "False"
        if isinstance(durable, SharedSubscriber):
            raise refusal(f"Client id {client_id!r} is reserved for the broker", kind=ErrorKind.CLIENT_ID)
        return durable

    def is_ending(self, client_id: str, name: str) -> bool:
        """Return whether a durable subscription of that client id and name is being deleted."""
        return subscription_key(client_id, name) in self._ending

    def settled(self, client: Client, name: str) -> Work[DurableSubscriber | None]:
        """Wait until the former consumer of the client's durable subscription has left, and until its deletion is
        complete, if any. Then return it, like ``get``. ClientError if the client leaves first."""
        client_id = client.client_id()
        while True:
            durable = self.get(client_id, name)
            # prove: a-former-consumer-leaves-first "durable.is_leaving" -> "False"
            is_left = durable is None or not durable.is_leaving
            # prove: a-deletion-ends-first "self.is_ending(client_id, name)" -> "False"
            if is_left and not self.is_ending(client_id, name):
                return durable
            if not client.is_open:
                raise refusal(f"Durable subscription {name} of client {client_id} is in use", kind=ErrorKind.STATE)
            yield

    def of(
        self, client: Client, command: Subscribe, name: str, parts: tuple[Destination, ...]
    ) -> Work[DurableSubscriber]:
        """Return the durable subscription that the client requests: the present one, which may have a consumer, or a
        new one."""
        names.check_length("the name of a durable subscription", name)
        for topic in parts:
            if topic.kind is not DestinationKind.TOPIC:
                raise refusal(
                    f"{topic} is not a topic", "Only a topic has durable subscriptions.", ErrorKind.DESTINATION
                )
        destination = Destination(DestinationKind.TOPIC, ",".join(topic.name for topic in parts))
        names.check_length("the name of several topics", destination.name)
        client_id = client.client_id()
        requested = DurableSubscriber(client_id, name, destination, command.selector, command.no_local)
        more = 1
        present: DurableSubscriber | None = None
        durable = yield from self.settled(client, name)
        self._check_holds_no_share(client_id, name)
        if durable is not None:
            self.check_is_its(client, durable)
            if durable.no_local is None:
                durable.no_local = command.no_local  # not a change of the terms (TopicRegion.hasDurableSubChanged)
            if durable.terms == requested.terms:
                return durable
            # JMS requires a new subscription under the same name.
            missing = yield from self.missing(requested, Pace())
            present = yield from self.settled(client, name)
            if present is not None and present is not durable:
                raise refusal(f"Durable subscription {name} of client {client_id} was replaced", kind=ErrorKind.STATE)
            durable.check_unused()  # prove: a-used-one-is-not-replaced "durable.check_unused()" -> "pass"
            more = max(1, len(missing) - len(durable.parts))
        # Checked before the old subscription is deleted: a client that is refused keeps it.
        self.check_may_make(client)
        self.check_room(requested, more)
        if present is not None:
            yield from self.delete(present, None)
        self._destinations.add_durable(requested)
        return requested

    def begin(
        self,
        durable: DurableSubscriber,
        subscription: Subscription,
        client: Client,
        command: Subscribe,
        may_read: Callable[[Destination], bool],
        hold: Callable[[Callback], None] | None = None,
    ) -> Work[None]:
        """Deliver the present and future messages of ``durable`` to ``subscription``. The receipt is sent when the
        store has the parts, and the record that ``hold``, if any, appends."""
        pace = Pace()
        known: list[DurableSubscription] = []
        for part in list(durable.parts.values()):
            # prove: what-was-taken-over-reserves-nothing "subscription.is_open" -> "True"
            if not (part.is_shared or subscription.is_open):
                return  # a newer connection has replaced it
            if may_read(part.destination):
                part.reserve(subscription)
                known.append(part)
                if part.count:
                    command.held[part.destination.name] = part.count
            if pace.is_full():
                yield
        missing = yield from self.missing(durable, pace)
        self.check_room(durable, len(missing))
        count = len(missing) + 1  # one more for this work
        stored = _Stored(client, command.receipt, count, subscription, known)
        if hold is not None:
            stored.count += 1
            hold(Callback(client, lambda _: self._is_stored(stored, durable)))
        if not subscription.is_open:
            return
        if durable.is_of_pattern and not (durable.parts or missing) and durable.record is None:
            stored.count += 1
            durable.record = self._store.subscription(durable.client_id, durable.name, names.PATTERNS)
            kept = Callback(client, lambda _: self._is_stored(stored, durable))
            self._append(AddSubscription(durable.record, _record(durable, names.PATTERNS), kept))
        for number, topic in enumerate(missing):
            while len(missing) - number < stored.count - BEGINNING_MAX and subscription.is_open:
                yield  # the store must also serve other clients
            if not subscription.is_open:
                return
            if topic in durable.parts:  # the part has begun, and delivers its messages
                stored.count -= 1
            else:
                self._begin_part(durable, topic, stored, is_retroactive=command.is_retroactive)
            if pace.is_full(_BEGUN):
                yield
        stored.count -= 1
        if not stored.count:
            yield from self._serve(stored, durable)

    def check_room(self, durable: DurableSubscriber, parts: int) -> None:
        """Raise ClientError if that many more parts would take too much memory."""
        memory = self._memory
        if parts and memory.by_kind[Kind.STATE] + parts * PART_BYTES > memory.free_for_destinations:
            raise refusal(
                f"Durable subscription {durable.name} needs more memory than is free",
                f"memory_limit of the broker is {memory.limit} bytes.",
                ErrorKind.RESOURCE,
            )

    def end_empty(self, durable: DurableSubscriber) -> Work[None]:
        """Delete a durable subscription that was refused, unless it was there before and has parts or a record, or has
        another consumer by now."""
        is_empty = not durable.parts and durable.record is None and durable.consumer is None
        if is_empty and self._is_there(durable):
            yield from self.delete(durable, None)

    def _is_there(self, durable: DurableSubscriber) -> bool:
        return self._destinations.durables.get(subscription_key(durable.client_id, durable.name)) is durable

    def _is_stored(self, stored: _Stored, durable: DurableSubscriber, part: DurableSubscription | None = None) -> None:
        """Count a record that the store has. When it has all records, begin deliveries."""
        if part is not None:
            stored.parts.append(part)
        stored.count -= 1
        if not stored.count:
            begin(self._serve(stored, durable), self._start)

    def _serve(self, stored: _Stored, durable: DurableSubscriber) -> Work[None]:
        """Send the receipt and begin deliveries, because the store has all records."""
        pace = Pace()
        subscription = stored.consumer
        if stored.client is not None:
            stored.client.send_receipt(stored.receipt)
        parts = durable.begin(subscription) if isinstance(durable, SharedSubscriber) else stored.parts
        for part in parts:
            if not subscription.is_open:
                return
            part.open(subscription)
            dispatched = part.dispatched
            self._dispatcher.dispatch(part)
            if pace.is_full(2 + part.dispatched - dispatched):
                yield

    def missing(self, durable: DurableSubscriber, pace: Pace) -> Work[list[Destination]]:
        """Return the present topics for which ``durable`` needs a part and has none."""
        missing = dict.fromkeys(durable.missing)
        if durable.is_of_pattern:
            for topic in self._destinations.topics():
                destination = topic.destination
                if not names.is_advisory(destination) and durable.lacks(destination):
                    missing[destination] = None
                if pace.is_full():
                    yield
        return [topic for topic in missing if durable.may_read(topic)]

    def _begin_part(
        self, durable: DurableSubscriber, topic: Destination, stored: _Stored | None, *, is_retroactive: bool = False
    ) -> None:
        """Add messages that are sent to ``topic`` from now on to ``durable``, and deliver them to its consumer when
        this is stored."""
        owner = self._store.subscription(durable.client_id, durable.name, topic)
        part = self._destinations.add_part(durable, topic, owner, durable.selector_text)
        consumer = durable.consumer
        opening = None
        if isinstance(durable, SharedSubscriber):
            durable.share_part(part)
        elif consumer is not None:
            part.reserve(consumer)
            stored = stored or _Stored(None, None, 1, consumer, [])
        if stored is not None:
            waiting = stored
            opening = Callback(waiting.client, lambda _: self._is_stored(waiting, durable, part))
        self._append(AddSubscription(owner, _record(durable, topic, is_retroactive=is_retroactive), opening))

    def check_may_make(self, client: Client) -> None:
        """Raise ClientError if the client id belongs to another user, so that no operator becomes a second owner. The
        client may have connected with the client id before it belonged to that user."""
        user = client.principal
        users = self._destinations.users.of(client.client_id())
        # prove: a-client-id-has-one-owner "user.is_proved" -> "False"
        is_anothers = user.is_proved and not user.may_everything and bool(users) and user.name not in users
        if client.is_guest or is_anothers:  # prove: a-guest-makes-no-durable "client.is_guest" -> "False"
            raise refusal(
                f"Client id {client.id!r} belongs to another user",
                "An operator can use and delete the durable subscriptions under it, and cannot create one.",
                ErrorKind.SECURITY,
            )

    def _check_holds_no_share(self, client_id: str, name: str) -> None:
        if self._destinations.holdings.get(client_id, name) is not None:
            raise refusal(
                f"Durable subscription {name} of client {client_id} is a shared one",
                "End it before you use its name for another one.",
                ErrorKind.STATE,
            )

    def reserve(
        self, durable: DurableSubscriber, subscription: Subscription, may_read: Callable[[Destination], bool]
    ) -> None:
        """Make ``subscription`` the one consumer of ``durable``, until ``left``. ClientError if it has one."""
        durable.reserve(subscription, may_read)
        self._used[subscription] = durable

    def left(self, subscription: Subscription) -> None:
        """Remove an ended subscription from its durable one, if any. Call it once the queues have its messages
        again."""
        durable = self._used.pop(subscription, None)
        if durable is not None:
            durable.left(subscription)
            if self._is_there(durable):
                self.claim(durable)  # its backlog may have been taken by now

    def claim(self, durable: DurableSubscriber) -> None:
        """Record the user in the store for parts that have no user there yet. Only for parts without messages:
        ActiveMQ places a rewritten record after all its pending messages, and would not deliver them."""
        if durable.user is None:
            return
        for topic in list(durable.unclaimed):
            part = durable.parts.get(topic)
            owner = durable.record if part is None else part.owner
            if owner is not None and (part is None or not part.count):
                durable.unclaimed.discard(topic)
                self._append(AddSubscription(owner, _record(durable, topic)))

    def _join(self, topic: Topic) -> Work[None]:
        """Add a new topic to the durable subscribers whose patterns match it, before its first message."""
        destination = topic.destination
        pace = Pace()
        for durable in self._destinations.of_patterns():
            if (
                durable.lacks(destination)
                and durable.may_read(destination)
                and self._destinations.is_there(topic, durable)
            ):
                self._begin_part(durable, destination, None)
                if pace.is_full(_BEGUN):
                    yield
            elif pace.is_full():
                yield

    def check_is_its(self, client: Client, durable: DurableSubscriber) -> None:
        """Raise ClientError if the client is not the user of ``durable`` and has no admin rights on its topics."""
        if not may_use(self._access, client.principal, durable):
            raise refusal(
                f"Durable subscription {durable.name} of client {durable.client_id} belongs to another user",
                "It belongs to that user, also while disconnected, and to users with admin rights on its topics.",
                ErrorKind.SECURITY,
            )

    def delete(self, durable: DurableSubscriber, waiting: ReceiptDue | None) -> Work[None]:
        """Delete a durable subscription without a consumer, here and in the store. ``waiting`` gets its receipt when
        the store has deleted it."""
        key = subscription_key(durable.client_id, durable.name)
        self._ending.add(key)
        try:
            yield from self._delete(durable, waiting)
        finally:
            self._ending.discard(key)

    def _delete(self, durable: DurableSubscriber, waiting: ReceiptDue | None) -> Work[None]:
        self._destinations.remove_durable(durable)
        parts = list(durable.parts.values())
        if durable.record is not None:
            self._end_record(durable, names.PATTERNS, durable.record, None if parts else waiting)
        elif not parts and waiting is not None:
            waiting.client.send_receipt(waiting.receipt)
        pace = Pace()
        for part in parts:
            if pace.is_full(_ENDED):
                yield
            self._destinations.remove_part(part)
            self._end_record(durable, part.destination, part.owner, waiting if part is parts[-1] else None)

    def _end_record(
        self, durable: DurableSubscriber, topic: Destination, owner: int, waiting: ReceiptDue | None
    ) -> None:
        self._append(RemoveOwner(owner, encode_unsubscribe(topic, durable.client_id, durable.name), waiting))


def _record(durable: DurableSubscriber, topic: Destination, *, is_retroactive: bool = False) -> bytes:
    """Return the record of ``durable`` and one of its topics for the store."""
    payload = encode_subscription(
        topic,
        durable.client_id,
        durable.name,
        durable.selector_text,
        bool(durable.no_local),
        is_retroactive,
        subscribed=durable.subscribed,
    )
    return with_user_hint(payload, durable.user)
