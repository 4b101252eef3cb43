"""All queues, topics and durable subscriptions of one engine, by name and by the store's id."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from broker.core.commands import ClientError
from broker.core.queue import Queue
from broker.core.settings import EngineSettings
from broker.core.subscription import Memory
from broker.core.topic import DurableSubscription, Topic
from store.operations import Owner
from store.records.commands import subscription_key
from store.records.message import Destination, DestinationKind


class Destinations:
    """Queues and topics come into being when they are first named. ``new_queue`` gives a queue's id in the store.

    That holds for queues that the store has from before, too: clients wait while a master takes over, and there may be
    ten thousand (``asleep``). ``by_name`` and ``by_owner`` have those that were named; they are read directly on hot
    paths, and only this class changes them.
    """

    __slots__ = ("_asleep", "_memory", "_new_queue", "_settings", "by_name", "by_owner", "durables")

    def __init__(
        self, settings: EngineSettings, memory: Memory, new_queue: Callable[[Destination], int], owners: Iterable[Owner]
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._new_queue = new_queue
        self.by_name: dict[Destination, Queue | Topic] = {}
        self.by_owner: dict[int, Queue] = {}
        self.durables: dict[str, DurableSubscription] = {}
        self._asleep: dict[Destination, Owner] = {}
        for owner in owners:
            if owner.subscription_name is None:
                self._asleep[owner.destination] = owner
            else:
                self.add_durable(
                    owner.destination, owner.id, owner.client_id or "", owner.subscription_name, unread=owner.count
                )

    def _add_queue(self, queue: Queue) -> Queue:
        self.by_name[queue.destination] = queue
        if queue.owner:
            self.by_owner[queue.owner] = queue
        return queue

    def asleep(self) -> Collection[Owner]:
        """The store's queues that nobody has named yet, as they were when it was opened."""
        return self._asleep.values()

    def _wake(self, destination: Destination) -> Queue | None:
        """The queue of that name, if the store has it and nobody has named it yet."""
        owner = self._asleep.pop(destination, None)
        if owner is None:
            return None
        return self._add_queue(Queue(destination, owner.id, self._settings, self._memory, unread=owner.count))

    def queue(self, destination: Destination) -> Queue:
        """The queue of that name, a new one if there is none. ClientError when there are too many destinations."""
        found = self.by_name.get(destination) or self._wake(destination)
        if found is None:
            self._check_room()
            is_stored = destination.kind is DestinationKind.QUEUE
            owner = self._new_queue(destination) if is_stored else 0
            return self._add_queue(Queue(destination, owner, self._settings, self._memory))
        assert isinstance(found, Queue), "a topic has another kind in its name"
        return found

    def dead_letter_queue(self, destination: Destination) -> Queue:
        """As ``queue``, but there is always room: a message must not be lost for want of a name."""
        found = self.by_name.get(destination) or self._wake(destination)
        if found is None:
            return self._add_queue(Queue(destination, self._new_queue(destination), self._settings, self._memory))
        assert isinstance(found, Queue), "a topic has another kind in its name"
        return found

    def topic(self, destination: Destination) -> Topic:
        """As ``queue``."""
        found = self.by_name.get(destination)
        if found is None:
            self._check_room()
            found = self.by_name[destination] = Topic(destination)
        assert isinstance(found, Topic), "a queue has another kind in its name"
        return found

    def route(self, destination: Destination) -> Queue | Topic:
        """Where a message to ``destination`` goes."""
        return self.topic(destination) if destination.is_topic else self.queue(destination)

    def _check_room(self) -> None:
        limit = self._settings.destinations_max
        if len(self.by_name) + len(self._asleep) >= limit:
            raise ClientError(f"More than {limit} destinations (destinations_max)", is_fatal=False)

    def add_durable(
        self, destination: Destination, owner: int, client_id: str, name: str, *, unread: int = 0
    ) -> DurableSubscription:
        key = subscription_key(client_id, name)
        durable = DurableSubscription(
            destination, owner, client_id, name, key, self._settings, self._memory, unread=unread
        )
        topic = self.by_name.get(destination)
        if topic is None:
            topic = self.by_name[destination] = Topic(destination)
        assert isinstance(topic, Topic), "a queue has another kind in its name"
        topic.add_durable(durable)
        self.durables[key] = durable
        self.by_owner[owner] = durable
        return durable

    def remove_durable(self, durable: DurableSubscription) -> None:
        """It is deleted with all it held. Its consumer was closed before."""
        self.topic(durable.destination).remove_durable(durable)
        del self.durables[subscription_key(durable.client_id, durable.name)]
        del self.by_owner[durable.owner]
        durable.drop()

    def queues(self) -> list[Queue]:
        return [each for each in self.by_name.values() if isinstance(each, Queue)]

    def topics(self) -> list[Topic]:
        return [each for each in self.by_name.values() if isinstance(each, Topic)]
