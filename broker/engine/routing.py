"""Find the queues and topics for a message, by composites, virtual topics and policies, and check the rights to send.

The rights of a client are checked once for each of its destinations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tandemmq.broker.core import names
from tandemmq.broker.core.access import Operation, refused_private
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.memory import SENDER_BYTES, TEXT_BYTES, Kind
from tandemmq.broker.core.operations import Target
from tandemmq.broker.core.policies import DestinationPolicy
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.scheduling.scheduled_message import PENDING
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.broker.core.virtual_destinations import FORWARDS_MAX
from tandemmq.broker.engine.part import Part, Shared
from tandemmq.broker.engine.scheduler import is_management, may_be_scheduled
from tandemmq.store.records.altered import altered
from tandemmq.store.records.message import Destination, DestinationKind, Message

# Bytes of a message that take as long to copy as one more item of a step.
COPIED_BYTES: Final = 16 * 1024
# Maximum number of destinations for which a client's rights are remembered. If there are more, all are checked again.
MAY_SEND_REMEMBERED: Final = 1000


class Router(Part):
    """Finds the queues and topics that get a message. Raises ClientError. ``pending``: queue of scheduled messages;
    None until there is one."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.pending: Queue | None = None
        self._virtual = shared.settings.virtual_destinations

    def routes(self, client: Client, message: Message, pace: Pace) -> Work[list[tuple[Message, Target]]]:
        """Return each queue and topic that gets the message, with the copy for it. ClientError if one of them is closed
        to the client."""
        destination = message.destination
        if destination == PENDING:
            assert self.pending is not None, "only the scheduler makes such messages"
            return [(message, self.pending)]
        parts = names.split(destination)
        if len(parts) == 1 and parts[0] == destination:
            return (yield from self._routes_of_one(client, message, pace))
        if len(parts) > names.COMPOSITE_PARTS_MAX:
            raise refusal(
                f"{destination} names {len(parts)} destinations", f"1 to {names.COMPOSITE_PARTS_MAX} may be named."
            )
        if not client.is_due:
            self.check_size(message, len(parts))
        copies = [altered(message, destination=part, original_destination=destination) for part in parts]
        routed = []
        for copy in copies:
            routed += yield from self._routes_of_one(client, copy, pace)
        return routed

    def check_size(self, message: Message, parts: int) -> None:
        """Raise ClientError if the copies, which are stored together like those of a transaction, are larger than a
        transaction may be."""
        limit = self._settings.transaction_bytes_max
        if parts > 1 and message.size * parts > limit:
            raise refusal(
                f"A message of {message.size} bytes to {parts} destinations is {message.size * parts} bytes",
                f"The limit of all copies is {limit} (transaction_bytes_max): send it to each separately.",
                ErrorKind.RESOURCE,
            )

    def _routes_of_one(
        self, client: Client, message: Message, pace: Pace, forwards: int = 0
    ) -> Work[list[tuple[Message, Target]]]:
        destination = message.destination
        if forwards and names.is_private(destination):
            raise refused_private(destination)
        policy = self._policies.of(destination)
        self.check_may_send(client, destination)  # prove: each-copy-needs-the-right
        if not client.is_due:  # prove: large-ones-stay-accepted "not client.is_due" -> "True"
            self._check_size_there(message, destination, policy)
        message = self._aged(message, policy)
        # prove: what-begins-counts "client.principal.owner" -> "None"
        target = self._destinations.route(destination, client.principal.owner)
        while isinstance(target, Topic) and target.beginning is not None:
            next(target.beginning, None)
            yield
        composite, mirrored, is_virtual = self._virtual.of(destination)
        if composite is None and mirrored is None and not is_virtual:
            if (
                isinstance(target, Queue)
                and target.owner
                and _is_plain(policy)
                and destination not in self._destinations.closed_to_producers
            ):
                client.targets[destination] = target
            return [(message, target)]
        routed: list[tuple[Message, Target]] = []
        takers: list[Destination] = []
        if composite is not None:
            takers = yield from composite.takers(message, pace)
            routed += yield from self._forwarded(client, message, takers, pace, forwards)
        if composite is None or composite.keeps(takers):
            if mirrored is not None:
                routed += yield from self._forwarded(
                    client, message, [mirrored.topic(destination.name)], pace, forwards
                )
            if routed and isinstance(target, Queue):  # one of several copies: all name the original destination
                origin = message.original_destination or destination
                message = altered(message, original_destination=origin)  # prove: kept-copies-say-that-they-are
            routed.append((message, target))
            if is_virtual:
                yield from self._add_virtual(message, routed, pace)
        return routed

    def _check_size_there(self, message: Message, destination: Destination, policy: DestinationPolicy) -> None:
        if policy.max_message_size is not None and message.size > policy.max_message_size:
            raise refusal(
                f"A message of {message.size} bytes is too large for {destination}",
                f"max_message_size is {policy.max_message_size} bytes there.",
                ErrorKind.RESOURCE,
            )

    def _forwarded(
        self, client: Client, message: Message, takers: list[Destination], pace: Pace, forwards: int
    ) -> Work[list[tuple[Message, Target]]]:
        """Return the routes of the copies for ``takers``."""
        destination = message.destination
        if forwards >= FORWARDS_MAX:
            raise refusal(
                f"{destination} is reached through {FORWARDS_MAX} virtual destinations that forward to each other",
                "See [[virtual_destinations]] of the broker: they may form a circle.",
                ErrorKind.DESTINATION,
            )
        # The size of a due message was checked when it came.
        if not client.is_due:  # prove: large-ones-that-wait-are-sent "not client.is_due" -> "True"
            self.check_size(message, 1 + len(takers))
        routed: list[tuple[Message, Target]] = []
        for taker in takers:
            copy = altered(message, destination=taker, original_destination=destination)
            routed += yield from self._routes_of_one(client, copy, pace, forwards + 1)
        return routed

    def _add_virtual(self, message: Message, routed: list[tuple[Message, Target]], pace: Pace) -> Work[None]:
        """Add the copies for the queues of a virtual topic."""
        destination = message.destination
        for each in list(self._destinations.virtual_queues(destination.name)):
            if self._destinations.exists(each):  # the queue may have ended since the first step
                queue = self._destinations.queue(each)
                if (yield from self._is_wanted(queue, message, destination, pace)):
                    routed.append((altered(message, destination=each, original_destination=destination), queue))
            if pace.is_full(1 + message.size // COPIED_BYTES):
                yield

    def _is_wanted(self, queue: Queue, message: Message, topic: Destination, pace: Pace) -> Work[bool]:
        """Return whether a queue of a virtual topic gets the message. If the queue is selector-aware, a consumer must
        select the message."""
        if not self._destinations.is_selector_aware(queue.destination, topic.name):
            return True
        for each in list(queue.users):
            selector = each.selector
            if selector is None or selector.matches(message):
                return True
            if pace.is_full() if selector.is_cheap else pace.is_over():
                yield
        return False

    def _is_known_to_be_wanted(self, queue: Queue, message: Message, topic: Destination) -> bool:
        """Return whether a queue gets the message according to cheap selectors. Expensive selectors are not evaluated,
        and count as not matching."""
        return not self._destinations.is_selector_aware(queue.destination, topic.name) or any(
            selector is None or (selector.is_cheap and selector.matches(message))
            for selector in (each.selector for each in queue.users)
        )

    def _aged(self, message: Message, policy: DestinationPolicy) -> Message:
        """Return the message with the expiration that the policy allows."""
        if not (policy.ttl_ceiling or policy.zero_expiration_override):
            return message
        expiration = policy.expiration(message.timestamp, message.expiration)
        return message if expiration == message.expiration else altered(message, expiration=expiration)

    def targets(self, client: Client, message: Message) -> Iterator[Target]:
        """Return the targets of a message at once and without copies: expensive selectors are not evaluated, and
        targets that only these select are omitted."""
        destination = message.destination
        for part in (destination,) if destination == PENDING else names.split(destination):
            if part == PENDING:
                assert self.pending is not None, "only the scheduler makes such messages"
                yield self.pending
                continue
            yield from self._targets_of_one(client, message, part, 0)

    def _targets_of_one(
        self,
        client: Client,
        message: Message,
        destination: Destination,
        forwards: int,
        *,
        begins: bool = True,
        fits: bool = False,
    ) -> Iterator[Target]:
        """Yield the targets, which begin if they do not exist. Without ``begins``, yield nothing: only check the
        rights, and, with ``fits``, the size."""
        self.check_may_send(client, destination)
        composite, mirrored, is_virtual = self._virtual.of(destination)
        takers, keeps = ([], True) if composite is None else composite.known(message)
        if mirrored is not None and keeps:
            takers.append(mirrored.topic(destination.name))
        if fits:  # prove: too-large-later-is-refused-at-once "fits" -> "False"
            self._check_size_there(message, destination, self._policies.of(destination))
            self.check_size(message, 1 + len(takers))
        for taker in takers if forwards < FORWARDS_MAX else ():
            yield from self._targets_of_one(client, message, taker, forwards + 1, begins=begins, fits=fits)
        if not keeps or not begins:
            return
        yield self._destinations.route(destination, client.principal.owner)
        if is_virtual:
            for queue in map(self._destinations.queue, list(self._destinations.virtual_queues(destination.name))):
                if self._is_known_to_be_wanted(queue, message, destination):
                    yield queue

    def known_target(self, client: Client, message: Message) -> Target | None:
        """Return the queue or topic that alone takes the message as it is, if ``routes`` made all checks before."""
        destination = message.destination
        target = client.targets.get(destination)
        if target is None or target.is_dropped:
            target = self._known_target(client, destination)
        return None if target is None or (message.may_have_properties and may_be_scheduled(message)) else target

    def _known_target(self, client: Client, destination: Destination) -> Target | None:
        """Return the queue or topic that takes every message of the client as it is, and remember it."""
        if destination not in client.may_send or not self._virtual.is_plain(destination):
            return None  # may_send has only single names
        target = self._destinations.by_name.get(destination)
        if target is None or is_management(destination) or not _is_plain(self._policies.of(destination)):
            return None
        if isinstance(target, Topic):
            if target.beginning is not None:
                return None
        elif not target.owner or destination in self._destinations.closed_to_producers:
            return None
        client.targets[destination] = target
        return target

    def open(self, client: Client, destination: Destination) -> None:
        """Create the destinations that a new producer names. ClientError if it may not send there."""
        for part in names.split(destination):
            self.check_may_send(client, part)
            self._destinations.route(part, client.principal.owner)

    def check_may_send_all(
        self, client: Client, message: Message, destination: Destination, *, fits: bool = False
    ) -> None:
        """Raise ClientError if a part of ``destination``, or a destination to which ``message`` is sent on, is closed
        to the client; or if ``message`` is too large for it (checked if ``fits``)."""
        parts = names.split(destination)
        if fits:
            self.check_size(message, len(parts))
        for part in parts:
            for _ in self._targets_of_one(client, message, part, 0, begins=False, fits=fits):
                pass

    def keeps_origin(self, client: Client, message: Message) -> bool:
        """Return whether ``message`` may name its original destination. A retry of its dead letter sends it there, so
        the client must have the right to send there."""
        origin = message.original_destination
        if origin is None or client.may_feed(message.destination):
            return True
        try:
            self.check_may_send_all(client, message, origin)
        except ClientError:
            return False  # prove: origin-needs-the-right "False" -> "True"
        return True

    def check_reply_to(self, client: Client, reply_to: Destination) -> None:
        """Raise ClientError if others would answer to a destination to which the client itself may not send."""
        if names.OURS in reply_to.name:
            for part in names.split(reply_to):
                if names.is_private(part) and not client.owns(part) and not client.principal.may_everything:
                    raise refused_private(part)

    def check_may_send(self, client: Client, destination: Destination) -> None:
        """Check once for each destination and client. ClientError if the client may not send there, or no client
        can."""
        if destination in client.may_send:
            if not client.may_feed(destination):
                # The destination may have ended since then.
                self._check_may_begin(client, destination)  # prove: recreating-needs-the-right
            return
        if client.may_feed(destination):
            self._remember(client, destination)
            return
        if names.is_wildcard(destination.name):
            raise refusal(
                f"{destination} has wildcards",
                "A message is sent to destinations by their names; a comma lists several.",
                ErrorKind.DESTINATION,
            )
        if destination.kind is DestinationKind.TOPIC and destination.name.startswith(names.ADVISORY_TOPICS):
            raise refusal(
                f"{destination} is reserved for the broker",
                "Clients act on its messages, so only the broker sends them.",
                ErrorKind.SECURITY,
            )
        # This check is first: the answer must not reveal whether the destination exists.
        self._access.check(client.principal, Operation.WRITE, destination)  # prove: rights-before-existence-write
        self._check_may_begin(client, destination)
        self._remember(client, destination)

    def _check_may_begin(self, client: Client, destination: Destination) -> None:
        """Raise ClientError if ``destination`` does not exist and sending may not create it; the client may send there.
        Later work for a client is not lost if the destination is missing then: a topic is only in memory, so it begins
        again; a queue was deleted, and the message waits until it exists (DESTINATION).
        """
        if self._destinations.exists(destination) or destination in self._destinations.idle:
            return
        if destination.is_topic and (client.is_due or client.is_stand_in):  # prove: due-topics-begin-again
            return
        try:
            self._access.check(client.principal, Operation.CREATE, destination)
        except ClientError as error:
            if client.is_due:
                # prove: due-waits-for-its-queue "ErrorKind.DESTINATION" -> "error.kind"
                raise refusal(error.message, "Create it first.", ErrorKind.DESTINATION) from error
            raise

    def _remember(self, client: Client, destination: Destination) -> None:
        """Remember that the client may send there."""
        if not client.is_there:
            return  # its messages may continue after its end, and nothing would remove this entry
        holder = client.holder
        is_counted = not client.is_acting  # an acting client is dropped when its work is done, and does not end
        is_full = holder.by_kind[Kind.STATE] > holder.memory.held_max
        if is_full or len(client.may_send) >= MAY_SEND_REMEMBERED:
            if is_counted:
                holder.add(Kind.STATE, -sum(map(_bytes_of, client.may_send)))
            client.may_send.clear()
            client.targets.clear()
        client.may_send.add(destination)
        if is_counted:
            holder.add(Kind.STATE, _bytes_of(destination))


def _bytes_of(destination: Destination) -> int:
    """Return the memory that one remembered destination takes for a client, in bytes."""
    return SENDER_BYTES + TEXT_BYTES * len(destination.name)


def _is_plain(policy: DestinationPolicy) -> bool:
    """Return whether the policy needs no check for each message."""
    return (
        policy.max_message_size is None
        and not policy.ttl_ceiling
        and not policy.zero_expiration_override
        and not policy.gc_inactive_destinations  # a use keeps an inactive queue from its deletion
    )
