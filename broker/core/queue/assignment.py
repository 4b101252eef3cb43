"""Assignment of messages to consumers, for a queue with different consumers, groups or priorities (see lanes.py).

Messages that no consumer takes wait beside the lanes (``unwanted``), as many as a window holds. Further such messages
leave memory if they are stored. They are kept as skipped ranges (skipped_ranges.py), and read again when other
consumers come. Until all of them are read, the new consumers (``newcomers``) receive no later messages, so that they
receive the messages in the order of the queue. Other consumers do not wait.

If there are too many skipped ranges, messages that no consumer takes fill the window (``stuck``), and the queue reads
no more messages until consumers acknowledge their deliveries, or the consumers change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import chain
from operator import attrgetter

from tandemmq.broker.core.delivery import Delivery, Entry, Subscription
from tandemmq.broker.core.queue.backlog import NOTHING_KNOWN, Backlog, Known, in_runs
from tandemmq.broker.core.queue.lanes import Lane, Lanes
from tandemmq.broker.core.queue.ordering import parted
from tandemmq.broker.core.queue.priorities import BOUNDS, NO_LIMIT, Levels, key_of
from tandemmq.broker.core.queue.skipped_ranges import SkippedRanges
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import CLOCK_ITEMS, WEIGHED_BYTES, Pace, Work

_weight = attrgetter("weight")
_NOBODY: frozenset[Subscription] = frozenset()
# Maximum number of messages that one call of ``dispatch`` puts into lanes. The time of a step is a second limit: the
# clock is read after each message if a selector is expensive, otherwise once in CLOCK_ITEMS. Tests count, too:
# CHOICES_FREE tests by selectors cost as much as one message. A comparison of LOOKED_FREE consumers, in the search
# for the owner of a group, costs the same.
PLACED_MAX = 2000
CHOICES_FREE = 4
LOOKED_FREE = 8
# Maximum number of choices that test one message in one call.
TESTED_MAX = 4000
# Maximum number of new or returned messages sorted in by one call.
TAKEN_MAX = 10_000


@dataclass(slots=True, eq=False, repr=False)
class Assignment:
    """Assigns messages to consumers by lanes. ``floor``: deliveries up to this position are not known here.

    ``count`` and ``weight``: number and weight of the messages here that the queue's window counts.
    """

    _settings: EngineSettings
    _share: Share
    _skipped: SkippedRanges
    _floor: int
    _levels: Levels | None
    count: int = field(default=0, init=False)
    weight: int = field(default=0, init=False)
    newcomers: set[Subscription] = field(default_factory=set, init=False)
    unwanted: list[Entry] = field(default_factory=list, init=False)
    unwanted_weight: int = field(default=0, init=False)
    stuck: list[Entry] = field(default_factory=list, init=False)
    _lanes: Lanes = field(default_factory=Lanes, init=False)
    # True: the selectors may differ from those that refused the last skipped messages.
    _has_new_selectors: bool = field(default=True, init=False)
    # Positions of deliveries that are not settled.
    _out: set[int] = field(default_factory=set, init=False)
    # Weight, by position, of messages that were read again and not yet routed or delivered.
    _recalled: dict[int, int] = field(default_factory=dict, init=False)
    _recalled_weight: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._lanes.groups.memory = self._share.memory

    def end_groups(self) -> None:
        """End the groups; no call for them follows."""
        self._lanes.groups.end()

    def set_consumers(self, consumers: list[Subscription], newcomers: Iterable[Subscription]) -> None:
        """Replace the consumers. All waiting messages are placed again later."""
        self._lanes.set_consumers(consumers)
        self._has_new_selectors = True
        self._reconsider(NOTHING_KNOWN)
        if self._skipped.due:
            self.newcomers.update(newcomers)

    def join(self, subscription: Subscription) -> None:
        """Add a consumer, if no consumer is exclusive. Only the new selector tests the waiting messages."""
        self._has_new_selectors = True
        if self._skipped.due:
            self.newcomers.add(subscription)
        requested = self._lanes.requested
        if self._lanes.join(subscription):
            self._reconsider(Known((), requested, is_grouped=False))

    def _reconsider(self, known: Known) -> None:
        """Move the unwanted and stuck messages to the backlog: a consumer may want them now."""
        backlog = self._lanes.backlog
        for run in (*in_runs(self.unwanted), *in_runs(self.stuck)):
            backlog.add(run, known)
        self.count += len(self.unwanted)
        self.weight += self.unwanted_weight
        self.unwanted = []
        self.unwanted_weight = 0
        self.stuck = []

    def leave(self, subscription: Subscription) -> Work[None]:
        """Remove a consumer, if no consumer is exclusive. Messages that only it took are placed again later. The steps
        of the returned work free the memory of its groups."""
        self._has_new_selectors = True
        self.newcomers.discard(subscription)
        return self._lanes.leave(subscription)

    def end(self, subscription: Subscription) -> Work[None]:
        """Remove ``subscription``; ``set_consumers`` follows. Return the same work as ``leave``."""
        self.newcomers.discard(subscription)
        return self._lanes.groups.leave(subscription)

    @property
    def recalled(self) -> tuple[int, int]:
        """Number and weight of the messages that were read again and that a consumer takes, or may take."""
        return len(self._recalled), self._recalled_weight

    def recalled_before(self, position: int) -> tuple[int, int]:
        """Return ``recalled`` for the messages before ``position``."""
        weights = [weight for place, weight in self._recalled.items() if place < position]
        return len(weights), sum(weights)

    def recall(self, entry: Entry) -> None:
        """Record that ``entry`` was read again."""
        self._recalled[entry.position] = entry.weight
        self._recalled_weight += entry.weight

    def not_recalled(self, entry: Entry) -> None:
        """Record that ``entry`` leaves memory, or was routed."""
        self._recalled_weight -= self._recalled.pop(entry.position, 0)

    def end_recall(self) -> None:
        """End the recall: all due messages were read again."""
        self.newcomers.clear()
        self._recalled.clear()
        self._recalled_weight = 0

    def gone(self, entry: Entry) -> None:
        """Record that the delivered ``entry`` is acknowledged or came back."""
        self._out.discard(entry.position)
        self.not_recalled(entry)
        if entry.message.group_id is not None:
            self._lanes.groups.done(entry.message.group_id)

    def comes_back(self, entry: Entry) -> None:
        """Record that the delivered ``entry`` comes back; ``all_gone`` follows."""
        self.not_recalled(entry)
        if entry.message.group_id is not None:
            self._lanes.groups.done(entry.message.group_id)

    def all_gone(self, entries: Iterable[Entry]) -> None:
        """Record as ``gone`` does for many entries at once, after a call of ``comes_back`` for each."""
        self._out.difference_update([entry.position for entry in entries])

    @property
    def held(self) -> int:
        """Number of all messages that wait here, also those that the window does not count."""
        return self.count + len(self.unwanted)

    def count_before(self, limit: int) -> int:
        """Return the number of messages before position ``limit`` that a consumer takes."""
        return sum(lane.count_before(limit) for lane in self._lanes.waiting())

    def entries(self) -> list[Entry]:
        """Return all waiting entries, in any order."""
        return [*self._lanes.entries(), *self.unwanted, *self.stuck]

    def snapshot(self) -> list[Iterable[Entry]]:
        """Return the same entries as ``entries``, in parts that do not change. The messages of a part are read only
        when the caller iterates over it."""
        return [*self._lanes.snapshot(), list(self.unwanted), list(self.stuck)]

    def take_out(self, is_chosen: Callable[[Entry], bool]) -> Iterator[tuple[int, list[Entry]]]:
        """Take entries out as ``Lane.take_out`` does."""
        places: list[Lane | Backlog] = [*self._lanes.waiting(), self._lanes.backlog]
        for looked_at, found in chain.from_iterable(place.take_out(is_chosen) for place in places):
            self._leaves(found)
            yield looked_at, found
        looked_at = len(self.unwanted)
        self.unwanted, found = parted(self.unwanted, is_chosen)
        self.unwanted_weight -= sum(map(_weight, found))
        yield looked_at, found
        looked_at = len(self.stuck)
        self.stuck, found = parted(self.stuck, is_chosen)
        self._leaves(found)
        yield looked_at, found

    def _leaves(self, entries: list[Entry]) -> None:
        self.count -= len(entries)
        self.weight -= sum(map(_weight, entries))

    def clear(self) -> list[Entry]:
        """Remove and return all waiting entries, in any order, to be placed again."""
        entries = self.entries()
        self._lanes.clear()
        self.count = self.weight = self.unwanted_weight = 0
        self.unwanted = []
        self.stuck = []
        return entries

    # ---- in

    def take_in(self, run: deque[Entry], weight: int) -> None:
        """Add a sorted ``run`` of that weight, to be placed."""
        self.count += len(run)
        self.weight += weight
        self._lanes.backlog.add(run, NOTHING_KNOWN)

    def place(self, dequeued: int) -> int:
        """Put waiting messages into their lanes, in order, as many as a step allows. Return the position of the first
        that is left: messages behind it must not be delivered yet. ``dequeued``: number of messages that left the queue
        so far."""
        if self.stuck and self._has_space(dequeued):
            stuck, self.stuck = self.stuck, []
            self.count -= len(stuck)
            for entry in stuck:
                self._leave_out(entry, dequeued)
        lanes = self._lanes
        backlog = lanes.backlog
        is_wide = lanes.choices > TESTED_MAX  # testing one message then takes one call, or several
        tests_left = 1 if is_wide else PLACED_MAX
        is_expensive = lanes.expensive > 0
        pace = Pace()
        is_timed = is_expensive
        if is_timed:
            pace.begin()
        unwatched = 0  # cost of the work since the clock was read
        groups = lanes.groups
        while backlog.count and tests_left > 0:
            entry, known = backlog.take()
            if is_wide or is_expensive:
                known = lanes.test(entry, known, TESTED_MAX, pace)
                if known.below < lanes.requested:
                    backlog.add(deque((entry,)), known)
                    break
            looked_at = groups.looked_at
            if not lanes.place(entry, known):
                self.count -= 1
                self._leave_out(entry, dequeued)
            tests = 1 + lanes.choices // CHOICES_FREE + (groups.looked_at - looked_at) // LOOKED_FREE
            tests_left -= tests
            unwatched += tests + entry.weight // WEIGHED_BYTES
            if (is_expensive or unwatched >= CLOCK_ITEMS) and backlog.count:
                unwatched = 0
                if not is_timed:
                    is_timed = True
                    pace.begin()
                elif pace.is_late:
                    break
        return backlog.first if backlog.count else NO_LIMIT

    @property
    def is_placing(self) -> bool:
        """True if messages still wait for a lane, because the last step could not place them all."""
        return self._lanes.backlog.count > 0

    def _leave_out(self, entry: Entry, dequeued: int) -> None:
        """Set aside ``entry``, which no consumer takes, and which counts in ``weight`` and not in ``count``."""
        self.not_recalled(entry)
        settings = self._settings
        if not entry.order_key or (
            self._share.has_space
            and (
                entry.redeliveries > entry.message.redelivery_counter  # the store does not know all redeliveries
                or (len(self.unwanted) < settings.window_messages and self.unwanted_weight < settings.window_bytes)
            )
        ):
            self.unwanted.append(entry)
            self.unwanted_weight += entry.weight
            self.weight -= entry.weight
        elif self._has_space(dequeued):
            if self._has_new_selectors:
                self._skipped.refuse(self._lanes.selectors)
                self._has_new_selectors = False
            self.weight -= entry.weight
            self._skipped.add(entry, key_of(entry, is_prioritized=self._levels is not None))
            self._share.give(entry)
        else:
            self.stuck.append(entry)
            self.count += 1

    def _has_space(self, dequeued: int) -> bool:
        """Return whether more messages may be skipped. All messages of the queue in memory are here, or delivered."""
        skipped = self._skipped
        if skipped.is_full and skipped.may_join(dequeued):
            alive = self._out.union(entry.position for entry in self.entries())
            if self._levels is not None:
                alive.update(BOUNDS)  # unread messages of a level are between its runs and the next level's
            skipped.join(alive, self._floor)
        return not skipped.is_full

    # ---- out

    def dispatch(
        self, now: int, dequeued: int, messages_max: int, bytes_max: int
    ) -> tuple[list[Delivery], list[Entry], bool]:
        """Return the deliveries, the expired messages, and whether to call again, as ``Queue.dispatch`` does.
        ``take_in`` received all messages of the queue before."""
        deliveries: list[Delivery] = []
        expired: list[Entry] = []
        behind = self.place(dequeued)
        has_more = behind != NO_LIMIT
        frontier = self._skipped.frontier
        newcomers = self.newcomers if frontier else _NOBODY
        limit = NO_LIMIT
        if self._levels is not None:
            self._levels.is_held = False
            if not self.stuck:
                limit = self._levels.limit
        # Positions are unique: no two lanes are ever compared.
        heads: list[tuple[int, Lane]] = []
        for lane in self._lanes.waiting():
            lane.begin_round()
            heads.append((lane.first.position, lane))
        heapify(heads)
        round_bytes = 0
        while heads:
            position, lane = heads[0]
            if position >= behind:
                break
            if position >= limit:
                assert self._levels is not None, "without levels there is no limit"
                self._levels.is_held = any(each.has_space for _, each in heads)
                break
            entry = lane.first
            is_expired = 0 < entry.message.expiration <= now
            subscription = None
            if not is_expired:
                subscription = lane.taker(newcomers if position >= frontier else _NOBODY)
                if subscription is None:
                    heappop(heads)
                    continue
            lane.pop()
            if self._recalled:
                self.not_recalled(entry)
            self.count -= 1
            self.weight -= entry.weight
            if lane:
                heapreplace(heads, (lane.first.position, lane))
            else:
                heappop(heads)
            if subscription is None:
                expired.append(entry)
            else:
                deliveries.append((subscription, subscription.hand(entry), entry))
                if not subscription.is_auto:
                    self._out.add(entry.position)
                round_bytes += entry.weight
            if round_bytes >= bytes_max or len(deliveries) >= messages_max or len(expired) >= messages_max:
                has_more = True
                break
        return deliveries, expired, has_more
