"""Types of a delivery: a message in memory (Entry), the queue that holds it (QueueBase), its receiver (Subscription),
and its way out (Outlet, Session).

Tags grow by one with each delivery, so ``unacked`` is ordered by them. A subscription never looks into a connection: it
only reads whether the outlet accepts more. Prefetch counts deliveries that are not acknowledged; AUTO acknowledges at
delivery, so only the outlet slows it down.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol

from tandemmq.broker.core.commands import AckMode, ClientError, Connect
from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, HELD_BYTES_MIN, SHARED_ENTRY_BYTES, Holder, Memory
from tandemmq.broker.core.slices import Work
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.transactions import XaTransactionId


class Selector(Protocol):
    """Condition on messages."""

    @property
    def text(self) -> str: ...

    @property
    def is_cheap(self) -> bool:
        """True if some hundred messages can be tested before the clock is read."""

    def matches(self, message: Message) -> bool:
        """Return whether the message satisfies the condition. Never raises."""


class Session(Protocol):
    """Interface through which the broker replies to a client.

    ``survives_errors``: the protocol continues after any refusal except one of the connection itself (OpenWire).
    ``can_pull``: a client with prefetch 0 requests each message; it is informed if the broker chooses another prefetch
    (``tell_prefetch``).
    """

    @property
    def survives_errors(self) -> bool: ...

    @property
    def can_pull(self) -> bool: ...

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        """Confirm the connection. ``user`` is the client's name; None: it has none."""

    def receipt(self, receipt: Any) -> None:
        """Confirm the command with ``receipt``, a value that the session itself put into the command."""

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        """Deliver a message. ``redeliveries``: number of earlier deliveries that came back. Returns None when it is
        delivered. Otherwise run the returned function off the loop, because it takes long, and call this again. Raises
        Undeliverable."""

    def nothing(self, subscription_id: str) -> None:
        """Report that a Pull ended without a message, or that a browser has seen all messages."""

    def tell_prefetch(self, subscription_id: str, prefetch: int) -> None:
        """Report the prefetch that the broker chose. For subscriptions that ``can_pull``."""

    def close_consumer(self, subscription_id: str, error: ClientError) -> None:
        """Report that the broker ended the subscription; ``error`` gives the reason. Nothing is delivered to it any
        more."""

    def prepared(self, receipt: Any, is_read_only: bool) -> None:
        """Confirm a Prepare; ``is_read_only``: there was nothing to do, and the branch is forgotten."""

    def recovered(self, receipt: Any, branches: Sequence[XaTransactionId]) -> None:
        """Report the prepared XA branches."""

    def drop_prepared(self) -> None:
        """Drop the delivery that was prepared off the loop. This is also called after the end of the connection."""

    def fail(self, error: ClientError) -> None: ...


class Outlet(Protocol):
    """Output of one connection. The core only reads ``is_writable``; the engine calls the session, and may close the
    connection.

    ``holder``: counts the memory held for the connection. ``is_held``: a delivery is being prepared; ``is_writable`` is
    false meanwhile.
    """

    is_held: bool

    @property
    def holder(self) -> Holder: ...

    @property
    def is_writable(self) -> bool: ...

    @property
    def session(self) -> Session: ...

    def touch(self) -> None: ...

    def close(self, after_flush: bool = True) -> None: ...


# Highest number of redeliveries: the largest int of Java. A client may send a message that already has this number.
REDELIVERIES_MAX: Final = (1 << 31) - 1


class Entry:
    """A message in memory. ``order_key``, ``location`` and ``size`` are the store's (0 when the message is not
    persistent).

    ``position`` orders the messages in memory, stored or not. ``redeliveries`` counts deliveries that came back,
    ``refusals`` those that a client refused. Both include all deliveries by an earlier master, because it is unknown
    why they came back. ``queue`` is the queue that holds it; None: no queue does.
    """

    __slots__ = (
        "location",
        "message",
        "order_key",
        "position",
        "queue",
        "redeliveries",
        "refusals",
        "size",
        "weight",
    )

    def __init__(self, message: Message, order_key: int, location: int, size: int, weight: int) -> None:
        self.message = message
        self.order_key = order_key
        self.location = location
        self.size = size
        self.weight = weight
        self.position = 0
        self.queue: QueueBase | None = None
        self.redeliveries = self.refusals = message.redelivery_counter


def volatile_entry(message: Message) -> Entry:
    """Make the entry of a message that only memory holds."""
    return Entry(message, 0, 0, 0, message.size + ENTRY_OVERHEAD_BYTES)


