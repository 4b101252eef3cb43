"""Browsers: each gets the messages of its queues, one queue after the other, and a notification at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tandemmq.broker.core.charging import charged
from tandemmq.broker.core.commands import ErrorKind, refusal
from tandemmq.broker.core.containment import tell
from tandemmq.broker.core.delivery import Delivery, Subscription
from tandemmq.broker.core.memory import BROWSED_BYTES, ENTRY_OVERHEAD_BYTES, RETRY_SECONDS, Holder, Kind
from tandemmq.broker.core.queue.browse import Browse
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import Pace, Rounds, Work
from tandemmq.broker.engine.part import Part, Shared, Timer
from tandemmq.broker.engine.ports import Callback
from tandemmq.store.operations import Page


class Browsing(Part):
    """Shows browsers the messages of queues. ``deliver`` passes deliveries to sessions."""

    def __init__(self, shared: Shared, deliver: Callable[[Sequence[Delivery]], None]) -> None:
        super().__init__(shared)
        self._deliver = deliver
        self._under_way: dict[Subscription, list[Browse]] = {}
        # One Page of a connection is read at a time. Its other browsers wait for that, or for memory.
        self._reading: set[Holder] = set()
        self._waiting: dict[Holder, dict[Subscription, None]] = {}
        self._retry = Timer(shared.loop.call_later, lambda: shared.loop.start(self._continue_waiting()))
        self._rounds: Rounds[Subscription] = Rounds(
            shared.loop.start, lambda browser: charged(self._show(browser), browser.outlet.holder)
        )

    def _page(self, subscription: Subscription, browse: Browse, page: Page) -> None:
        """Add a page that was read for a browser."""
        holder = subscription.outlet.holder
        self._reading.discard(holder)
        browse.page(page.messages, page.is_end)
        self.show(subscription)
        self._next(holder)

    def _ask(self, subscription: Subscription, browse: Browse) -> None:
        """Read the next Page of a browser, now or later."""
        holder = subscription.outlet.holder
        # prove: browsers-read-one-by-one "holder not in self._reading and "
        if holder not in self._reading and browse.has_room:
            self._reading.add(holder)
            page = browse.ask_page()
            page.context = Callback(None, partial(self._page, subscription, browse))
            self._append(page)
            return
        self._waiting.setdefault(holder, {})[subscription] = None
        self._retry.set(RETRY_SECONDS)

    def _next(self, holder: Holder) -> None:
        """Show again to the browser of a connection that has waited for the longest time."""
        waiting = self._waiting.get(holder)
        if waiting:
            subscription = next(iter(waiting))
            self._leave_line(subscription)
            self.show_soon(subscription)

    def _leave_line(self, subscription: Subscription) -> None:
        holder = subscription.outlet.holder
        waiting = self._waiting.get(holder, {})
        waiting.pop(subscription, None)
        if not waiting:
            self._waiting.pop(holder, None)

    def _continue_waiting(self) -> Work[None]:
        """Continue browsers that wait for memory: others may have released some."""
        pace = Pace()
        for holder in list(self._waiting):
            if holder not in self._reading:
                self._next(holder)
            if pace.is_full():
                yield
        if self._waiting:
            self._retry.set(RETRY_SECONDS)

    def begin(self, subscription: Subscription, queues: Iterable[Queue]) -> Work[None]:
        """Begin to show the messages of these queues to ``subscription``: of each queue, the messages that it holds
        when the browser reaches it."""
        pace = Pace()
        browses: list[Browse] = []
        for queue in queues:
            browses.append((yield from queue.browse(subscription, pace)))
            if not subscription.is_open:
                yield from _let_go(browses, pace)
                return
        self._under_way[subscription] = browses
        self.show(subscription)

    def is_under_way(self, subscription: Subscription) -> bool:
        """Return whether there is, or may be, more to show."""
        return subscription in self._under_way

    def check_room(self, subscription: Subscription, queues: Iterable[Queue]) -> None:
        """Raise ClientError if the client would hold more than its limit: a browser holds all messages in memory that
        the store does not have, and a Page of the others."""
        holder = subscription.outlet.holder
        memory = holder.memory
        kept = sum(min(queue.count, queue.share.not_persistent // ENTRY_OVERHEAD_BYTES) for queue in queues)
        held = holder.by_kind[Kind.BROWSED]
        if kept:
            held += holder.by_kind[Kind.STATE] + BROWSED_BYTES * kept
        if held > memory.held_max:
            raise refusal(
                "Browsers use all free memory",
                f"memory_limit of the broker is {memory.limit} bytes.",
                ErrorKind.RESOURCE,
            )

    def end(self, subscription: Subscription) -> Work[None]:
        """Stop browsing and release the messages that the browser holds."""
        self._leave_line(subscription)
        yield from _let_go(self._under_way.pop(subscription, []), Pace())

    def show(self, subscription: Subscription) -> None:
        """Deliver to a browser as many messages as it can take, one queue after the other, and notify it at the end. If
        this takes more than a step, it continues in slices."""
        self._rounds.ask(subscription)

    def show_soon(self, subscription: Subscription) -> None:
        """Schedule one call of ``show`` for several acknowledgements, because most browsers acknowledge one by one."""
        self._rounds.ask_soon(subscription)

    def _show(self, subscription: Subscription) -> Work[None]:
        pace = Pace()
        browses = self._under_way.get(subscription)
        if browses is None:
            return
        while browses:
            browse = browses[0]
            yield from browse.search(pace)
            if subscription not in self._under_way or not subscription.is_open:
                return
            if deliveries := browse.dispatch(self._clock()):
                self._deliver(deliveries)
                if pace.is_full(len(deliveries)):
                    yield
                continue
            if browse.wants_search:
                continue
            if not browse.is_over or subscription.outlet.is_held:
                if browse.wants_page:
                    self._ask(subscription, browse)
                return
            yield from browse.let_go(pace)
            if subscription not in self._under_way or not subscription.is_open:
                return
            del browses[0]  # only now, because ``end`` releases the remaining browses if the client leaves
        del self._under_way[subscription]
        outlet = subscription.outlet
        tell(outlet, outlet.session.nothing, subscription.id)


def _let_go(browses: list[Browse], pace: Pace) -> Work[None]:
    for browse in browses:
        yield from browse.let_go(pace)
