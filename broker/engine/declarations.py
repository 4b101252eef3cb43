"""Producers and destinations of clients: commands create and delete them, and unused destinations are deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tandemmq.broker.core import names
from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.client import Client, ReceiptDue
from tandemmq.broker.core.commands import (
    AddDestination,
    AddProducer,
    ClientError,
    ErrorKind,
    Hold,
    RemoveDestination,
    RemoveProducer,
    refusal,
)
from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import ID_BYTES, NAME_BYTES, PRODUCER_BYTES, Kind
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.broker.engine.advisories import Advising
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.ports import Callback
from tandemmq.broker.engine.routing import Router
from tandemmq.store.operations import Atomic, RemoveOwner
from tandemmq.store.records.commands import encode_remove_destination
from tandemmq.store.records.message import Destination, DestinationKind

# Limits of one connection.
PRODUCERS_MAX = 10_000
TEMPORARIES_MAX = 1_000
# Maximum number of unused destinations that are deleted in one second.
REMOVED_MAX = 100
# Cost of ending a temporary destination, and of an advisory about a producer, in items of a step.
_ENDED, _TOLD = 8, 4


def _bytes_of(id: str, destination: Destination | None) -> int:
    """Return the bytes of memory of a producer."""
    return PRODUCER_BYTES + ID_BYTES * len(id) + (0 if destination is None else NAME_BYTES * len(destination.name))


class Declarations(Part):
    """Carries out the declarations of clients, except subscriptions. ``producing``: number of producers of each
    destination."""

    def __init__(self, shared: Shared, router: Router, advising: Advising) -> None:
        super().__init__(shared)
        self.producing: Counter[Destination | None] = Counter()
        self._router = router
        self._advising = advising

    def left(self, client: Client, pace: Pace) -> Work[None]:
        """End the temporary destinations and producers of a connection that is over."""
        temporaries, client.temporaries = client.temporaries, set()
        for destination in temporaries:
            self.end_temporary(destination)
            if pace.is_full(_ENDED):
                yield
        producers, client.producers = client.producers, {}
        for id, named in producers.items():
            self._producer_ended(client, id, named)
            if pace.is_full(_TOLD):
                yield

    def _producer_ended(self, client: Client, id: str, destination: Destination | None) -> None:
        client.holder.add(Kind.STATE, -_bytes_of(id, destination))
        self.producing[destination] -= 1
        self._advising.producer(client, id, destination, self.producing[destination], is_there=False)
        if not self.producing[destination]:
            del self.producing[destination]

    def hold(self, client: Client, command: Hold) -> None:
        """Charge the bytes of a Hold to its client. ClientError if the memory for state is full."""
        if not self._memory.has_room_for_state:
            raise refusal(
                "Destinations, subscriptions and connections use all of their memory",
                f"memory_limit of the broker is {self._memory.limit} bytes.",
                ErrorKind.RESOURCE,
            )
        client.holder.add(Kind.STATE, command.bytes)
        client.send_receipt(command.receipt)

    def add_producer(self, client: Client, command: AddProducer) -> None:
        """Register a producer. ClientError if there are too many, or it may not send to its destination."""
        if command.id not in client.producers:
            if len(client.producers) >= PRODUCERS_MAX:
                raise refusal(f"More than {PRODUCERS_MAX} producers on a connection", kind=ErrorKind.RESOURCE)
            if client.holder.by_kind[Kind.STATE] > self._memory.held_max:
                raise refusal(
                    "Producers use all free memory",
                    f"memory_limit of the broker is {self._memory.limit} bytes.",
                    ErrorKind.RESOURCE,
                )
            if command.destination is not None:
                self._router.open(client, command.destination)
            client.producers[command.id] = command.destination
            client.holder.add(Kind.STATE, _bytes_of(command.id, command.destination))
            self.producing[command.destination] += 1
            count = self.producing[command.destination]
            self._advising.producer(client, command.id, command.destination, count, is_there=True)
        client.send_receipt(command.receipt)

    def remove_producer(self, client: Client, command: RemoveProducer) -> None:
        """End a producer. An unknown one is no error."""
        if command.id in client.producers:
            self._producer_ended(client, command.id, client.producers.pop(command.id))
        client.send_receipt(command.receipt)

    def add_destination(self, client: Client, command: AddDestination) -> None:
        """Create a destination. A temporary one belongs to the client, any other needs the right to create it."""
        destination = command.destination
        if destination.kind > DestinationKind.TOPIC:
            if destination not in client.temporaries:
                if len(client.temporaries) >= TEMPORARIES_MAX:
                    raise refusal(
                        f"More than {TEMPORARIES_MAX} temporary destinations of a connection", kind=ErrorKind.RESOURCE
                    )
                if self._destinations.exists(destination):
                    raise refusal(f"{destination} belongs to another connection", kind=ErrorKind.DESTINATION)
                self._advising.owns(client, destination)
                try:
                    self._destinations.add_temporary(destination, client.principal.owner)
                except ClientError:
                    self._advising.ended(destination)
                    raise
                client.temporaries.add(destination)
        else:
            if names.is_wildcard(destination.name) or names.split(destination) != (destination,):
                raise refusal(
                    f"{destination} is not a single destination",
                    "The name of a new destination must not contain wildcards, commas or options.",
                    ErrorKind.DESTINATION,
                )
            if names.is_advisory(destination):
                raise refusal(
                    f"{destination} is reserved for the broker",
                    "It exists while a client is subscribed to it.",
                    ErrorKind.SECURITY,
                )
            if not client.owns(destination):
                self._access.check(client.principal, Operation.CREATE, destination)  # prove: creating-needs-the-right
            self._destinations.create(destination, client.principal.owner)
        client.send_receipt(command.receipt)

    def remove_destination(self, client: Client, command: RemoveDestination) -> None:
        """Delete a destination with all it holds; ClientError while it is in use, or if the client may not."""
        destination = command.destination
        if destination.kind > DestinationKind.TOPIC:
            if destination in client.temporaries:
                self._check_unused(destination)
                client.temporaries.discard(destination)
                self.end_temporary(destination)
            client.send_receipt(command.receipt)
            return
        if not client.owns(destination):
            self._access.check(client.principal, Operation.REMOVE, destination)  # prove: deleting-needs-the-right
        target = self._destinations.existing(destination)
        if target is None:
            self._destinations.idle.pop(destination, None)  # prove: deleted-ones-do-not-begin-again
            client.send_receipt(command.receipt)
            return
        self._check_unused(destination)
        self.remove(target, ReceiptDue(client, command.receipt))
        if not target.owner:
            client.send_receipt(command.receipt)

    def _check_unused(self, destination: Destination) -> None:
        target = self._destinations.by_name.get(destination)
        users: list[Subscription] = []
        if isinstance(target, Queue):
            users = target.users
        elif isinstance(target, Topic):
            users = [*target.subscribers]
        if users or (isinstance(target, Topic) and target.durables):
            raise refusal(
                f"Destination: {destination} still has an active subscription",
                "Close its consumers and delete its durable subscriptions first.",
                ErrorKind.STATE,
            )

    def remove(self, target: Queue | Topic, waiting: ReceiptDue | None = None) -> None:
        """Remove a destination; ``waiting`` is called when the store has done so, if it stores the destination."""
        destination = target.destination
        self._destinations.remove(target)
        self._advising.ended(destination)
        if target.owner:
            self._append(RemoveOwner(target.owner, encode_remove_destination(destination), waiting))

    def end_temporary(self, destination: Destination) -> None:
        """End a temporary destination that was deleted, or whose connection ended."""
        target = self._destinations.by_name.get(destination)
        if target is not None:
            self._destinations.remove(target)
            self._advising.ended(destination)


class IdleDestinations(Part):
    """Deletes destinations that are not used, if a policy requires it (gc_inactive_destinations). Once a second.

    A destination is unused if it holds no message, has no consumer and no producer, and was sent nothing for some time.
    The store may still have messages of a queue that are not reported: so a mark is sent through the store first, which
    comes back after all that was sent before. If a client names the queue meanwhile (that resets ``Queue.is_leaving``)
    it stays. Nothing is deleted while ``is_in_doubt``: a prepared XA branch may add to any queue."""

    def __init__(self, shared: Shared, declarations: Declarations, is_in_doubt: Callable[[], bool]) -> None:
        super().__init__(shared)
        self.removed = 0
        self._declarations = declarations
        self._is_in_doubt = is_in_doubt
        self._is_asked_for = shared.policies.any(lambda policy: policy.gc_inactive_destinations)
        # Time since which each is unused, and the number of messages sent to it by then.
        self._idle: dict[Destination, tuple[int, int]] = {}

    def tick(self, now: int) -> Work[None]:
        """Delete the destinations that were unused for long enough."""
        if not self._is_asked_for:
            return
        pace = Pace()
        former, self._idle = self._idle, {}
        room = REMOVED_MAX
        produced = self._declarations.producing
        for destination in self._destinations.names():
            if pace.is_full():
                yield
            policy = self._policies.of(destination)
            if not policy.gc_inactive_destinations or destination.kind > DestinationKind.TOPIC:
                continue
            target = self._destinations.by_name.get(destination)
            is_unused = self._destinations.is_empty(destination) if target is None else _is_unused(target)
            if destination in produced or not is_unused:
                continue
            sent = 0 if target is None else target.enqueued
            since, sent_then = former.get(destination, (now, sent))
            if sent != sent_then:
                since = now
            if room and now - since >= policy.inactive_timeout_before_gc and not self._is_in_doubt():
                room -= 1
                target = target or self._destinations.existing(destination)
                assert target is not None, "it has a name"
                self._let_go(target)
            else:
                self._idle[destination] = (since, sent)

    def _let_go(self, target: Queue | Topic) -> None:
        if isinstance(target, Queue) and target.owner:
            target.is_leaving = True
            self._append(Atomic((), None, Callback(None, lambda _: self._mark_came_back(target))))
        else:
            self._end(target)

    def _mark_came_back(self, queue: Queue) -> None:
        """Delete a queue whose mark came back, if it is still unused."""
        if queue.is_leaving and not queue.is_dropped and _is_unused(queue) and not self._is_in_doubt():
            self._end(queue)
        queue.is_leaving = False

    def _end(self, target: Queue | Topic) -> None:
        self.removed += 1
        self._declarations.remove(target)
        self._destinations.remember_idle(target.destination)  # prove: idle-ones-begin-again


def _is_unused(target: Queue | Topic) -> bool:
    if isinstance(target, Queue):
        return not (target.users or target.count or target.expired)
    return not (target.subscribers or target.durables)
