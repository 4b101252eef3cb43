"""The types of a delivery: a message in memory (Entry), the queue that it is of (QueueBase), whom it is for
(Subscription), and where it goes (Outlet, Session).

Tags grow by one with each delivery, so ``unacked`` is ordered by them. A subscription never looks into a
connection: it asks its outlet whether more may be written, and that is all. Prefetch counts what is delivered and
not acknowledged; AUTO acknowledges at delivery, so only the outlet slows it down.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from tandemmq.broker.core.commands import AckMode, ClientError, Connect
from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES, HELD_BYTES_MIN, SHARED_ENTRY_BYTES, Holder, Memory
from tandemmq.broker.core.slices import Work
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.records.transactions import XaTransactionId


class Selector(Protocol):
    """A condition on messages."""

    @property
    def text(self) -> str: ...

    @property
    def is_cheap(self) -> bool:
        """Whether some hundred messages may be asked about without a look at the clock."""

    def matches(self, message: Message) -> bool:
        """Never raises."""


class Session(Protocol):
    """What the broker says to a client.

    ``survives_errors``: its protocol goes on after any refusal but one of the connection itself (OpenWire).
    ``can_pull``: a client that is given nothing ahead asks for each message; it hears of another prefetch than it asked
    for (``tell_prefetch``).
    """

    @property
    def survives_errors(self) -> bool: ...

    @property
    def can_pull(self) -> bool: ...

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        """``user`` is the client's name; None: it has none."""

    def receipt(self, receipt: Any) -> None:
        """What asked for ``receipt`` holds. It is what the session itself put into the command."""

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        """``redeliveries``: how often it was delivered before, and came back. Returns None when it is delivered. Else
        the returned function is to be run off the loop, because it takes long, and then this called again. Raises
        Undeliverable."""

    def nothing(self, subscription_id: str) -> None:
        """A Pull came to its end without a message, or a browser has seen all there is."""

    def tell_prefetch(self, subscription_id: str, prefetch: int) -> None:
        """The prefetch that the broker decided on. For subscriptions that ``can_pull``."""

    def close_consumer(self, subscription_id: str, error: ClientError) -> None:
        """The broker ended that subscription; ``error`` says why. Nothing is delivered to it any more."""

    def prepared(self, receipt: Any, is_read_only: bool) -> None:
        """A Prepare holds; ``is_read_only``: there was nothing to do, and the branch is forgotten."""

    def recovered(self, receipt: Any, branches: Sequence[XaTransactionId]) -> None:
        """The XA branches that are prepared."""

    def drop_prepared(self) -> None:
        """Forget what was made ready off the loop. This is also called after the end of the connection."""

    def fail(self, error: ClientError) -> None: ...


class Outlet(Protocol):
    """Where deliveries go. The core only asks ``is_writable``; the engine speaks to the session, and may hang up.

    ``holder``: what is held in memory for it. ``is_held``: a delivery is being made ready; ``is_writable`` is false
    meanwhile.
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


class Entry:
    """A message in memory. ``order_key``, ``location`` and ``size`` are the store's (0 when the message is not
    persistent).

    ``position`` orders what is in memory, stored or not. ``redeliveries`` counts how often it was delivered and came
    back, ``refusals`` how often because a client said so; of what another master delivered it is not known why.
    ``queue`` is the one that holds it; None: no queue does.
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
    """A message that only memory holds."""
    return Entry(message, 0, 0, 0, message.size + ENTRY_OVERHEAD_BYTES)


