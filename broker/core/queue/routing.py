"""How a queue is served whose consumers differ, or that has groups or priorities; see lanes.

What none of the consumers takes waits beside the lanes (``unwanted``), as much of it as a window holds; what is stored
of the rest is let go and remembered (skipped_ranges), and read again when other consumers come. Until that has come to
its end, those who came (``newcomers``) get nothing from behind it: so they, too, get the queue in its order. Nobody
else waits for that.

If too much is remembered already, what no consumer takes fills the window (``stuck``) and the queue reads no further
until consumers acknowledge what they have, or change.
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
from tandemmq.broker.core.slices import LOOK, WEIGHED_BYTES, Pace, Work

_weight = attrgetter("weight")
_NOBODY: frozenset[Subscription] = frozenset()
# So many messages are put into lanes by one call of ``dispatch``, or what a step has time for: the clock is read after
# each message where a selector is expensive, else once in LOOK. Fewer where many selectors are asked about each: as
# many as CHOICES_FREE take as long as the rest. So does it to find among LOOKED_FREE consumers the owner of a group.
PLACED_MAX = 2000
CHOICES_FREE = 4
LOOKED_FREE = 8
# So many choices are asked about one message by one call.
ASKED_MAX = 4000
# So many that came, or came back, are sorted in by one call.
TAKEN_MAX = 10_000


@dataclass(slots=True, eq=False, repr=False)
class Routes:
    """Serves a queue by lanes. ``floor``: what was handed out up to this position is not known here.

    ``count`` and ``weight``: the messages here that the queue's window counts, and how heavy they are.
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
    _asks_others: bool = field(default=True, init=False)  # than those who refused what was passed over last
    # The positions of what was handed out and is not settled.
    _out: set[int] = field(default_factory=set, init=False)
    # What was read again and not yet routed, or handed out: by position, its weight.
    _recalled: dict[int, int] = field(default_factory=dict, init=False)
    _recalled_weight: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._lanes.groups.memory = self._share.memory

    def end_groups(self) -> None:
        """Nothing is asked of it any more."""
        self._lanes.groups.end()

    def set_consumers(self, consumers: list[Subscription], newcomers: Iterable[Subscription]) -> None:
        """From now on these. What waits is to be placed anew."""
        self._lanes.set_consumers(consumers)
        self._asks_others = True
        self._reconsider(NOTHING_KNOWN)
        if self._skipped.due:
            self.newcomers.update(newcomers)

    def join(self, subscription: Subscription) -> None:
        """One more consumer; none is exclusive. Only it is asked about what waits."""
        self._asks_others = True
        if self._skipped.due:
            self.newcomers.add(subscription)
        requested = self._lanes.requested
        if self._lanes.join(subscription):
            self._reconsider(Known((), requested, is_grouped=False))

    def _reconsider(self, known: Known) -> None:
        """A consumer may want by now what none took."""
        backlog = self._lanes.backlog
        for run in (*in_runs(self.unwanted), *in_runs(self.stuck)):
            backlog.add(run, known)
        self.count += len(self.unwanted)
        self.weight += self.unwanted_weight
        self.unwanted = []
        self.unwanted_weight = 0
        self.stuck = []

    def leave(self, subscription: Subscription) -> Work[None]:
        """One consumer less; none is exclusive. What it alone took is to be placed anew. The steps of what is returned
        give the memory of its groups back."""
        self._asks_others = True
        self.newcomers.discard(subscription)
        return self._lanes.leave(subscription)

    def end(self, subscription: Subscription) -> Work[None]:
        """``subscription`` is gone; ``set_consumers`` follows. Returns as ``leave``."""
        self.newcomers.discard(subscription)
        return self._lanes.groups.leave(subscription)

    @property
    def recalled(self) -> tuple[int, int]:
        """Number and weight of the messages that were read again and are taken by somebody, or may be."""
        return len(self._recalled), self._recalled_weight

    def recalled_before(self, position: int) -> tuple[int, int]:
        """As ``recalled``, of those before that position."""
        weights = [weight for place, weight in self._recalled.items() if place < position]
        return len(weights), sum(weights)

    def recall(self, entry: Entry) -> None:
        """``entry`` was read again."""
        self._recalled[entry.position] = entry.weight
        self._recalled_weight += entry.weight

    def not_recalled(self, entry: Entry) -> None:
        """``entry`` leaves memory, or was routed."""
        self._recalled_weight -= self._recalled.pop(entry.position, 0)

    def end_recall(self) -> None:
        """All was read again that had to be."""
        self.newcomers.clear()
        self._recalled.clear()
        self._recalled_weight = 0

    def gone(self, entry: Entry) -> None:
        """``entry`` was handed out, and is acknowledged or back."""
        self._out.discard(entry.position)
        self.not_recalled(entry)
        if entry.message.group_id is not None:
            self._lanes.groups.done(entry.message.group_id)

    def comes_back(self, entry: Entry) -> None:
        """``entry`` was handed out, and ``all_gone`` follows."""
        self.not_recalled(entry)
        if entry.message.group_id is not None:
            self._lanes.groups.done(entry.message.group_id)

    def all_gone(self, entries: Iterable[Entry]) -> None:
        """As ``gone``, of many at once, each of which ``comes_back`` was told of."""
        self._out.difference_update([entry.position for entry in entries])

    @property
    def held(self) -> int:
        """All that waits here, also what the window does not count."""
        return self.count + len(self.unwanted)

    def count_before(self, limit: int) -> int:
        """Messages that somebody takes, before that position."""
        return sum(lane.count_before(limit) for lane in self._lanes.waiting())

    def entries(self) -> list[Entry]:
        """All that waits here, in no order."""
        return [*self._lanes.entries(), *self.unwanted, *self.stuck]

    def snapshot(self) -> list[Iterable[Entry]]:
        """As ``entries``, in parts that stay as they are now. No message is read before its part is."""
        return [*self._lanes.snapshot(), list(self.unwanted), list(self.stuck)]

    def take_out(self, is_chosen: Callable[[Entry], bool]) -> Iterator[tuple[int, list[Entry]]]:
        """As ``Lane.take_out``."""
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
        """All that waits here leaves, in no order: it is to be placed anew."""
        entries = self.entries()
        self._lanes.clear()
        self.count = self.weight = self.unwanted_weight = 0
        self.unwanted = []
        self.stuck = []
        return entries

    # ---- in

    def take_in(self, run: deque[Entry], weight: int) -> None:
        """``run``, in order and of that weight, is to be placed."""
        self.count += len(run)
        self.weight += weight
        self._lanes.backlog.add(run, NOTHING_KNOWN)

    def place(self, dequeued: int) -> int:
        """What waits goes to its lane, in its order, as much of it as a step may have. The position of the first that
        is left: what is behind that is not to be handed out yet. ``dequeued``: how many left the queue so far."""
        if self.stuck and self._has_space(dequeued):
            stuck, self.stuck = self.stuck, []
            self.count -= len(stuck)
            for entry in stuck:
                self._leave_out(entry, dequeued)
        lanes = self._lanes
        backlog = lanes.backlog
        is_wide = lanes.choices > ASKED_MAX  # then one message is enough for a call, or too much
        asks_left = 1 if is_wide else PLACED_MAX
        is_expensive = lanes.expensive > 0
        pace = Pace()
        is_timed = is_expensive
        if is_timed:
            pace.begin()
        unwatched = 0  # since the clock was read
        groups = lanes.groups
        while backlog.count and asks_left > 0:
            entry, known = backlog.take()
            if is_wide or is_expensive:
                known = lanes.ask(entry, known, ASKED_MAX, pace)
                if known.below < lanes.requested:
                    backlog.add(deque((entry,)), known)
                    break
            looked_at = groups.looked_at
            if not lanes.place(entry, known):
                self.count -= 1
                self._leave_out(entry, dequeued)
            asked = 1 + lanes.choices // CHOICES_FREE + (groups.looked_at - looked_at) // LOOKED_FREE
            asks_left -= asked
            unwatched += asked + entry.weight // WEIGHED_BYTES
            if (is_expensive or unwatched >= LOOK) and backlog.count:
                unwatched = 0
                if not is_timed:
                    is_timed = True
                    pace.begin()
                elif pace.is_late:
                    break
        return backlog.first if backlog.count else NO_LIMIT

    @property
    def is_placing(self) -> bool:
        """Whether more waits for its lane than a step had room for."""
        return self._lanes.backlog.count > 0

    def _leave_out(self, entry: Entry, dequeued: int) -> None:
        """No consumer takes ``entry``, which counts in ``weight`` and not in ``count``."""
        self.not_recalled(entry)
        settings = self._settings
        if not entry.order_key or (
            self._share.has_space
            and (
                entry.redeliveries > entry.message.redelivery_counter  # the store does not know that
                or (len(self.unwanted) < settings.window_messages and self.unwanted_weight < settings.window_bytes)
            )
        ):
            self.unwanted.append(entry)
            self.unwanted_weight += entry.weight
            self.weight -= entry.weight
        elif self._has_space(dequeued):
            if self._asks_others:
                self._skipped.refuse(self._lanes.selectors)
                self._asks_others = False
            self.weight -= entry.weight
            self._skipped.add(entry, key_of(entry, is_prioritized=self._levels is not None))
            self._share.give(entry)
        else:
            self.stuck.append(entry)
            self.count += 1

    def _has_space(self, dequeued: int) -> bool:
        """Whether more may be passed over. All that the queue holds in memory is here, or handed out."""
        skipped = self._skipped
        if skipped.is_full and skipped.may_join(dequeued):
            alive = self._out.union(entry.position for entry in self.entries())
            if self._levels is not None:
                alive.update(BOUNDS)  # what was not read yet of a level is between its runs and those of the next
            skipped.join(alive, self._floor)
        return not skipped.is_full

    # ---- out

    def dispatch(
        self, now: int, dequeued: int, messages_max: int, bytes_max: int
    ) -> tuple[list[Delivery], list[Entry], bool]:
        """As ``Queue.dispatch``: what is given out, what was met too late, and whether to ask again. ``take_in`` was
        given all that the queue held."""
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
