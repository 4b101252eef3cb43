"""A browser's walk through a queue: it shows the messages of the queue and keeps none from other clients.

Stored messages are read from the store, page by page, even if memory holds them: so unacknowledged deliveries are
shown, too. Messages that are not stored are taken from memory when the walk begins, and shown at their place. At most
one Page of messages waits for the browser's credit at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from operator import attrgetter, itemgetter
from typing import Final

from tandemmq.broker.core.delivery import Delivery, Entry, Subscription, volatile_entry
from tandemmq.broker.core.memory import BROWSED_BYTES, ENTRY_OVERHEAD_BYTES, HELD_BYTES_MIN, Kind
from tandemmq.broker.core.queue.ordering import in_order
from tandemmq.broker.core.queue.priorities import KEY_BITS, key_of, priority_of
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import WEIGHED_BYTES, Pace, Work
from tandemmq.store.operations import Page, PagedMessage
from tandemmq.store.records.message import Message
from tandemmq.store.state.keys import RANKS

_position = attrgetter("position")
_first = itemgetter(0)
# After every order key.
_LAST = (1 << KEY_BITS) - 1
# Memory that counts for each message of a Page until it is read.
EXPECTED_BYTES: Final = 2_000


def _bytes_of(paged: PagedMessage) -> int:
    return paged.message.size + ENTRY_OVERHEAD_BYTES


def not_placed(
    base: int, waiting: Iterable[tuple[int, Entry]], unplaced: Iterable[Entry]
) -> Iterator[tuple[int, Entry]]:
    """Yield the entries of a level that have no position yet (those that wait for a stored message, and the unplaced
    ones), each with the key of the last stored message before it. ``base``: first key of the level."""
    for order_key, entry in waiting:
        yield base + order_key - 1, entry
    for entry in unplaced:
        yield base + _LAST, entry


def in_order_of_queue(
    entries: Iterable[Entry], behind: Iterable[tuple[int, Entry]], pace: Pace, *, is_prioritized: bool
) -> Work[tuple[Iterator[tuple[int, Entry]], list[Entry]]]:
    """Return the entries that are not stored, in order, each with the key of the last stored message before it, as far
    as memory knows (``key_of``); and a list of all these entries. ``entries`` have a position; those ``behind`` them
    (``not_placed``) have none yet."""
    found: list[tuple[int, Entry]] = []
    key = 0
    for entry in (yield from in_order(entries, _position, pace)):
        if entry.order_key:
            key = key_of(entry, is_prioritized=is_prioritized)
        else:
            # With levels it may be the first of its level.
            key = max(key, key_of(entry, is_prioritized=is_prioritized))
            found.append((key, entry))
        if pace.is_full():
            yield
    for pair in behind:
        found.append(pair)
        if pace.is_full():
            yield
    kept = [entry for _, entry in found]
    return (yield from in_order(found, _first, pace)), kept


@dataclass(slots=True, eq=False, repr=False)
class Browse:
    """Walk of one browser. ``volatile``: the messages that are not stored, each with the order key of the last stored
    message before it, in order. At most ``stored_max`` stored messages are shown: as many as there were when the walk
    began. With ``is_prioritized`` the highest priority comes first, and the keys of ``volatile`` are those of levels
    (levels).

    The consumer that received a delivery settles it: the entries here belong to no queue. An acknowledgement to the
    browser only gives credit.
    """

    subscription: Subscription
    _owner: int
    _settings: EngineSettings
    volatile: InitVar[Iterable[tuple[int, Entry]]]
    stored_max: InitVar[int]
    _: KW_ONLY
    is_prioritized: InitVar[bool] = False
    is_page_asked: bool = field(default=False, init=False)
    # Entries that it keeps in memory, counted once each: ``volatile``.
    kept: deque[Entry] = field(default_factory=deque, init=False)
    _after: int = field(default=0, init=False)
    _level: int | None = field(init=False)
    _left: int = field(init=False)
    _unstored: Iterator[tuple[int, Entry]] = field(init=False)
    _next: tuple[int, Entry] | None = field(init=False)
    # Messages to deliver, and bytes of the Page that each releases then.
    _waiting: deque[tuple[Entry, int]] = field(default_factory=deque, init=False)
    # Messages to examine before the next Page, with the same bytes; None: none.
    _coming: Iterator[tuple[Message, int]] | None = field(default=None, init=False)
    # Bytes that are counted for the Page: an estimate until it is read, then its messages until they are delivered.
    _paged_bytes: int = field(default=0, init=False)

    def __post_init__(self, volatile: Iterable[tuple[int, Entry]], stored_max: int, is_prioritized: bool) -> None:
        self._level = 0 if is_prioritized else None
        self._left = stored_max if self._owner else 0
        self._unstored = iter(volatile)
        self._next = next(self._unstored, None)
        if not self._left and self._next is not None:
            self._coming = self._volatile_before(None)

    def keep(self, entries: Iterable[Entry], pace: Pace) -> Work[None]:
        """Keep ``entries`` in memory until ``let_go``: the browser's client pays for the places, and the messages count
        as long as any client holds them."""
        holder = self.subscription.outlet.holder
        for entry in entries:
            self.kept.append(entry)
            holder.memory.take(entry.message, entry.weight, 0)
            holder.add(Kind.STATE, BROWSED_BYTES)
            if pace.is_full():
                yield

    def let_go(self, pace: Pace) -> Work[None]:
        """Release the kept entries, and drop all messages that were not shown. Call it once, at the end of the walk. A
        search that is under way ends without a further message."""
        holder = self.subscription.outlet.holder
        self._coming = None
        self._waiting.clear()
        if not self.is_page_asked:
            self._count_page(0)
        while self.kept:
            holder.memory.give(self.kept.popleft().message, 0)
            holder.add(Kind.STATE, -BROWSED_BYTES)
            if pace.is_full():
                yield

    def _count_page(self, count: int) -> None:
        more, self._paged_bytes = count - self._paged_bytes, count
        self.subscription.outlet.holder.add(Kind.BROWSED, more)

    @property
    def _room(self) -> int:
        """Bytes that the Pages of the client may still take: all of them together at most as much as is free."""
        holder = self.subscription.outlet.holder
        return holder.memory.free - holder.by_kind[Kind.BROWSED]

    @property
    def has_room(self) -> bool:
        """Return whether the next Page may be read: the client has room, or holds no other Page."""
        # prove: browsers-wait-for-memory "not self.subscription.outlet.holder.by_kind[Kind.BROWSED]" -> "True"
        return self._room >= HELD_BYTES_MIN or not self.subscription.outlet.holder.by_kind[Kind.BROWSED]

    @property
    def is_over(self) -> bool:
        """True when all messages were shown: the client receives the end."""
        return not self._left and self._has_nothing

    @property
    def wants_search(self) -> bool:
        """True if ``search`` should be called now: there may be more to show without a Page."""
        return self._coming is not None and not self._waiting

    @property
    def wants_page(self) -> bool:
        return self._left > 0 and self._has_nothing

    @property
    def _has_nothing(self) -> bool:
        return self._coming is None and not self._waiting and not self.is_page_asked

    def ask_page(self) -> Page:
        """Return the next Page, whose result must go to ``page``. It has at most as many bytes as the client has room
        for, but HELD_BYTES_MIN or one message at least."""
        assert self.wants_page, "at most one page of a browser is in progress"
        self.is_page_asked = True
        settings = self._settings
        size = min(settings.page_bytes, max(HELD_BYTES_MIN, self._room))
        count = min(settings.page_messages, self._left, size // ENTRY_OVERHEAD_BYTES)
        priority = None if self._level is None else priority_of(self._level)
        self._count_page(min(size, count * EXPECTED_BYTES))
        return Page(self._owner, self._after, count, size, priority=priority)

    def page(self, messages: Sequence[PagedMessage], is_end: bool) -> None:
        """Take the result of the Page. After the end of the subscription it is dropped."""
        assert self.is_page_asked, "a page comes back once, and only if it was requested"
        self.is_page_asked = False
        if not self.subscription.is_open:  # prove: browsers-that-left-hold-nothing "not self" -> "False and self"
            self._count_page(0)
            return
        self._count_page(sum(map(_bytes_of, messages)))
        self._coming = self._in_order(messages, is_end)

    def _in_order(self, messages: Sequence[PagedMessage], is_end: bool) -> Iterator[tuple[Message, int]]:
        base = 0 if self._level is None else self._level << KEY_BITS
        for paged in messages:
            yield from self._volatile_before(base + paged.order_key)
            self._after = paged.order_key
            self._left -= 1
            yield paged.message, _bytes_of(paged)
        if is_end:
            if self._level is None or self._level == RANKS - 1:
                self._left = 0
            else:
                self._level += 1
                self._after = 0
                yield from self._volatile_before(self._level << KEY_BITS)
        if not self._left:
            yield from self._volatile_before(None)

    def _volatile_before(self, before: int | None) -> Iterator[tuple[Message, int]]:
        """Yield the unstored messages before the stored message ``before`` (None: all that are left)."""
        while self._next is not None and (before is None or self._next[0] < before):
            message = self._next[1].message
            self._next = next(self._unstored, None)
            yield message, 0

    def search(self, pace: Pace) -> Work[None]:
        """Search the messages that ``dispatch`` may give next. Call it before ``dispatch``, and while
        ``wants_search``."""
        subscription = self.subscription
        selector = subscription.selector
        is_full = pace.is_full if selector is None or selector.is_cheap else pace.is_over
        # prove: browsers-that-left-search-no-more " and subscription.is_open"
        while self._coming is not None and subscription.is_open and len(self._waiting) < _ROUND_MESSAGES:
            found = next(self._coming, None)
            weight = 0
            if found is None:
                self._coming = None
            else:
                message, count = found
                if selector is None or selector.matches(message):
                    self._waiting.append((volatile_entry(message), count))
                else:
                    self._count_page(self._paged_bytes - count)
                weight = 0 if selector is None else message.size // WEIGHED_BYTES
            if is_full(1 + weight):
                yield

    def dispatch(self, now: int) -> list[Delivery]:
        """Return deliveries of the messages that ``search`` found. ``now`` in milliseconds: expired messages are not
        shown."""
        deliveries: list[Delivery] = []
        subscription = self.subscription
        if not subscription.outlet.is_writable:
            return deliveries
        waiting = self._waiting
        while waiting and subscription.credit > 0 and len(deliveries) < _ROUND_MESSAGES:
            entry, count = waiting.popleft()
            self._count_page(self._paged_bytes - count)
            if not 0 < entry.message.expiration <= now:
                deliveries.append((subscription, subscription.hand(entry), entry))
        return deliveries


# Bound as in the queue: the outlet is checked again before it receives more. Call ``dispatch`` until it returns
# nothing.
_ROUND_MESSAGES = 128