@dataclass(slots=True, eq=False, repr=False)
class QueueBase:
    """The part of a queue that subscriptions and entries use. ``owner`` is the store's id; 0 when nothing of this queue
    is ever stored. ``subscription_key``: the store's key of a durable subscription.

    The class is abstract without ``ABC``, which would slow down ``isinstance``, used for each message.
    """

    destination: Destination
    owner: int
    subscription_key: str | None = field(default=None, init=False)
    consumers: list[Subscription] = field(default_factory=list, init=False)
    is_dead_letter_queue: bool = field(default=False, init=False)
    is_dropped: bool = field(default=False, init=False)
    is_page_asked: bool = field(default=False, init=False)
    dispatched: int = field(default=0, init=False)

    @property
    @abstractmethod
    def held(self) -> int:
        """Messages in memory that wait to be delivered."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """True if there may be messages for a consumer that can take more again."""

    @abstractmethod
    def settle(self, entry: Entry) -> None:
        """Remove the message: its delivery was acknowledged."""

    @abstractmethod
    def give_back(self, entry: Entry, *, is_seen: bool = True) -> None:
        """Take a delivery back: the message waits again, at its old place. Nothing happens if the queue was dropped.

        ``is_seen``: the message may have reached an application, and counts as redelivered.
        """

    @abstractmethod
    def undeliver(self, entry: Entry) -> None:
        """Take back a delivery to an AUTO subscription, settled but never made: the message waits again."""

    @abstractmethod
    def comes_back(self, entry: Entry, *, is_seen: bool) -> None:
        """Prepare the return of ``entry`` from a subscription that is about to close, as far as possible before
        ``close``."""

    @abstractmethod
    def close(self, subscription: Subscription, came_back: deque[Entry] | None = None) -> Work[None]:
        """End ``subscription``; its unacknowledged deliveries go back to their places, all at once. ``came_back``: used
        by a caller that closes the subscription in many queues. The caller has already taken these deliveries out of
        ``unacked``, called ``comes_back`` for each, and put them in order. The queue may change the deque.

        Deliveries acknowledged in an open transaction stay with that transaction. The steps of the returned work free
        the memory of its groups.
        """


@dataclass(slots=True, eq=False, repr=False)
class Subscription:
    """Subscription of one connection. ``queues`` are those it takes part in (several for a wildcard).

    ``credit`` is the number of messages that may be delivered now. ``extension`` is the number granted beyond the
    prefetch because the client reported deliveries that reached the application and are acknowledged later (OpenWire,
    DELIVERED). With ``is_pull`` (prefetch 0) each Pull gives credit for one, and nothing else does. ``enlisted`` holds
    the deliveries acknowledged in a transaction that is still open.
    """

    id: str
    outlet: Outlet
    ack: AckMode
    prefetch: int
    _: KW_ONLY
    no_local: bool = False
    selector: Selector | None = None
    priority: int = 0
    is_exclusive: bool = False
    is_browser: bool = False
    takes_paused: bool = False  # also from a queue that is paused for all others
    is_auto: bool = field(init=False)
    is_cumulative: bool = field(init=False)
    credit: int = field(init=False)
    extension: int = field(default=0, init=False)
    withheld: int = field(default=0, init=False)  # credit that it gets later (``grant``)
    # It may receive more than its prefetch, once its client reports deliveries to the application.
    has_extension: bool = field(default=True, init=False)
    is_pull: bool = field(init=False)
    pulled: int = field(default=0, init=False)  # number of its pulls: distinguishes an ended pull from the next
    tag: int = field(default=0, init=False)
    unsent: int = field(default=0, init=False)  # number of the last deliveries that the session did not get yet
    unacked: dict[int, Entry] = field(default_factory=dict, init=False)
    enlisted: dict[int, Entry] = field(default_factory=dict, init=False)
    # For each queue, the budget that counts the memory of this subscription's place there; None: it has no place yet.
    queues: dict[QueueBase, Holder | Memory | None] = field(default_factory=dict, init=False)
    # Returns the prefetch that this subscription would get if it began now; None: the client has set the prefetch.
    prefetch_now: Callable[[], int] | None = field(default=None, init=False)
    is_open: bool = field(default=True, init=False)
    bytes: int = field(default=0, init=False)  # memory of the subscription itself
    holder: Holder = field(init=False)

    def __post_init__(self) -> None:
        self.is_auto = self.ack is AckMode.AUTO
        self.is_cumulative = self.ack is AckMode.CLIENT
        self.credit = self.prefetch
        self.is_pull = self.prefetch == 0
        self.holder = self.outlet.holder

    def hand(self, entry: Entry) -> int:
        """Make ``entry`` the next delivery and return its tag. The caller has checked credit and outlet."""
        self.tag = tag = self.tag + 1
        if not self.is_auto:
            self.unacked[tag] = entry
            self.credit -= 1
            holder = self.holder
            count = holder.bytes + entry.weight
            if entry.queue is None:
                self.keep(entry)
            elif count > HELD_BYTES_MIN:
                holder.hold(entry.weight)
            else:  # as Holder.hold does below this limit
                holder.bytes = count
        return tag

    @property
    def is_expensive(self) -> bool:
        """True if its selector is expensive."""
        return self.selector is not None and not self.selector.is_cheap

    def retry(self) -> None:
        """Resume its client if that is allowed."""
        self.holder.retry()

    def keep(self, entry: Entry, place: int = SHARED_ENTRY_BYTES) -> None:
        """Count ``entry`` as held for its client. ``place``: as in Memory."""
        holder = self.holder
        holder.hold(entry.weight)
        if entry.queue is None:
            holder.memory.take(entry.message, entry.weight, place)

    def let_go(self, entry: Entry, place: int = SHARED_ENTRY_BYTES) -> None:
        """Stop counting ``entry`` as held."""
        holder = self.holder
        holder.bytes -= entry.weight
        if entry.queue is None:
            holder.memory.give(entry.message, place)

    def clear(self) -> None:
        """Release all unacknowledged deliveries that are in no queue."""
        for entry in self.unacked.values():
            self.let_go(entry)
        self.unacked.clear()

    def end(self) -> None:
        """End the deliveries in every queue that the subscription still takes part in."""
        self.is_open = False
        self.credit = 0

    def take(self, tag: int) -> list[tuple[int, Entry]]:
        """Return the deliveries that an acknowledgement of ``tag`` covers, oldest first; none if ``tag`` was not
        waiting."""
        unacked = self.unacked
        entry = unacked.get(tag)
        if entry is None:
            return []
        if not self.is_cumulative:
            self.take_one(tag)
            return [(tag, entry)]
        return self.take_range(0, tag)

    def take_range(self, first: int, last: int) -> list[tuple[int, Entry]]:
        """Return the deliveries from ``first`` (0: the oldest) to ``last`` that wait for an acknowledgement, oldest
        first."""
        if first == last:
            entry = self.take_one(last)
            return [] if entry is None else [(last, entry)]
        unacked = self.unacked
        covered = []
        for pair in unacked.items():
            if pair[0] > last:
                break
            if pair[0] >= first:
                covered.append(pair)
        for number, entry in covered:
            del unacked[number]
            self.let_go(entry)
        self._credit(len(covered))
        return covered

    def take_one(self, tag: int) -> Entry | None:
        """Take out the delivery ``tag`` alone, whatever the mode."""
        entry = self.unacked.pop(tag, None)
        if entry is not None:
            if entry.queue is None:
                self.let_go(entry)
            else:
                self.holder.bytes -= entry.weight
            if self.extension or self.is_pull:
                self._credit(1)
            else:
                self.credit += 1
        return entry

    def _credit(self, count: int) -> None:
        """Return the credit of ``count`` settled deliveries; it reduces ``extension`` first."""
        if self.is_pull:
            return
        if not self.extension:
            self.credit += count
            return
        covered = min(self.extension, count)
        self.extension -= covered
        self.credit += count - covered

    def widen(self, count: int) -> None:
        """Grant ``count`` more deliveries: that many reached the application and are not acknowledged yet."""
        if not self.is_pull and self.has_extension:
            self.extension += count
            self.credit += count

    def withhold(self, count: int) -> None:
        """Take back the credit for ``count`` deliveries."""
        self.credit -= count
        self.withheld += count

    def grant(self, most: int) -> None:
        """Return withheld credit for at most ``most`` deliveries."""
        count = min(self.withheld, most)
        self.credit += count
        self.withheld -= count

    def set_prefetch(self, prefetch: int) -> None:
        """Change the prefetch (OpenWire, ConsumerControl)."""
        was_pull, self.is_pull = self.is_pull, prefetch == 0
        if self.is_pull:
            self.credit = self.extension = 0
        elif was_pull:
            self.credit = prefetch - len(self.unacked)
        else:
            self.credit += prefetch - self.prefetch + self.withheld
        self.withheld = 0
        self.prefetch = prefetch

    def restore(self, entries: list[tuple[int, Entry]]) -> None:
        """Undo these acknowledgements: the deliveries are unacknowledged again, in their old order."""
        if not self.is_pull:
            self.credit -= len(entries)
        for _, entry in entries:
            self.keep(entry)
        self.unacked = dict(sorted([*self.unacked.items(), *entries]))


# Receiver, tag and message.
Delivery = tuple[Subscription, int, Entry]
