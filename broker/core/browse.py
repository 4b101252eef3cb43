"""A browser's walk through a queue: shown what the queue holds, keeping nothing from anybody.

What is stored is read from the store, page by page, whatever memory holds of it: so what is delivered and not yet
acknowledged is shown, too. What is not stored is taken from memory when the walk begins, and shown at its place.
At most one Page of messages waits for the browser's credit at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.core.levels import KEY_BITS, priority_of
from broker.core.settings import EngineSettings
from broker.core.subscription import Entry, Subscription, volatile_entry
from store.keys import RANKS
from store.operations import Page, PagedMessage
from store.records.message import Message

if TYPE_CHECKING:
    from broker.core.queue import Delivery


class Browse:
    """See the module. ``volatile``: what is not stored, each with the order key of the last stored message before it,
    in order. At most ``stored_max`` stored messages are shown: as many as there were when the walk began. With
    ``is_by_priority`` the highest priority comes first, and the keys of ``volatile`` are those of levels (levels).

    Deliveries are settled by whoever made them: their entries belong to no queue. An acknowledgement of them only
    gives credit.
    """

    __slots__ = (
        "_after",
        "_left",
        "_level",
        "_owner",
        "_settings",
        "_volatile",
        "_waiting",
        "is_page_asked",
        "subscription",
    )

    def __init__(
        self,
        subscription: Subscription,
        owner: int,
        settings: EngineSettings,
        volatile: Iterable[tuple[int, Entry]],
        stored_max: int,
        *,
        is_by_priority: bool = False,
    ) -> None:
        self.subscription = subscription
        self.is_page_asked = False
        self._owner = owner
        self._settings = settings
        self._after = 0
        self._level = 0 if is_by_priority else None
        self._left = stored_max if owner else 0
        self._volatile = deque(volatile)
        self._waiting: deque[Entry] = deque()
        if not self._left:
            self._show_volatile(None)

    @property
    def is_over(self) -> bool:
        """Everything was shown: the client is told so."""
        return not self._left and not self._waiting and not self.is_page_asked

    @property
    def wants_page(self) -> bool:
        return self._left > 0 and not self._waiting and not self.is_page_asked

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
        base = 0 if self._level is None else self._level << KEY_BITS
        for paged in messages:
            self._show_volatile(base + paged.order_key)
            self._after = paged.order_key
            self._show(paged.message)
            self._left -= 1
        if is_end:
            if self._level is None or self._level == RANKS - 1:
                self._left = 0
            else:
                self._level += 1
                self._after = 0
                self._show_volatile(self._level << KEY_BITS)
        if not self._left:
            self._show_volatile(None)

    def _show_volatile(self, before: int | None) -> None:
        """Those that stand before the stored message ``before`` (None: all that are left)."""
        volatile = self._volatile
        while volatile and (before is None or volatile[0][0] < before):
            self._show(volatile.popleft()[1].message)

    def _show(self, message: Message) -> None:
        selector = self.subscription.selector
        if selector is None or selector.matches(message):
            self._waiting.append(volatile_entry(message))

    def dispatch(self, now: int) -> list[Delivery]:
        """What may be shown now. ``now`` in milliseconds: what has expired is not shown."""
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
