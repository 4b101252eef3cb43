"""A queue: messages in order, handed in turn to the consumers that have credit. Decides and returns, never acts.

Memory holds a *window*: the head of the queue, bounded by count and bytes. What is behind it waits in the store
and is only counted; the queue is then *paged*, and reads on (Page) when its window runs low.

    store   ... 17 18 | 19 20 21 22 23        cursor = 18: the last stored message that memory ever held
    memory  14 15 16 17 18                    window; 9 and 12 may still be in flight, or back at the front

Why nothing is lost or doubled. Three rules:

1. All stored messages up to ``cursor`` are or were in memory, none behind it is. Acknowledged, delivered and
   returned messages are all at or before the cursor: what comes back stays in memory, sorted in by its position.
2. Not paged: nothing durable is behind the cursor. A message that becomes durable is put into the window and moves
   the cursor; or the window is full, it is counted (``unread``), and from then on the queue is paged.
3. Paged: messages that become durable are counted and otherwise ignored. A Page asks for what is behind the cursor.

Additions and Pages come back on one ordered channel (store/operations.py): a Page holds everything that was handed
over before it, and nothing later. So every addition is either reported before the Page, then it was ignored by
rule 3 and the store has it behind the cursor: this Page or a later one brings it; or it is reported after
the Page, then the Page did not hold it. A Page with ``is_end`` therefore leaves nothing durable behind the new
cursor, and rule 2 holds again: what is reported from now on was handed over after the Page. One Page is under way at
most, and the window may only shrink meanwhile (nothing is evicted under a Page), so the cursor that it was asked with
is still the cursor when it comes back.

Non-persistent messages are only in memory, but keep their place: while the queue is paged they wait with
the order key of the stored message that they precede. Order is that of becoming visible: a persistent message becomes
visible when it is durable, a non-persistent one at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from broker.core.settings import EngineSettings
from broker.core.subscription import ENTRY_OVERHEAD_BYTES, Entry, Memory, Subscription, volatile_entry
from store.operations import Page, PagedMessage
from store.records.message import Destination, Message

Delivery = tuple[Subscription, int, Entry]

# One call of dispatch gives at most so much: the outlets are asked again before more is given to them.
ROUND_MESSAGES = 128
ROUND_BYTES = 128 * 1024
# With the memory of all queues exhausted an empty window is given this many messages: a queue still moves, and what
# it holds beyond the limit is what its consumers' prefetch lets them have.
SCARCE_MESSAGES = 16


class Queue:
    """See the module. ``owner`` is the store's id; 0 when nothing of this queue is ever stored.

    ``expired`` collects what ``dispatch`` and ``sweep`` met too late; the caller takes it from there.
    """

    __slots__ = (
        "_low_messages",
        "_low_weight",
        "_memory",
        "_position",
        "_settings",
        "_turn",
        "_unplaced",
        "_waiting",
        "consumers",
        "cursor",
        "dequeued",
        "destination",
        "dispatched",
        "enqueued",
        "expired",
        "expiring_at",
        "has_more",
        "in_flight",
        "is_dead_letter_queue",
        "is_dropped",
        "is_page_asked",
        "is_paged",
        "owner",
        "owners",
        "ready",
        "ready_weight",
        "returned",
        "subscription_key",
        "topic",
        "unread",
    )

    def __init__(
        self, destination: Destination, owner: int, settings: EngineSettings, memory: Memory, *, unread: int = 0
    ) -> None:
        self.destination = destination
        self.owner = owner
        self.owners: tuple[int, ...] = (owner,)
        self.is_dropped = False
        self.has_more = False  # the last round of dispatch ended at its bound
        self.is_dead_letter_queue = is_dead_letter_queue(destination)
        # Of a durable subscription: the store's key for it, and the topic that feeds it.
        self.subscription_key: str | None = None
        self.topic: object | None = None
        self.consumers: list[Subscription] = []
        self.ready: deque[Entry] = deque()
        self.ready_weight = 0
        self.returned: list[tuple[int, Entry]] = []
        self.expired: list[Entry] = []
        self.expiring_at = 0  # no message of the window expires before; 0: none expires
        self.in_flight = 0
        self.unread = unread
        self.is_paged = unread > 0
        self.is_page_asked = False
        self.cursor = 0
        self.enqueued = 0
        self.dequeued = 0
        self.dispatched = 0
        self._settings = settings
        self._memory = memory
        self._low_messages = max(1, settings.window_messages // 2)
        self._low_weight = max(1, settings.window_bytes // 2)
        self._position = 0
        self._turn = 0
        # Non-persistent messages of a paged queue: (order key of the stored message behind it, entry), then those
        # behind everything that is stored so far.
        self._waiting: deque[tuple[int, Entry]] = deque()
        self._unplaced: list[Entry] = []

    def __repr__(self) -> str:
        return f"<Queue {self.destination}, {self.count} messages>"

    @property
    def count(self) -> int:
        """All messages: ready, delivered and not acknowledged, and those that only the store holds."""
        return self.held + self.in_flight + self.unread

    @property
    def held(self) -> int:
        """Messages in memory that wait to be delivered."""
        return len(self.ready) + len(self.returned) + len(self._waiting) + len(self._unplaced)

    # ---- in

    def add(self, message: Message, order_key: int, location: int, size: int) -> None:
        """A message of this queue became durable."""
        self.enqueued += 1
        memory = self._memory
        if not self.is_paged:
            settings = self._settings
            if (
                len(self.ready) < settings.window_messages
                and self.ready_weight < settings.window_bytes
                and memory.stored < memory.stored_max
            ):
                weight = size + ENTRY_OVERHEAD_BYTES
                memory.stored += weight
                self.cursor = order_key
                self._append(Entry(message, order_key, location, size, weight))
                return
            self.is_paged = True
        self.unread += 1
        if self._unplaced:
            self._waiting.extend((order_key, entry) for entry in self._unplaced)
            self._unplaced.clear()

    def add_volatile(self, message: Message) -> None:
        """A non-persistent message arrived. The caller has asked ``Memory`` for room."""
        self.enqueued += 1
        entry = volatile_entry(message)
        self._memory.volatile += entry.weight
        if self.is_paged:
            self._unplaced.append(entry)
        else:
            self._append(entry)

    def _append(self, entry: Entry) -> None:
        self._position += 1
        entry.position = self._position
        expiration = entry.message.expiration
        if expiration and (not self.expiring_at or expiration < self.expiring_at):
            self.expiring_at = expiration
        self.ready_weight += entry.weight
        self.ready.append(entry)

    # ---- paging

    @property
    def wants_page(self) -> bool:
        """Whether it is time to read on in the store."""
        if not self.is_paged or self.is_page_asked or not self.consumers:
            return False
        if len(self.ready) >= self._low_messages or self.ready_weight >= self._low_weight:
            return False
        memory = self._memory
        return memory.stored < memory.stored_max or not self.ready

    def ask_page(self) -> Page:
        """The next Page, to be handed to the store; it must come back to ``page``."""
        assert self.is_paged, "only a paged queue has something to read"
        assert not self.is_page_asked, "one page of a queue is under way at most"
        self.is_page_asked = True
        settings = self._settings
        count = settings.page_messages if self._memory.stored < self._memory.stored_max else SCARCE_MESSAGES
        return Page(self.owner, self.cursor, count, settings.page_bytes)

    def page(self, messages: Iterable[PagedMessage], is_end: bool) -> None:
        """The Page came back."""
        assert self.is_page_asked, "a page comes back once, and only when asked for"
        self.is_page_asked = False
        waiting = self._waiting
        memory = self._memory
        for paged in messages:
            order_key = paged.order_key
            while waiting and waiting[0][0] <= order_key:
                self._append(waiting.popleft()[1])
            weight = paged.size + ENTRY_OVERHEAD_BYTES
            memory.stored += weight
            self.unread -= 1
            self.cursor = order_key
            self._append(Entry(paged.message, order_key, paged.location, paged.size, weight))
        if is_end:
            self.is_paged = False
            self.unread = 0  # what the store counted at start may be less exact than what it reads
            for _, entry in waiting:
                self._append(entry)
            waiting.clear()
            for entry in self._unplaced:
                self._append(entry)
            self._unplaced.clear()

    def evict(self) -> None:
        """Leave the stored messages of the window to the store: nobody wants them now, and memory is scarce."""
        if self.consumers or self.is_page_asked or self.owner == 0:
            return
        kept: list[tuple[int, Entry]] = []
        behind = self.cursor
        is_first = True
        for entry in self.ready:
            if not entry.order_key:
                kept.append((behind + 1, entry))
                continue
            if is_first:
                # What stands before the first message that goes keeps its place in memory.
                is_first = False
                self.cursor = entry.order_key - 1
                kept = [(entry.order_key, each) for _, each in kept]
            behind = entry.order_key
            self.unread += 1
            self._memory.stored -= entry.weight
        if is_first:
            return
        self.is_paged = True
        self.ready.clear()
        self.ready_weight = 0
        self._waiting.extendleft(reversed(kept))

    # ---- consumers

    def open(self, subscription: Subscription) -> None:
        """``subscription`` takes part from now on."""
        subscription.queue = self
        self.consumers.append(subscription)

    def close(self, subscription: Subscription) -> None:
        """``subscription`` ends; what it has not acknowledged goes back to its place, marked as redelivered.

        What it acknowledged in an open transaction stays with that transaction.
        """
        subscription.is_open = False
        if subscription in self.consumers:
            self.consumers.remove(subscription)
        for entry in subscription.unacked.values():
            self.give_back(entry)
        subscription.unacked = {}

    # ---- out

    def dispatch(self, now: int) -> list[Delivery]:
        """Who gets what next, a bounded round of it (``has_more``: ask again). ``now`` in milliseconds.

        A delivery to an AUTO subscription is settled with it; all others are in flight from now on.
        """
        deliveries: list[Delivery] = []
        consumers = self.consumers
        ready = self.ready
        returned = self.returned
        turn = self._turn
        idle = 0
        round_bytes = 0
        in_flight = 0
        self.has_more = False
        while (ready or returned) and idle < len(consumers):
            if turn >= len(consumers):
                turn = 0
            subscription = consumers[turn]
            if subscription.credit <= 0 or not subscription.outlet.is_writable:
                turn += 1
                idle += 1
                continue
            if returned:
                entry = heappop(returned)[1]
            else:
                entry = ready.popleft()
                self.ready_weight -= entry.weight
            expiration = entry.message.expiration
            if expiration and expiration <= now:
                self.expired.append(entry)
                continue
            turn += 1
            idle = 0
            subscription.tag = tag = subscription.tag + 1
            if subscription.is_auto:
                self.forget(entry)
            else:
                subscription.unacked[tag] = entry
                subscription.credit -= 1
                in_flight += 1
            deliveries.append((subscription, tag, entry))
            round_bytes += entry.weight
            if round_bytes >= ROUND_BYTES or len(deliveries) >= ROUND_MESSAGES:
                self.has_more = True
                break
        self._turn = turn
        self.in_flight += in_flight
        self.dispatched += len(deliveries)
        return deliveries

    def settle(self, entry: Entry) -> None:
        """A delivery was acknowledged: the message is gone."""
        self.in_flight -= 1
        self.forget(entry)

    def forget(self, entry: Entry) -> None:
        """``entry``, which is neither ready nor in flight, is gone."""
        self.dequeued += 1
        if entry.order_key:
            self._memory.stored -= entry.weight
        else:
            self._memory.volatile -= entry.weight

    def give_back(self, entry: Entry) -> None:
        """A delivery came back: the message waits again, at its old place. A dropped queue has none any more."""
        if self.is_dropped:
            self.settle(entry)
            return
        self.in_flight -= 1
        entry.redeliveries += 1
        expiration = entry.message.expiration
        if expiration and (not self.expiring_at or expiration < self.expiring_at):
            self.expiring_at = expiration
        heappush(self.returned, (entry.position, entry))

    # ---- time

    def sweep(self, now: int) -> int:
        """Move what has expired in memory to ``expired``. Returns how many entries were looked at."""
        if not self.expiring_at or self.expiring_at > now:
            return 0
        looked_at = self.held
        fresh = [entry for entry in self.ready if not self._expires(entry, now)]
        self.ready = deque(fresh)
        self.ready_weight = sum(entry.weight for entry in fresh)
        self.returned = [pair for pair in self.returned if not self._expires(pair[1], now)]
        heapify(self.returned)
        # Those that wait are met again when they enter the window.
        left = [e.message.expiration for e in (*fresh, *(pair[1] for pair in self.returned)) if e.message.expiration]
        self.expiring_at = min(left, default=0)
        return looked_at

    def _expires(self, entry: Entry, now: int) -> bool:
        expiration = entry.message.expiration
        if not expiration or expiration > now:
            return False
        self.expired.append(entry)
        return True

    def drop(self) -> None:
        """The queue is deleted: memory is given back. Its consumers are closed already, or see an empty queue."""
        entries = [*self.ready, *(pair[1] for pair in self.returned), *(pair[1] for pair in self._waiting)]
        for entry in (*entries, *self._unplaced):
            self.forget(entry)
        self.ready.clear()
        self.ready_weight = 0
        self.returned.clear()
        self._waiting.clear()
        self._unplaced.clear()
        self.is_paged = False
        self.is_dropped = True
        self.unread = 0


def is_dead_letter_queue(destination: Destination) -> bool:
    """By ActiveMQ's names: ``ActiveMQ.DLQ`` and ``ActiveMQ.DLQ.…``."""
    return destination.name == DEAD_LETTER_QUEUE or destination.name.startswith(DEAD_LETTER_QUEUE + ".")


DEAD_LETTER_QUEUE = "ActiveMQ.DLQ"
