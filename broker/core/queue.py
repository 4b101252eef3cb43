"""A queue: messages in order, handed in turn to the consumers that have credit. Decides and returns, never acts.

Memory holds a *window*: the head of the queue, bounded by count and bytes. What is behind it waits in the store
and is only counted; the queue is then *paged*, and reads on (Page) when its window runs low.

    store   ... 17 18 | 19 20 21 22 23        cursor = 18: the last stored message that memory ever held
    memory  14 15 16 17 18                    window; 9 and 12 may still be in flight, or back at the front

Why nothing is lost or doubled. Three rules:

1. All stored messages up to ``cursor`` are or were in memory, none behind it is. Acknowledged, delivered and
   returned messages are all at or before the cursor: what comes back stays in memory, sorted in by its position.
   Memory may let go of a message that was not delivered since; then it is remembered as passed over (passed), and
   nothing else brings it back.
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
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import attrgetter, itemgetter

from broker.core.browse import Browse
from broker.core.lanes import are_alike, exclusive
from broker.core.levels import KEY_BITS, Levels, level_at, priority_of
from broker.core.memory import ENTRY_OVERHEAD_BYTES, Share
from broker.core.ordering import in_order
from broker.core.passed import Passed
from broker.core.routing import Routes
from broker.core.settings import EngineSettings
from broker.core.slices import ITEMS, Pace, Work, nothing
from broker.core.subscription import Entry, Subscription, volatile_entry
from store.keys import rank_of
from store.operations import Page, PagedMessage
from store.records.message import Destination, Message

Delivery = tuple[Subscription, int, Entry]

# One call of dispatch gives at most so much: the outlets are asked again before more is given to them.
ROUND_MESSAGES = 128
ROUND_BYTES = 128 * 1024
# With the memory for windows exhausted an empty one is given so much, while a consumer takes it: a queue still moves.
SCARCE_MESSAGES = 16
SCARCE_BYTES = 128 * 1024
# Of so many messages of a queue that memory lets go of it is remembered how often they were delivered.
DELIVERED_BEFORE_MAX = 10_000
# What consumers passed over is remembered in so many runs for each message that the window may hold (passed).
RUNS_PER_WINDOW = 10

_position = attrgetter("position")
_first = itemgetter(0)
_second = itemgetter(1)
# So many references are copied in the time of an item of a step.
_COPIED = 128
_LAST = (1 << KEY_BITS) - 1  # behind every order key


class Queue:
    """See the module. ``owner`` is the store's id; 0 when nothing of this queue is ever stored.

    ``expired`` collects what ``dispatch`` and ``sweep`` met too late; the caller takes it from there.
    """

    __slots__ = (
        "_delivered_before",
        "_low_messages",
        "_low_weight",
        "_page_after",
        "_position",
        "_settings",
        "_taken_back",
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
        "has_groups",
        "has_more",
        "in_flight",
        "is_behind",
        "is_dead_letter_queue",
        "is_dropped",
        "is_leaving",
        "is_page_asked",
        "is_paged",
        "is_rereading",
        "levels",
        "owner",
        "owners",
        "passed",
        "ready",
        "ready_weight",
        "returned",
        "routed",
        "routes",
        "share",
        "subscription_key",
        "topic",
        "unread",
    )

    def __init__(
        self,
        destination: Destination,
        owner: int,
        settings: EngineSettings,
        share: Share,
        *,
        unread: int = 0,
        is_prioritized: bool = False,
    ) -> None:
        self.destination = destination
        self.owner = owner
        self.owners: tuple[int, ...] = (owner,)
        self.is_dropped = False
        self.is_leaving = False  # nobody uses it, and it ends unless somebody names it now
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
        self.is_behind = unread > 0  # "paged" of the rules
        self.is_paged = unread > 0  # there is something to be read: behind the cursor, or once more
        self.is_page_asked = False
        self.is_rereading = False  # the Page that was asked for reads what was passed over
        # Of a queue that goes by priority; then they know what is said here of cursor, _waiting and _unplaced.
        self.levels = Levels(is_behind=unread > 0) if is_prioritized else None
        self.has_groups = False
        self.routes: Routes | None = None
        self.routed = 0  # messages of the window that are in the lanes
        self.passed = Passed(RUNS_PER_WINDOW * settings.window_messages)
        self.cursor = 0
        self.enqueued = 0
        self.dequeued = 0
        self.dispatched = 0
        self._settings = settings
        self.share = share
        self._low_messages = max(1, settings.window_messages // 2)
        self._low_weight = max(1, settings.window_bytes // 2)
        self._page_after = 0
        self._position = 0
        self._turn = 0
        self._taken_back = 0
        # How often messages that memory let go of were delivered and refused, by their order keys.
        self._delivered_before: dict[int, tuple[int, int]] = {}
        # Non-persistent messages of a paged queue: (order key of the stored message behind it, entry), then those
        # behind everything that is stored so far.
        self._waiting: deque[tuple[int, Entry]] = deque()
        self._unplaced: list[Entry] = []
        self._reroute()

    def __repr__(self) -> str:
        return f"<Queue {self.destination}, {self.count} messages>"

    @property
    def count(self) -> int:
        """All messages: ready, delivered and not acknowledged, and those that only the store holds."""
        return self.held + self.in_flight + self.unread + self.passed.count

    @property
    def held(self) -> int:
        """Messages in memory that wait to be delivered."""
        held = len(self.ready) + len(self.returned) + len(self._waiting) + len(self._unplaced)
        if self.levels is not None:
            held += self.levels.held
        return held if self.routes is None else held + self.routed + self.routes.waiting

    @property
    def passed_over(self) -> int:
        """Messages that none of the present consumers takes; 0 without consumers."""
        if self.routes is None or not self.consumers:
            return 0
        return self.passed.count + len(self.routes.unwanted) + len(self.routes.stuck)

    @property
    def has_work(self) -> bool:
        """Whether there may be something to give to a consumer that has room again."""
        return bool(self.ready or self.returned or self.routed or self.is_paged)

    # ---- in

    def add(self, message: Message, order_key: int, location: int, size: int) -> None:
        """A message of this queue became durable."""
        self.enqueued += 1
        if self.levels is not None:
            self._add_to_level(self.levels, message, order_key, location, size)
            return
        if not self.is_behind:
            settings = self._settings
            share = self.share
            if (
                len(self.ready) + self.routed < settings.window_messages
                and self.ready_weight < settings.window_bytes
                and share.has_room
            ):
                self.cursor = order_key
                entry = Entry(message, order_key, location, size, size + ENTRY_OVERHEAD_BYTES)
                share.take(entry)
                self._append(entry)
                return
            self.is_behind = self.is_paged = True
        self.unread += 1
        if self._unplaced:
            self._waiting.extend((order_key, entry) for entry in self._unplaced)
            self._unplaced.clear()

    def add_volatile(self, message: Message) -> None:
        """A non-persistent message arrived. The caller has asked ``Share`` for room."""
        self.enqueued += 1
        entry = volatile_entry(message)
        self.share.take(entry)
        if self.levels is not None:
            level = self.levels[rank_of(message.priority)]
            if level.is_behind:
                level.unplaced.append(entry)
            else:
                self._place(entry, level.next_position())
        elif self.is_behind:
            self._unplaced.append(entry)
        else:
            self._append(entry)

    def _add_to_level(self, levels: Levels, message: Message, order_key: int, location: int, size: int) -> None:
        number = rank_of(message.priority)
        level = levels[number]
        if not level.is_behind:
            settings = self._settings
            windows = 2 if levels.precedes_unread(number) else 1
            if (
                len(self.ready) + self.routed < windows * settings.window_messages
                and self.ready_weight < windows * settings.window_bytes
                and self.share.has_room
            ):
                level.cursor = order_key
                entry = Entry(message, order_key, location, size, size + ENTRY_OVERHEAD_BYTES)
                self.share.take(entry)
                self._place(entry, level.next_position())
                return
            levels.fall_behind(number)
            self.is_behind = self.is_paged = True
        self.unread += 1
        level.precede(order_key)

    def _append(self, entry: Entry) -> None:
        self._position = position = self._position + 1
        self._place(entry, position)

    def _place(self, entry: Entry, position: int) -> None:
        entry.position = position
        entry.queue = self
        message = entry.message
        if message.group_id is not None and not self.has_groups:
            self.has_groups = True
            self._reroute()
        expiration = message.expiration
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
        if self._is_due and self.routes is not None:
            # What lies behind the due ones fills the window, and may wait for them.
            if self._may_recall(*self.routes.recalled):
                return True
            # What became due since may lie before what was read again, which then waits for it.
            return self._may_recall(*self.routes.recalled_before(self.passed.frontier))
        if self.levels is not None and self.levels.is_held and self.routes is not None:
            # However much of lower levels is in memory.
            return self.routes.count_before(self.levels.limit) < self._low_messages
        count = len(self.ready) + self.routed
        if count >= self._low_messages or self.ready_weight >= self._low_weight:
            return False
        return self.share.has_room or (not count and self._is_taken)

    @property
    def _is_taken(self) -> bool:
        """Whether a consumer would take a message now."""
        return any(each.credit > 0 and each.outlet.is_writable for each in self.consumers)

    def _may_recall(self, count: int, weight: int) -> bool:
        return not count or (count < self._low_messages and weight < self._low_weight and self.share.has_room)

    @property
    def _is_due(self) -> bool:
        """Whether the next Page is one of what was passed over."""
        due = self.passed.due
        if not due or self.levels is None:
            return bool(due)
        return level_at(due[0].position) <= self.levels.first_behind

    def ask_page(self) -> Page:
        """The next Page, to be handed to the store; it must come back to ``page``."""
        assert self.is_paged, "only a paged queue has something to read"
        assert not self.is_page_asked, "one page of a queue is under way at most"
        self.is_page_asked = True
        settings = self._settings
        count, size = settings.page_messages, settings.page_bytes
        if not self.share.has_room:
            count, size = min(count, SCARCE_MESSAGES), min(size, SCARCE_BYTES)
        self.is_rereading = self._is_due
        levels = self.levels
        if levels is None:
            self._page_after = self.passed.due[0].first_key - 1 if self.is_rereading else self.cursor
            return Page(self.owner, self._page_after, count, size)
        if self.is_rereading:
            run = self.passed.due[0]
            levels.asked = level_at(run.position)
            self._page_after = run.first_key - 1
            after = self._page_after - (levels.asked << KEY_BITS)
        else:
            levels.asked = levels.first_behind
            after = levels[levels.asked].cursor
        return Page(self.owner, after, count, size, priority=priority_of(levels.asked))

    def page(self, messages: Sequence[PagedMessage], is_end: bool) -> None:
        """The Page came back."""
        assert self.is_page_asked, "a page comes back once, and only when asked for"
        self.is_page_asked = False
        if self.is_rereading:
            self._reread(messages, is_end)
            return
        if self.levels is not None:
            self._page_of_level(self.levels, messages, is_end)
            return
        waiting = self._waiting
        for paged in messages:
            while waiting and waiting[0][0] <= paged.order_key:
                self._append(waiting.popleft()[1])
            self.unread -= 1
            self.cursor = paged.order_key
            self._append(self._stored_entry(paged))
        if is_end:
            self.is_behind = False
            self.is_paged = bool(self.passed.due)
            self.unread = 0  # what the store counted at start may be less exact than what it reads
            for _, entry in waiting:
                self._append(entry)
            waiting.clear()
            for entry in self._unplaced:
                self._append(entry)
            self._unplaced.clear()

    def _page_of_level(self, levels: Levels, messages: Sequence[PagedMessage], is_end: bool) -> None:
        level = levels[levels.asked]
        waiting = level.waiting
        for paged in messages:
            while waiting and waiting[0][0] <= paged.order_key:
                self._place(waiting.popleft()[1], level.next_position())
            self.unread -= 1
            level.cursor = paged.order_key
            self._place(self._stored_entry(paged), level.next_position())
        if is_end:
            levels.catch_up(levels.asked)
            for entry in (*(pair[1] for pair in waiting), *level.unplaced):
                self._place(entry, level.next_position())
            waiting.clear()
            level.unplaced.clear()
            self.is_behind = levels.is_behind
            if not self.is_behind:
                self.is_paged = bool(self.passed.due)
                self.unread = 0

    def _reread(self, messages: Sequence[PagedMessage], is_end: bool) -> None:
        """What was passed over is in memory again, at its old place."""
        base, stop = 0, None
        if self.levels is not None:
            base, stop = self.levels.asked << KEY_BITS, (self.levels.asked + 1) << KEY_BITS
        for paged, position in self.passed.found(self._page_after, messages, is_end, base=base, stop=stop):
            entry = self._stored_entry(paged)
            self._place(entry, position)
            if self.routes is not None:
                self.routes.recall(entry)
        if not self.passed.due:
            self.is_paged = self.is_behind
            if self.routes is not None:
                self.routes.end_recall()
            if not self.passed.count:
                self._reroute()

    def _stored_entry(self, paged: PagedMessage) -> Entry:
        weight = paged.size + ENTRY_OVERHEAD_BYTES
        entry = Entry(paged.message, paged.order_key, paged.location, paged.size, weight)
        if self._delivered_before:
            entry.redeliveries, entry.refusals = self._delivered_before.pop(
                paged.order_key, (entry.redeliveries, entry.refusals)
            )
        self.share.take(entry)
        return entry

    def evict(self) -> None:
        """Leave the stored messages of the window to the store: nobody wants them now, and memory is scarce."""
        if self.consumers or self.is_page_asked or self.owner == 0:
            return
        self._gather()
        kept: deque[Entry] = deque()
        for entry in self.ready:
            if self._may_leave(entry):
                self.pass_over(entry)
            else:
                kept.append(entry)
        self.ready = kept
        returned = []
        for pair in self.returned:
            if self._may_leave(pair[1]):
                self.ready_weight += pair[1].weight  # what came back is not counted there
                self.pass_over(pair[1])
            else:
                returned.append(pair)
        heapify(returned)
        self.returned = returned
        self._recall()

    def _may_leave(self, entry: Entry) -> bool:
        """Whether it is read again as it is. What was delivered before has to be remembered."""
        if not entry.order_key or entry.position <= 0:
            return False
        if entry.redeliveries == entry.message.redelivery_counter and not entry.refusals:
            return True
        if len(self._delivered_before) >= DELIVERED_BEFORE_MAX:
            return False
        self._delivered_before[entry.order_key] = (entry.redeliveries, entry.refusals)
        return True

    def pass_over(self, entry: Entry) -> None:
        """``entry``, which is stored and counted in the window, leaves memory."""
        self.passed.add(entry, self._key_of(entry))
        if self.routes is not None:
            self.routes.not_recalled(entry)
        self.ready_weight -= entry.weight
        self.share.give(entry)

    def _key_of(self, entry: Entry) -> int:
        """The order key of what is stored, behind the level if there are levels: grows with the position."""
        return entry.order_key if self.levels is None else (level_at(entry.position) << KEY_BITS) + entry.order_key

    def _recall(self) -> None:
        self.passed.recall()
        self.is_paged = self.is_behind or bool(self.passed.due)

    # ---- consumers

    def open(self, subscription: Subscription) -> None:
        """``subscription`` takes part from now on."""
        subscription.queues[self] = None
        self.consumers.append(subscription)
        self._recall()
        if self.routes is None or exclusive(self.consumers) is not None:
            self._reroute(newcomers=(subscription,))
        else:
            self.routes.join(self, subscription)

    def close(self, subscription: Subscription, came_back: Sequence[Entry] | None = None) -> Work[None]:
        """``subscription`` ends; what it has not acknowledged goes back to its place, all at once. ``came_back``: who
        closes it in many queues has taken that out of ``unacked`` and told ``mark_returned``.

        What it acknowledged in an open transaction stays with that transaction. The steps of what is returned give the
        memory of its groups back.
        """
        is_consumer = subscription in self.consumers
        if is_consumer:
            self.consumers.remove(subscription)
        self._take_in_again(self._taken_from(subscription) if came_back is None else came_back)
        if is_consumer:
            # What an exclusive one passed over, others may want.
            is_open_to_all = subscription.is_exclusive or not self.consumers
            if is_open_to_all:
                self._recall()
            if self.routes is not None and not is_open_to_all and exclusive(self.consumers) is None:
                freed = self.routes.leave(subscription)
                if not self._needs_routes:
                    self._reroute()
                return freed
            freed = nothing() if self.routes is None else self.routes.end(subscription)
            self._reroute(newcomers=self.consumers if is_open_to_all else ())
            return freed
        return nothing()

    def browse(self, subscription: Subscription, pace: Pace) -> Work[Browse]:
        """A walk of ``subscription``, which takes no part in the queue, through all that it holds now: with the first
        step the queue is free to change."""
        count = self.count
        # Copies of lists, and nothing for each message, are made at once.
        entries: list[Iterable[Entry]] = [list(self.ready), map(_second, list(self.returned))]
        if self.routes is not None:
            entries.extend(self.routes.snapshot())
        for consumer in self.consumers:
            held = (consumer.unacked, consumer.enlisted)
            entries.extend(filter(self._is_of_this, list(each.values())) for each in held if each)
        behind: list[tuple[int, Iterable[tuple[int, Entry]], Iterable[Entry]]] = [
            (0, list(self._waiting), list(self._unplaced))
        ]
        for number, level in enumerate(() if self.levels is None else self.levels):
            behind.append((number << KEY_BITS, list(level.waiting), list(level.unplaced)))
        if pace.is_full(1 + count // _COPIED):
            yield
        volatile = yield from self._volatile(chain.from_iterable(entries), behind, pace)
        is_by_priority = self.levels is not None
        return Browse(subscription, self.owner, self._settings, volatile, count, is_by_priority=is_by_priority)

    def _is_of_this(self, entry: Entry) -> bool:
        return entry.queue is self

    def _volatile(
        self,
        entries: Iterable[Entry],
        behind: Iterable[tuple[int, Iterable[tuple[int, Entry]], Iterable[Entry]]],
        pace: Pace,
    ) -> Work[Iterator[tuple[int, Entry]]]:
        """What is not stored, in order, each with the key of the last stored message before it as far as memory knows
        (``_key_of``). ``entries`` have a position; what is ``behind`` them not yet: for each level its first key,
        what waits for a stored message, and what is unplaced."""
        found: list[tuple[int, Entry]] = []
        key = 0
        for entry in (yield from in_order(entries, _position, pace)):
            if entry.order_key:
                key = self._key_of(entry)
            else:
                key = max(key, self._key_of(entry))  # with levels it may be the first of its level
                found.append((key, entry))
            if pace.is_full():
                yield
        for base, waiting, unplaced in behind:
            for order_key, entry in waiting:
                found.append((base + order_key - 1, entry))
                if pace.is_full():
                    yield
            for entry in unplaced:
                found.append((base + _LAST, entry))
                if pace.is_full():
                    yield
        return (yield from in_order(found, _first, pace))

    # ---- routes

    def _reroute(self, newcomers: Iterable[Subscription] = ()) -> None:
        """The consumers changed, or what bound the queue to routes is over: what waits is to be placed anew."""
        routes = self.routes
        if not self._needs_routes:
            self._gather()
            self.routes = None
            return
        if routes is None:
            routes = self.routes = Routes(self._settings, self.share, self.passed, self._position, self.levels)
        routes.set_consumers(self, self.consumers, newcomers)

    @property
    def _needs_routes(self) -> bool:
        return bool(self.levels is not None or self.has_groups or self.passed.count or not are_alike(self.consumers))

    def _gather(self) -> None:
        """All that waits stands in ``ready`` and ``returned`` again."""
        routes = self.routes
        if routes is None:
            return
        self.ready_weight += routes.unwanted_weight
        self.routed = 0
        self.ready = deque(sorted([*self.ready, *routes.clear()], key=_position))

    # ---- out

    def dispatch(self, now: int) -> list[Delivery]:
        """Who gets what next, a bounded round of it (``has_more``: ask again). ``now`` in milliseconds.

        A delivery to an AUTO subscription is settled with it; all others are in flight from now on.
        """
        if self.routes is not None:
            return self.routes.dispatch(self, now, ROUND_MESSAGES, ROUND_BYTES)
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
            if returned and not (ready and ready[0].position < returned[0][0]):
                entry = heappop(returned)[1]
            else:
                entry = ready.popleft()
                self.ready_weight -= entry.weight
            expiration = entry.message.expiration
            if expiration and expiration <= now:
                self.expired.append(entry)
                if len(self.expired) >= ROUND_MESSAGES:
                    self.has_more = True
                    break
                continue
            turn += 1
            idle = 0
            deliveries.append((subscription, subscription.hand(entry), entry))
            if subscription.is_auto:
                self.forget(entry)
            else:
                in_flight += 1
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
        if self.routes is not None:
            self.routes.gone(entry)
        self.share.give(entry)

    def give_back(self, entry: Entry, *, is_seen: bool = True) -> None:
        """A delivery came back: the message waits again, at its old place. A dropped queue has none any more.

        ``is_seen``: an application may have been shown it, and it counts as redelivered.
        """
        if self.is_dropped:
            self.settle(entry)
            return
        self.in_flight -= 1
        if self.routes is not None:
            self.routes.gone(entry)
        self.mark_returned(entry, is_seen=is_seen)
        heappush(self.returned, (entry.position, entry))

    def untold(self, entry: Entry) -> None:
        """A delivery to an AUTO subscription, settled with it, was never made: the message waits again."""
        if self.is_dropped:
            return
        self.dequeued -= 1
        self.in_flight += 1
        self.share.take(entry)
        self.give_back(entry, is_seen=False)

    def mark_returned(self, entry: Entry, *, is_seen: bool) -> None:
        """The first half of ``give_back``, which may be long before the second (``close``)."""
        if is_seen:
            entry.redeliveries += 1
        expiration = entry.message.expiration
        if expiration and (not self.expiring_at or expiration < self.expiring_at):
            self.expiring_at = expiration

    def _taken_from(self, subscription: Subscription) -> list[Entry]:
        unacked = subscription.unacked
        mine = [entry for entry in unacked.values() if entry.queue is self]
        subscription.unacked = {tag: entry for tag, entry in unacked.items() if entry.queue is not self}
        for entry in mine:
            subscription.let_go(entry)
            self.mark_returned(entry, is_seen=True)
        return mine

    def _take_in_again(self, entries: Sequence[Entry]) -> None:
        """The second half of ``give_back``, for many: nobody sees some of them back and others not."""
        if self.is_dropped:
            for entry in entries:
                self.settle(entry)
            return
        self.in_flight -= len(entries)
        if self.routes is not None:
            self.routes.all_gone(entries)
        self.returned += [(entry.position, entry) for entry in entries]
        heapify(self.returned)

    def take_back(self, paged: PagedMessage) -> None:
        """A message is offered again that a prepared transaction of a former term withheld: at the front, or where the
        pages to come will find it."""
        level = None if self.levels is None else self.levels[rank_of(paged.message.priority)]
        if level is None:
            if self.is_paged and paged.order_key > self.cursor:
                return
        elif level.is_behind and paged.order_key > level.cursor:
            return
        entry = self._stored_entry(paged)
        entry.queue = self
        if level is None:
            self._taken_back += 1
            entry.position = -self._taken_back
        else:
            entry.position = level.position_before()
        heappush(self.returned, (entry.position, entry))

    # ---- time

    def sweep(self, now: int) -> int:
        """Move what has expired in memory to ``expired``. Returns how many entries were looked at."""
        if not self.expiring_at or self.expiring_at > now:
            return 0
        looked_at = self.held
        self._gather()
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

    def drop(self) -> Work[None]:
        """The queue is deleted. Its consumers are closed already, or see an empty queue. The steps of what is returned
        give its memory back."""
        entries = [
            *self.expired,
            *self.ready,
            *(pair[1] for pair in self.returned),
            *(pair[1] for pair in self._waiting),
        ]
        entries += self._unplaced
        if self.routes is not None:
            entries += self.routes.clear()
            self.routed = 0
        if self.levels is not None:
            entries += self.levels.take_all()
        self.expired.clear()
        self.ready.clear()
        self.ready_weight = 0
        self.returned.clear()
        self._waiting.clear()
        self._unplaced.clear()
        self.passed.clear()
        self._delivered_before.clear()
        self.is_behind = self.is_paged = False
        self.is_dropped = True
        self.unread = 0
        return self._forget_all(entries)

    def _forget_all(self, entries: list[Entry]) -> Work[None]:
        while entries:
            for entry in entries[-ITEMS:]:
                self.forget(entry)
            del entries[-ITEMS:]
            yield


def is_dead_letter_queue(destination: Destination) -> bool:
    """By ActiveMQ's names: ``ActiveMQ.DLQ`` and ``ActiveMQ.DLQ.…``."""
    return destination.name == DEAD_LETTER_QUEUE or destination.name.startswith(DEAD_LETTER_QUEUE + ".")


DEAD_LETTER_QUEUE = "ActiveMQ.DLQ"
