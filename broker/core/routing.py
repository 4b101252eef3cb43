"""How a queue is served whose consumers are not all alike, or that has groups or priorities; see lanes.

What none of the consumers takes waits beside the lanes (``unwanted``), as much of it as a window holds; what is stored
of the rest is let go and remembered (passed), and read again when other consumers come. Until that has come to its
end, those who came (``newcomers``) get nothing from behind it: so they, too, get the queue in its order. Nobody else
waits for that.

If too much is remembered already, what nobody takes fills the window (``stuck``) and the queue reads no further until
consumers acknowledge what they have, or change; ``Queue.passed_over`` shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from operator import attrgetter
from typing import TYPE_CHECKING

from broker.core.backlog import NOTHING_KNOWN, Backlog, Known, in_runs
from broker.core.lanes import Lane, Lanes
from broker.core.levels import BOUNDS, NO_LIMIT, Levels
from broker.core.memory import Share
from broker.core.passed import Passed
from broker.core.settings import EngineSettings
from broker.core.slices import Work
from broker.core.subscription import Entry, Subscription

if TYPE_CHECKING:
    from broker.core.queue import Delivery, Queue

_position = attrgetter("position")
_NOBODY: frozenset[Subscription] = frozenset()
# So many messages are put into lanes by one call of ``dispatch``, or fewer where many selectors are asked about each:
# as many as CHOICES_FREE take as long as the rest.
PLACED_MAX = 2000
CHOICES_FREE = 4
# So many that came, or came back, are sorted in by one call.
TAKEN_MAX = 10_000


class Routes:
    """See the module. ``floor``: what was handed out up to this position is not known here."""

    __slots__ = (
        "_floor",
        "_lanes",
        "_levels",
        "_out",
        "_passed",
        "_recalled",
        "_recalled_weight",
        "_settings",
        "_share",
        "newcomers",
        "stuck",
        "unwanted",
        "unwanted_weight",
    )

    def __init__(
        self, settings: EngineSettings, share: Share, passed: Passed, floor: int, levels: Levels | None
    ) -> None:
        self.newcomers: set[Subscription] = set()
        self.unwanted: list[Entry] = []
        self.unwanted_weight = 0
        self.stuck: list[Entry] = []
        self._settings = settings
        self._share = share
        self._passed = passed
        self._floor = floor
        self._levels = levels
        self._lanes = Lanes()
        # The positions of what was handed out and is not settled.
        self._out: set[int] = set()
        # What was read again and not yet looked at, or handed out: by position, its weight.
        self._recalled: dict[int, int] = {}
        self._recalled_weight = 0

    def set_consumers(self, queue: Queue, consumers: list[Subscription], newcomers: Iterable[Subscription]) -> None:
        """From now on these. What waits is to be placed anew."""
        self._lanes.set_consumers(consumers)
        self._reconsider(queue, NOTHING_KNOWN)
        if self._passed.due:
            self.newcomers.update(newcomers)

    def join(self, queue: Queue, subscription: Subscription) -> None:
        """One more; nobody is exclusive. Only it is asked about what waits."""
        if self._passed.due:
            self.newcomers.add(subscription)
        asked = self._lanes.asked
        if self._lanes.join(subscription):
            self._reconsider(queue, Known((), asked, is_grouped=False))

    def _reconsider(self, queue: Queue, known: Known) -> None:
        """Somebody may want by now what nobody took."""
        backlog = self._lanes.backlog
        for run in (*in_runs(self.unwanted), *in_runs(self.stuck)):
            backlog.add(run, known)
        queue.routed += len(self.unwanted)
        queue.ready_weight += self.unwanted_weight
        self.unwanted = []
        self.unwanted_weight = 0
        self.stuck = []

    def leave(self, subscription: Subscription) -> Work[None]:
        """One less; nobody is exclusive. What it alone took is to be placed anew. The steps of what is returned give
        the memory of its groups back."""
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
        """``entry`` leaves memory, or was looked at."""
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

    def all_gone(self, entries: Sequence[Entry]) -> None:
        """As ``gone``, of many at once."""
        self._out.difference_update([entry.position for entry in entries])
        for entry in entries if self._recalled else ():
            self.not_recalled(entry)
        for entry in entries if len(self._lanes.groups) else ():
            if entry.message.group_id is not None:
                self._lanes.groups.done(entry.message.group_id)

    @property
    def waiting(self) -> int:
        """Messages beside those that the window counts."""
        return len(self.unwanted)

    def count_before(self, limit: int) -> int:
        """Messages that somebody takes, before that position."""
        return sum(lane.count_before(limit) for lane in self._lanes.waiting())

    def entries(self) -> list[Entry]:
        """All that waits here, in no order."""
        return [*self._lanes.entries(), *self.unwanted, *self.stuck]

    def snapshot(self) -> list[Iterable[Entry]]:
        """As ``entries``, in parts that stay as they are now. No message is looked at before a part is read."""
        return [*self._lanes.snapshot(), list(self.unwanted), list(self.stuck)]

    def clear(self) -> list[Entry]:
        """All that waits here leaves, in no order: it is to be placed anew."""
        entries = self.entries()
        self._lanes.clear()
        self.unwanted = []
        self.unwanted_weight = 0
        self.stuck = []
        return entries

    # ---- in

    def place(self, queue: Queue) -> int:
        """What waits goes to its lane, in its order, as much of it as a step may have. The position of the first that
        is left: what is behind that is not to be handed out yet."""
        if self.stuck and self._has_room(queue):
            stuck, self.stuck = self.stuck, []
            queue.routed -= len(stuck)
            for entry in stuck:
                self._leave_out(queue, entry)
        lanes = self._lanes
        backlog = lanes.backlog
        is_all_there = self._take_in(queue, backlog)
        if not is_all_there:
            return -NO_LIMIT
        asks_left = PLACED_MAX
        while backlog.count and asks_left > 0:
            entry, known = backlog.take()
            queue.routed -= 1
            asks_left -= 1 + lanes.choices // CHOICES_FREE
            if lanes.place(entry, known):
                queue.routed += 1
            else:
                self._leave_out(queue, entry)
        return backlog.first if backlog.count else NO_LIMIT

    def _take_in(self, queue: Queue, backlog: Backlog) -> bool:
        """What came, or came back, goes to the backlog, as much of it as a step may have. Whether that was all."""
        returned = queue.returned
        if returned:
            # What came back was not counted in the window.
            returned.sort()
            run = deque(pair[1] for pair in returned[:TAKEN_MAX])
            del returned[:TAKEN_MAX]
            queue.ready_weight += sum(entry.weight for entry in run)
            queue.routed += len(run)
            backlog.add(run, NOTHING_KNOWN)
        ready = queue.ready
        if ready:
            piece = [ready.popleft() for _ in range(min(len(ready), TAKEN_MAX))]
            queue.routed += len(piece)
            piece.sort(key=_position)
            backlog.add(deque(piece), NOTHING_KNOWN)
        return not returned and not ready

    @property
    def is_placing(self) -> bool:
        """Whether more waits for its lane than a step had room for."""
        return self._lanes.backlog.count > 0

    def _leave_out(self, queue: Queue, entry: Entry) -> None:
        """Nobody takes ``entry``, which counts in the window's weight and not in ``routed``."""
        self.not_recalled(entry)
        settings = self._settings
        if not entry.order_key or (
            self._share.has_room
            and (
                entry.redeliveries > entry.message.redelivery_counter  # the store does not know that
                or (len(self.unwanted) < settings.window_messages and self.unwanted_weight < settings.window_bytes)
            )
        ):
            self.unwanted.append(entry)
            self.unwanted_weight += entry.weight
            queue.ready_weight -= entry.weight
        elif self._has_room(queue):
            queue.pass_over(entry)
        else:
            self.stuck.append(entry)
            queue.routed += 1

    def _has_room(self, queue: Queue) -> bool:
        """Whether more may be passed over."""
        passed = self._passed
        if passed.is_full and passed.may_join(queue.dequeued):
            alive = set(self._out)
            alive.update(entry.position for entry in (*queue.ready, *self.entries()))
            alive.update(pair[1].position for pair in queue.returned)
            if self._levels is not None:
                alive.update(BOUNDS)  # what was not read yet of a level is between its runs and those of the next
            passed.join(alive, self._floor)
        return not passed.is_full

    # ---- out

    def dispatch(self, queue: Queue, now: int, messages_max: int, bytes_max: int) -> list[Delivery]:
        """As ``Queue.dispatch``."""
        deliveries: list[Delivery] = []
        queue.has_more = False
        if not queue.consumers:
            return deliveries
        behind = self.place(queue)
        frontier = self._passed.frontier
        newcomers = self.newcomers if frontier else _NOBODY
        limit = NO_LIMIT
        if self._levels is not None:
            self._levels.is_held = False
            if not self.stuck:
                limit = self._levels.limit
        # Positions are unique: no two lanes are ever compared.
        heads: list[tuple[int, Lane]] = [(lane.first.position, lane) for lane in self._lanes.waiting()]
        heapify(heads)
        round_bytes = 0
        while heads:
            position, lane = heads[0]
            if position >= behind:
                break
            if position >= limit:
                assert self._levels is not None, "without levels there is no limit"
                self._levels.is_held = any(each.has_room for _, each in heads)
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
            queue.routed -= 1
            queue.ready_weight -= entry.weight
            if lane:
                heapreplace(heads, (lane.first.position, lane))
            else:
                heappop(heads)
            if subscription is None:
                queue.expired.append(entry)
                if len(queue.expired) >= messages_max:
                    queue.has_more = True
                    break
                continue
            deliveries.append((subscription, subscription.hand(entry), entry))
            if subscription.is_auto:
                queue.forget(entry)
            else:
                queue.in_flight += 1
                self._out.add(entry.position)
            round_bytes += entry.weight
            if round_bytes >= bytes_max or len(deliveries) >= messages_max:
                queue.has_more = True
                break
        queue.has_more = queue.has_more or behind != NO_LIMIT
        queue.dispatched += len(deliveries)
        return deliveries
