"""Part of a queue that memory holds, and the part that waits in the store.

Memory holds a *window*: the head of the queue, bounded by count and bytes. Later messages wait in the store and are
only counted; the queue is then *paged*, and reads on (Page) when its window runs low.

    store   ... 17 18 | 19 20 21 22 23        cursor = 18: the last stored message that memory ever held
    memory  14 15 16 17 18                    window; 9 and 12 may still be in flight, or back at the front

Three rules prevent lost and duplicated messages:

1. All stored messages up to ``cursor`` are or were in memory; no message after it is. Acknowledged, delivered and
   returned messages are at or before the cursor: a returned message stays in memory, at its position. A message that is
   not delivered may be released from memory. It is then recorded as skipped (skipped_ranges), and only that record
   brings it back.
2. Not paged: no durable message is after the cursor. A message that becomes durable is put into the window and moves
   the cursor; or, if the window is full, it is counted (``unread``), and from then on the queue is paged.
3. Paged: messages that become durable are counted and otherwise ignored. A Page reads the messages after the cursor.

Additions and Pages come back on one ordered channel (store/operations.py): a Page holds everything that was submitted
before it, and nothing later. So there are two cases for each addition. Reported before the Page: rule 3 ignored it and
the store has it after the cursor, so this Page or a later one brings it. Reported after the Page: the Page does not
contain it. So after a Page with ``is_end``, no durable message is after the new cursor, and rule 2 holds again:
additions reported from now on were submitted after the Page. At most one Page is in progress, and the window may only
shrink meanwhile (nothing is evicted while a Page is in progress), so the cursor of the request is still the cursor when
the Page comes back.

Non-persistent messages are only in memory, but keep their place: while the queue is paged they wait with the order key
of the stored message that they precede. The order is that of becoming visible: a persistent message becomes visible
when it is durable, a non-persistent one at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final

from tandemmq.broker.core.delivery import Entry, QueueBase, volatile_entry
from tandemmq.broker.core.memory import ENTRY_OVERHEAD_BYTES
from tandemmq.broker.core.queue.assignment import Assignment
from tandemmq.broker.core.queue.ordering import parted, take_out
from tandemmq.broker.core.queue.priorities import KEY_BITS, Level, Levels, key_of, level_at, priority_of
from tandemmq.broker.core.queue.returned import Returned
from tandemmq.broker.core.queue.skipped_ranges import SkippedRanges
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.share import Share
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.store.operations import Page, PagedMessage
from tandemmq.store.records.message import Message
from tandemmq.store.state.keys import rank_of

# Size of a Page when the memory for windows is exhausted, the window is empty and a consumer takes messages: the queue
# must not stop.
SCARCE_MESSAGES: Final = 16
SCARCE_BYTES: Final = 128 * 1024
# Number of a queue's messages released from memory whose delivery counts are remembered.
DELIVERED_BEFORE_MAX: Final = 10_000
# Runs of skipped messages that are remembered, per message of the full window.
RUNS_PER_WINDOW: Final = 10
# References copied in the time of one item of a step.
COPIED: Final = 128
# References that are examined, and entries that are released, in the time of one item of a step.
_EXAMINED = 32
_RELEASED: Final = 4
_NEVER: Final = 1 << 63

_weight: Final = attrgetter("weight")


@dataclass(slots=True, eq=False, repr=False)
class Window(QueueBase):
    """The window of one queue, and its way to the store and back.

    ``expired`` collects the expired messages; the caller takes them from there.
    """

    _settings: EngineSettings
    share: Share
    _: KW_ONLY
    unread: int = 0
    is_prioritized: bool = False
    ready: deque[Entry] = field(default_factory=deque, init=False)
    ready_weight: int = field(default=0, init=False)
    returned: Returned = field(default_factory=Returned, init=False)
    expired: deque[Entry] = field(default_factory=deque, init=False)
    expiring_at: int = field(default=0, init=False)  # no message of the window expires before; 0: none expires
    is_behind: bool = field(init=False)  # "paged" in the rules
    is_paged: bool = field(init=False)  # messages must be read: after the cursor, or skipped ones again
    is_rereading: bool = field(default=False, init=False)  # the Page in progress reads skipped messages
    levels: Levels = field(init=False)
    _level: Level = field(init=False)
    has_groups: bool = field(default=False, init=False)
    assignment: Assignment | None = field(default=None, init=False)
    skipped: SkippedRanges = field(init=False)
    enqueued: int = field(default=0, init=False)
    _low_messages: int = field(init=False)
    _low_weight: int = field(init=False)
    _page_after: int = field(default=0, init=False)
    # Numbers of deliveries and refusals of messages released from memory, by their order keys.
    _delivered_before: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.is_behind = self.is_paged = self.unread > 0
        self.levels = Levels(is_prioritized=self.is_prioritized, is_behind=self.unread > 0)
        self._level = self.levels.all[0]
        self.skipped = SkippedRanges(RUNS_PER_WINDOW * self._settings.window_messages)
        self._low_messages = max(1, self._settings.window_messages // 2)
        self._low_weight = max(1, self._settings.window_bytes // 2)

    @property
    def held(self) -> int:
        held = len(self.ready) + self.returned.total + self.levels.held
        return held if self.assignment is None else held + self.assignment.held

    @property
    def has_work(self) -> bool:
        if self.ready or self.returned.heap or self.is_paged:
            return True
        return self.assignment is not None and self.assignment.count > 0

    # ---- in

    def add(self, message: Message, order_key: int, location: int, size: int) -> None:
        """Add a message of this queue that became durable."""
        self.enqueued += 1
        number = 0
        level = self._level
        count = len(self.ready)
        weight = self.ready_weight
        if self.assignment is not None:
            count += self.assignment.count
            weight += self.assignment.weight
            if self.is_prioritized:  # such a queue always has an assignment
                number = rank_of(message.priority)
                level = self.levels.all[number]
                if self.levels.precedes_unread(number):  # there is a second window
                    count //= 2
                    weight //= 2
        if not level.is_behind:
            settings = self._settings
            share = self.share
            memory = share.memory
            if (
                count < settings.window_messages
                and weight < settings.window_bytes
                and memory.used < memory.window_max  # the first part of share.has_space, because few need the call
                and (not share.limit or share.has_space)
            ):
                level.cursor = order_key
                weight = size + ENTRY_OVERHEAD_BYTES
                entry = Entry(message, order_key, location, size, weight)
                if message.holders or message.shared_body is not None or not message.persistent:
                    share.take(entry)
                else:  # as ``Share.take`` does for one holder
                    message.holders = 1
                    message.held_bytes = weight
                    share.stored += weight
                    memory.used += weight
                level.position = position = level.position + 1
                self._place(entry, position)
                return
            self.levels.fall_behind(number)
            self.is_behind = self.is_paged = True
        self.unread += 1
        level.precede(order_key)

    def add_volatile(self, message: Message) -> None:
        """Add a non-persistent message. The caller has checked ``Share`` for room."""
        self.enqueued += 1
        entry = volatile_entry(message)
        self.share.take(entry)
        level = self.levels.all[rank_of(message.priority)] if self.is_prioritized else self._level
        if level.is_behind:
            level.unplaced.append(entry)
        else:
            self._place(entry, level.next_position())

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

    @abstractmethod
    def _reroute(self) -> None:
        """Begin an assignment: the queue has groups now."""

    def take_back(self, paged: PagedMessage) -> None:
        """Offer a message again that a prepared transaction of a former term withheld. It goes to the front, unless a
        later page will read it."""
        level = self.levels.all[rank_of(paged.message.priority)] if self.is_prioritized else self._level
        if level.is_behind and paged.order_key > level.cursor:
            return
        entry = self._stored_entry(paged)
        entry.queue = self
        entry.position = level.position_before()
        self.returned.add(entry)

    # ---- paging

    @property
    def wants_page(self) -> bool:
        """True if it is time to read on in the store."""
        if not self.is_paged or self.is_page_asked or not self.consumers:
            return False
        assignment = self.assignment
        count, weight = len(self.ready), self.ready_weight
        if assignment is not None:
            if self._is_due:
                # The window may be full of messages that come after the due ones and wait for them. Messages that were
                # read again may also wait for earlier ones that became due since.
                return self._may_recall(*assignment.recalled) or self._may_recall(
                    *assignment.recalled_before(self.skipped.frontier)
                )
            if self.levels.is_held:
                # Lower levels in memory do not count.
                return assignment.count_before(self.levels.limit) < self._low_messages
            count += assignment.count
            weight += assignment.weight
        if count >= self._low_messages or weight >= self._low_weight:
            return False
        return self.share.has_space or (not count and self._is_taken)

    @property
    def _is_taken(self) -> bool:
        """True if a consumer would take a message now."""
        return any(each.credit > 0 and each.outlet.is_writable for each in self.consumers)

    def _may_recall(self, count: int, weight: int) -> bool:
        return not count or (count < self._low_messages and weight < self._low_weight and self.share.has_space)

    @property
    def _is_due(self) -> bool:
        """True if the next Page is one of skipped messages."""
        due = self.skipped.due
        return bool(due) and level_at(due[0].position) <= self.levels.first_behind

    def ask_page(self) -> Page:
        """Return the next Page, to be submitted to the store; its result must go to ``page``."""
        assert self.is_paged, "only a paged queue has something to read"
        assert not self.is_page_asked, "at most one page of a queue is in progress"
        self.is_page_asked = True
        settings = self._settings
        count, size = settings.page_messages, settings.page_bytes
        if not self.share.has_space:
            count, size = min(count, SCARCE_MESSAGES), min(size, SCARCE_BYTES)
        self.is_rereading = self._is_due
        levels = self.levels
        if self.is_rereading:
            run = self.skipped.due[0]
            levels.requested = level_at(run.position)
            self._page_after = run.first_key - 1
            after = self._page_after - (levels.requested << KEY_BITS)
        else:
            levels.requested = levels.first_behind
            after = levels.all[levels.requested].cursor
        priority = priority_of(levels.requested) if self.is_prioritized else None
        return Page(self.owner, after, count, size, priority=priority)

    def page(self, messages: Sequence[PagedMessage], is_end: bool) -> None:
        """Take the result of the Page."""
        assert self.is_page_asked, "a page comes back once, and only if it was requested"
        self.is_page_asked = False
        if self.is_rereading:
            self._reread(messages, is_end)
            return
        levels = self.levels
        level = levels.all[levels.requested]
        waiting = level.waiting
        for paged in messages:
            while waiting and waiting[0][0] <= paged.order_key:
                self._place(waiting.popleft()[1], level.next_position())
            self.unread -= 1
            level.cursor = paged.order_key
            self._place(self._stored_entry(paged), level.next_position())
        if is_end:
            levels.catch_up(levels.requested)
            for entry in (*(pair[1] for pair in waiting), *level.unplaced):
                self._place(entry, level.next_position())
            waiting.clear()
            level.unplaced.clear()
            self.is_behind = levels.is_behind
            if not self.is_behind:
                self.is_paged = bool(self.skipped.due)
                self.unread = 0  # the store's count at start may be less exact than its pages

    def _reread(self, messages: Sequence[PagedMessage], is_end: bool) -> None:
        """Put skipped messages back into memory, at their old places."""
        base = self.levels.requested << KEY_BITS
        found = self.skipped.found(self._page_after, messages, is_end, base=base, stop=base + (1 << KEY_BITS))
        for paged, position in found:
            entry = self._stored_entry(paged)
            self._place(entry, position)
            if self.assignment is not None:
                self.assignment.recall(entry)
        if not self.skipped.due:
            self.is_paged = self.is_behind
            if self.assignment is not None:
                self.assignment.end_recall()
            if not self.skipped.count:
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

    def _recall(self) -> None:
        self.skipped.recall()
        self.is_paged = self.is_behind or bool(self.skipped.due)

    # ---- out of memory

    def evict(self, pace: Pace) -> Work[None]:
        """Release the stored messages of the window from memory, because memory is scarce and the queue has no
        consumer. Works in steps, and stops when there is a consumer."""
        if not self.owner or self.consumers or self.is_page_asked:
            return
        for looked_at, found in self.take_out(self._may_leave):
            for entry in found:
                self.skipped.add(entry, key_of(entry, is_prioritized=self.is_prioritized))
                self.share.give(entry)
                if self.assignment is not None:
                    self.assignment.not_recalled(entry)
            self._recall()
            if pace.is_full(1 + looked_at // _EXAMINED + len(found) // _RELEASED):
                yield
                if self.consumers or self.is_page_asked or self.is_dropped:
                    return

    def _may_leave(self, entry: Entry) -> bool:
        """Return whether ``entry`` can be read again unchanged, and remember its deliveries if it had any."""
        if not entry.order_key or entry.position <= 0:
            return False
        if entry.redeliveries == entry.refusals == entry.message.redelivery_counter:
            return True
        if len(self._delivered_before) >= DELIVERED_BEFORE_MAX:
            return False
        self._delivered_before[entry.order_key] = (entry.redeliveries, entry.refusals)
        return True

    def sweep(self, now: int, pace: Pace) -> Work[None]:
        """Move the expired messages of memory to ``expired``: first find them, in steps, while the queue continues.
        Messages that are not placed yet are examined when they enter the window."""
        if not self.expiring_at or self.expiring_at > now:
            return
        self.expiring_at = 0  # messages that arrive meanwhile set it
        parts: list[Iterable[Entry]] = [list(self.ready), list(self.returned.entries())]
        if self.assignment is not None:
            parts.extend(self.assignment.snapshot())
        if pace.is_full(1 + self.held // COPIED):
            yield
        first = _NEVER
        late: set[Entry] = set()
        for entry in chain.from_iterable(parts):
            expiration = entry.message.expiration or _NEVER
            if expiration <= now:
                late.add(entry)
            elif expiration < first:
                first = expiration
            if pace.is_full():
                yield
        if late:
            for looked_at, found in self.take_out(late.__contains__):
                self.expired += found
                late.difference_update(found)
                if pace.is_full(1 + looked_at // _EXAMINED):
                    yield
        if late:  # these were moved, or ``dispatch`` removed them
            first = now
        if first != _NEVER and (not self.expiring_at or first < self.expiring_at):
            self.expiring_at = first

    def take_out(self, is_chosen: Callable[[Entry], bool]) -> Iterator[tuple[int, list[Entry]]]:
        """Take out of all waiting entries, as ``Lane.take_out`` does."""
        ready = self.ready
        for looked_at, found in take_out(ready, is_chosen):
            self.ready_weight -= sum(map(_weight, found))
            yield looked_at, found
            if ready is not self.ready:  # its entries wait elsewhere now
                break
        returned, found = parted(self.returned.entries(), is_chosen)
        if found:
            self.returned.keep(returned)
        yield len(found), found
        if self.assignment is not None:
            yield from self.assignment.take_out(is_chosen)
