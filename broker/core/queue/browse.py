"""A browser's walk through a queue: shown what the queue holds, keeping nothing from anybody.

What is stored is read from the store, page by page, whatever memory holds of it: so what is delivered and not yet
acknowledged is shown, too. What is not stored is taken from memory when the walk begins, and shown at its place.
At most one Page of messages waits for the browser's credit at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass, field
from operator import attrgetter, itemgetter

from tandemmq.broker.core.delivery import Delivery, Entry, Subscription, volatile_entry
from tandemmq.broker.core.memory import BROWSED_BYTES, Kind
from tandemmq.broker.core.queue.ordering import in_order
from tandemmq.broker.core.queue.priorities import KEY_BITS, key_of, priority_of
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.slices import WEIGHED_BYTES, Pace, Work
from tandemmq.store.operations import Page, PagedMessage
from tandemmq.store.records.message import Message
from tandemmq.store.state.keys import RANKS

_position = attrgetter("position")
_first = itemgetter(0)
# Behind every order key.
_LAST = (1 << KEY_BITS) - 1


def not_placed(
    base: int, waiting: Iterable[tuple[int, Entry]], unplaced: Iterable[Entry]
) -> Iterator[tuple[int, Entry]]:
    """What has no position yet of a level with that first key: what waits for a stored message, and what is unplaced.
    Each with the key of the last stored message before it."""
    for order_key, entry in waiting:
        yield base + order_key - 1, entry
    for entry in unplaced:
        yield base + _LAST, entry


def in_order_of_queue(
    entries: Iterable[Entry], behind: Iterable[tuple[int, Entry]], pace: Pace, *, is_prioritized: bool
) -> Work[tuple[Iterator[tuple[int, Entry]], list[Entry]]]:
    """What is not stored, in order, each with the key of the last stored message before it as far as memory knows
    (``key_of``); and all of it once more. ``entries`` have a position; what is ``behind`` them (``not_placed``) not
    yet."""
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
    """One browser's walk. ``volatile``: the messages that are not stored, each with the order key of the last stored
    message before it, in order. At most ``stored_max`` stored messages are shown: as many as there were when the walk
    began. With ``is_prioritized`` the highest priority comes first, and the keys of ``volatile`` are those of levels
    (levels).

    Deliveries are settled by whoever made them: their entries belong to no queue. An acknowledgement of them only
    gives credit.
    """

    subscription: Subscription
    _owner: int
    _settings: EngineSettings
    volatile: InitVar[Iterable[tuple[int, Entry]]]
    stored_max: InitVar[int]
    _: KW_ONLY
    is_prioritized: InitVar[bool] = False
    is_page_asked: bool = field(default=False, init=False)
    # What it keeps in memory, counted once each: ``volatile``.
    kept: deque[Entry] = field(default_factory=deque, init=False)
    _after: int = field(default=0, init=False)
    _level: int | None = field(init=False)
    _left: int = field(init=False)
    _unstored: Iterator[tuple[int, Entry]] = field(init=False)
    _next: tuple[int, Entry] | None = field(init=False)
    _waiting: deque[Entry] = field(default_factory=deque, init=False)
    # What is to be examined before the next Page; None: nothing.
    _coming: Iterator[Message] | None = field(default=None, init=False)

    def __post_init__(self, volatile: Iterable[tuple[int, Entry]], stored_max: int, is_prioritized: bool) -> None:
        self._level = 0 if is_prioritized else None
        self._left = stored_max if self._owner else 0
        self._unstored = iter(volatile)
        self._next = next(self._unstored, None)
        if not self._left and self._next is not None:
            self._coming = self._volatile_before(None)

    def keep(self, entries: Iterable[Entry], pace: Pace) -> Work[None]:
        """These are kept in memory for it until ``let_go``: its client pays the places, and the messages count as long
        as anybody has them."""
        holder = self.subscription.outlet.holder
        for entry in entries:
            self.kept.append(entry)
            holder.memory.take(entry.message, entry.weight, 0)
            holder.add(Kind.STATE, BROWSED_BYTES)
            if pace.is_full():
                yield

    def let_go(self, pace: Pace) -> Work[None]:
        """It is over. To be called once, when it is asked for nothing more."""
        holder = self.subscription.outlet.holder
        while self.kept:
            holder.memory.give(self.kept.popleft().message, 0)
            holder.add(Kind.STATE, -BROWSED_BYTES)
            if pace.is_full():
                yield

    @property
    def is_over(self) -> bool:
        """Everything was shown: the client gets the end."""
        return not self._left and self._has_nothing

    @property
    def wants_look(self) -> bool:
        """Whether ``look`` is to be called now: there may be more to show without a Page."""
        return self._coming is not None and not self._waiting

    @property
    def wants_page(self) -> bool:
        return self._left > 0 and self._has_nothing

    @property
    def _has_nothing(self) -> bool:
        return self._coming is None and not self._waiting and not self.is_page_asked

    def ask_page(self) -> Page:
        """The next Page, which must come back to ``page``."""
        assert self.wants_page, "one page of a browser is under way at most"
        self.is_page_asked = True
        settings = self._settings
        count = min(settings.page_messages, self._left)
        priority = None if self._level is None else priority_of(self._level)
        return Page(self._owner, self._after, count, settings.page_bytes, priority=priority)

    def page(self, messages: Iterable[PagedMessage], is_end: bool) -> None:
        """The Page came back."""
        assert self.is_page_asked, "a page comes back once, and only when asked for"
        self.is_page_asked = False
        self._coming = self._in_order(messages, is_end)

    def _in_order(self, messages: Iterable[PagedMessage], is_end: bool) -> Iterator[Message]:
        base = 0 if self._level is None else self._level << KEY_BITS
        for paged in messages:
            yield from self._volatile_before(base + paged.order_key)
            self._after = paged.order_key
            self._left -= 1
            yield paged.message
        if is_end:
            if self._level is None or self._level == RANKS - 1:
                self._left = 0
            else:
                self._level += 1
                self._after = 0
                yield from self._volatile_before(self._level << KEY_BITS)
        if not self._left:
            yield from self._volatile_before(None)

    def _volatile_before(self, before: int | None) -> Iterator[Message]:
        """Those that stand before the stored message ``before`` (None: all that are left)."""
        while self._next is not None and (before is None or self._next[0] < before):
            message = self._next[1].message
            self._next = next(self._unstored, None)
            yield message

    def look(self, pace: Pace) -> Work[None]:
        """Searches what ``dispatch`` may give next. To be called before it, and while ``wants_look``."""
        selector = self.subscription.selector
        is_full = pace.is_full if selector is None or selector.is_cheap else pace.is_over
        while self._coming is not None and len(self._waiting) < _ROUND_MESSAGES:
            message = next(self._coming, None)
            if message is None:
                self._coming = None
            elif selector is None or selector.matches(message):
                self._waiting.append(volatile_entry(message))
            weight = 0 if message is None or selector is None else message.size // WEIGHED_BYTES
            if is_full(1 + weight):
                yield

    def dispatch(self, now: int) -> list[Delivery]:
        """What may be shown now of what ``look`` found. ``now`` in milliseconds: what has expired is not shown."""
        deliveries: list[Delivery] = []
        subscription = self.subscription
        if not subscription.outlet.is_writable:
            return deliveries
        waiting = self._waiting
        while waiting and subscription.credit > 0 and len(deliveries) < _ROUND_MESSAGES:
            entry = waiting.popleft()
            if 0 < entry.message.expiration <= now:
                continue
            deliveries.append((subscription, subscription.hand(entry), entry))
        return deliveries


# As the queue's: the outlet is asked again before more is given to it. Call until nothing comes.
_ROUND_MESSAGES = 128