@dataclass(slots=True, eq=False, repr=False)
class QueueBase:
    """What those know of a queue who hold its messages. ``owner`` is the store's id; 0 when nothing of this queue is
    ever stored. ``subscription_key``: of a durable subscription, the store's key for it.

    The class is abstract, and no ``ABC``: with that ``isinstance`` takes longer, which is asked for each message.
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
        """Whether there may be something to give to a consumer that has room again."""

    @abstractmethod
    def settle(self, entry: Entry) -> None:
        """A delivery was acknowledged: the message is gone."""

    @abstractmethod
    def give_back(self, entry: Entry, *, is_seen: bool = True) -> None:
        """A delivery came back: the message waits again, at its old place. A dropped queue has none any more.

        ``is_seen``: an application may have been shown it, and it counts as redelivered.
        """

    @abstractmethod
    def untold(self, entry: Entry) -> None:
        """A delivery to an AUTO subscription, settled with it, was never made: the message waits again."""

    @abstractmethod
    def comes_back(self, entry: Entry, *, is_seen: bool) -> None:
        """``entry`` of a subscription that is to be closed: what can be done of that before ``close``."""

    @abstractmethod
    def close(self, subscription: Subscription, came_back: deque[Entry] | None = None) -> Work[None]:
        """``subscription`` ends; what it has not acknowledged goes back to its place, all at once. ``came_back``: who
        closes it in many queues has taken that out of ``unacked``, told ``comes_back`` of each, put them in order, and
        gives them away.

        What it acknowledged in an open transaction stays with that transaction. The steps of what is returned give the
        memory of its groups back.
        """


@dataclass(slots=True, eq=False, repr=False)
class Subscription:
    """One subscription of one connection. ``queues`` are those it takes part in (a wildcard's are several).

    ``credit`` is what may be delivered now. ``extension`` is what a client was given beyond its prefetch, because it
    said that so many deliveries reached the application and are acknowledged later (OpenWire, DELIVERED). With
    ``is_pull`` (prefetch 0) each Pull gives credit for one, and nothing else does. ``enlisted`` holds what was
    acknowledged in a transaction that is still open.
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
    # It may be given more than its prefetch, once it says what it was shown.
    has_extension: bool = field(default=True, init=False)
    is_pull: bool = field(init=False)
    pulled: int = field(default=0, init=False)  # how often it pulled: tells a pull that has ended from the next one
    tag: int = field(default=0, init=False)
    unacked: dict[int, Entry] = field(default_factory=dict, init=False)
    enlisted: dict[int, Entry] = field(default_factory=dict, init=False)
    # With each, in what its place there counts; None: it has none yet.
    queues: dict[QueueBase, Holder | Memory | None] = field(default_factory=dict, init=False)
    # What its prefetch would be if it came now; None: its client changed it, and that holds.
    prefetch_now: Callable[[], int] | None = field(default=None, init=False)
    is_open: bool = field(default=True, init=False)
    bytes: int = field(default=0, init=False)  # what it counts for by itself
    holder: Holder = field(init=False)

    def __post_init__(self) -> None:
        self.is_auto = self.ack is AckMode.AUTO
        self.is_cumulative = self.ack is AckMode.CLIENT
        self.credit = self.prefetch
        self.is_pull = self.prefetch == 0
        self.holder = self.outlet.holder

    def hand(self, entry: Entry) -> int:
        """``entry`` is its next delivery: the tag of that. The caller has checked credit and outlet."""
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
            else:  # as Holder.hold does with so little
                holder.bytes = count
        return tag

    @property
    def is_expensive(self) -> bool:
        """Whether its selector is."""
        return self.selector is not None and not self.selector.is_cheap

    def retry(self) -> None:
        """Its client goes on if it may."""
        self.holder.retry()

    def keep(self, entry: Entry, place: int = SHARED_ENTRY_BYTES) -> None:
        """``entry`` is held for its client. ``place``: as Memory has it."""
        holder = self.holder
        holder.hold(entry.weight)
        if entry.queue is None:
            holder.memory.take(entry.message, entry.weight, place)

    def let_go(self, entry: Entry, place: int = SHARED_ENTRY_BYTES) -> None:
        """It is not any more."""
        holder = self.holder
        holder.bytes -= entry.weight
        if entry.queue is None:
            holder.memory.give(entry.message, place)

    def clear(self) -> None:
        """It ends, with all that was not acknowledged and is in no queue."""
        for entry in self.unacked.values():
            self.let_go(entry)
        self.unacked.clear()

    def end(self) -> None:
        """Nothing is delivered to it any more, wherever it still takes part."""
        self.is_open = False
        self.credit = 0

    def take(self, tag: int) -> list[tuple[int, Entry]]:
        """What an acknowledgement of ``tag`` covers, oldest first; nothing if it was not waiting for one."""
        unacked = self.unacked
        entry = unacked.get(tag)
        if entry is None:
            return []
        if not self.is_cumulative:
            self.take_one(tag)
            return [(tag, entry)]
        return self.take_range(0, tag)

    def take_range(self, first: int, last: int) -> list[tuple[int, Entry]]:
        """The deliveries from ``first`` (0: the oldest) to ``last`` that wait for an acknowledgement, oldest first."""
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
        """The delivery ``tag`` alone, whatever the mode."""
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
        """``count`` deliveries were settled. What was widened for them is given back first."""
        if self.is_pull:
            return
        if not self.extension:
            self.credit += count
            return
        covered = min(self.extension, count)
        self.extension -= covered
        self.credit += count - covered

    def widen(self, count: int) -> None:
        """So many deliveries reached the application: as many more may be given before it acknowledges them."""
        if not self.is_pull and self.has_extension:
            self.extension += count
            self.credit += count

    def set_prefetch(self, prefetch: int) -> None:
        """A client changes its mind (OpenWire, ConsumerControl)."""
        was_pull, self.is_pull = self.is_pull, prefetch == 0
        if self.is_pull:
            self.credit = self.extension = 0
        elif was_pull:
            self.credit = prefetch - len(self.unacked)
        else:
            self.credit += prefetch - self.prefetch
        self.prefetch = prefetch

    def restore(self, entries: list[tuple[int, Entry]]) -> None:
        """Those acknowledgements never happened: the deliveries wait for one again, in their old order."""
        if not self.is_pull:
            self.credit -= len(entries)
        for _, entry in entries:
            self.keep(entry)
        self.unacked = dict(sorted([*self.unacked.items(), *entries]))


# To whom, its tag, and what.
Delivery = tuple[Subscription, int, Entry]
