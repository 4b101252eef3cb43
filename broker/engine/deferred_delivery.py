"""Deliveries that take too long for the loop: a thread inflates a compressed body or writes a large map.

Later deliveries for the same outlet wait, so that the order is kept, and no new ones are added (``Outlet.is_held``).
Waiting deliveries continue one by one while the outlet is writable, because an inflated body can fill it. If the client
has disconnected when a delivery is ready, the message returns to its queue, and the delivery does not count, because
the client got no byte of it (``Subscription.unsent``).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from tandemmq.broker.core.delivery import Delivery, Outlet, QueueBase
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.engine.ports import InThread

log = logging.getLogger(__name__)

# A translated text has two thirds of the length of its message, or up to its full length. As an estimate, the length of
# the message divided by this number is counted.
ESTIMATE_DIVISOR = 2


class Preparing:
    """Prepares long deliveries on a thread, in the order of each connection. ``deliver`` passes them to sessions.
    ``in_thread(work, then)`` does ``work`` on a thread, and then calls ``then`` on the loop, also after an error.
    ``on_space`` is called with outlets that can take deliveries again, ``dispatch`` with queues to which a message
    returned."""

    __slots__ = ("_deliver", "_dispatch", "_in_thread", "_under_way", "_waiting", "on_space")

    def __init__(
        self,
        in_thread: InThread,
        deliver: Callable[[Sequence[Delivery]], None],
        dispatch: Callable[[QueueBase], None],
    ) -> None:
        self._in_thread = in_thread
        self._deliver = deliver
        self._dispatch = dispatch
        self._waiting: dict[Outlet, deque[Delivery]] = {}
        self._under_way: set[Outlet] = set()  # outlets whose first waiting delivery is being prepared
        self.on_space: Callable[[Outlet], None] = lambda outlet: None

    def begin(self, prepare: Callable[[], None], delivery: Delivery) -> None:
        """Deliver ``delivery`` when ``prepare`` is complete."""
        outlet = delivery[0].outlet
        outlet.is_held = True
        memory, estimate = outlet.holder.memory, delivery[2].message.size // ESTIMATE_DIVISOR
        self._waiting.setdefault(outlet, deque()).appendleft(delivery)
        _hold(delivery)
        self._under_way.add(outlet)
        is_ready = False

        def work() -> None:
            nonlocal is_ready
            try:
                prepare()
                is_ready = True
            except Exception:
                log.exception("%r: disconnected, because a message could not be prepared for it", outlet)

        def then() -> None:
            memory.add(Kind.OUTPUT, -estimate)
            self._is_over(outlet, is_ready=is_ready)

        memory.add(Kind.OUTPUT, estimate)
        self._in_thread(work, then)

    def follow(self, delivery: Delivery) -> None:
        """Queue ``delivery``, which is for an outlet that ``is_held``."""
        self._waiting[delivery[0].outlet].append(delivery)
        _hold(delivery)

    def resume(self, outlet: Outlet) -> None:
        """Continue with an outlet that may be writable again."""
        if outlet in self._waiting and outlet not in self._under_way:
            self._deliver_waiting(outlet)

    def gone(self, outlet: Outlet) -> None:
        """Return waiting deliveries of an outlet to their queues, because its connection has ended."""
        self._under_way.discard(outlet)
        for delivery in self._waiting.pop(outlet, ()):
            self._take_back(delivery)
            _release(delivery)

    def end(self) -> None:
        """Drop all waiting deliveries: nothing more is delivered."""
        self._waiting.clear()
        self._under_way.clear()

    def _is_over(self, outlet: Outlet, *, is_ready: bool) -> None:
        if outlet not in self._under_way:
            outlet.session.drop_prepared()
            return
        self._under_way.discard(outlet)
        if not is_ready:
            outlet.close(after_flush=False)
            outlet.is_held = False
            self.gone(outlet)
            return
        self._deliver_first(outlet)  # in any case: the outlet had room when the message left its queue
        self._deliver_waiting(outlet)

    def _deliver_waiting(self, outlet: Outlet) -> None:
        """Deliver waiting messages while the outlet is writable."""
        waiting = self._waiting[outlet]
        while waiting and outlet not in self._under_way:
            outlet.is_held = False
            has_room = outlet.is_writable
            outlet.is_held = True
            if not has_room:
                return  # ``resume`` is called later
            self._deliver_first(outlet)
        if not waiting:
            del self._waiting[outlet]
            outlet.is_held = False
            self.on_space(outlet)

    def _deliver_first(self, outlet: Outlet) -> None:
        """Deliver the first waiting message. If it must be prepared, it stays the first one."""
        delivery = self._waiting[outlet].popleft()
        if not delivery[0].is_open:
            outlet.session.drop_prepared()
            self._take_back(delivery)
        else:
            outlet.is_held = False
            delivery[0].unsent -= 1
            self._deliver((delivery,))
            outlet.is_held = True
        _release(delivery)

    def _take_back(self, delivery: Delivery) -> None:
        """Return a message that was not delivered. One that had to be acknowledged goes back with its subscription."""
        subscription, _, entry = delivery
        if subscription.is_auto and entry.queue is not None:
            entry.queue.undeliver(entry)
            self._dispatch(entry.queue)


def _hold(delivery: Delivery) -> None:
    """Count the delivery as not sent, and its message as held: the topic or queue that it came from may have released
    it."""
    subscription, _, entry = delivery
    subscription.unsent += 1  # until its session gets it: if that never happens, ``Subscriber.close`` reads it
    subscription.outlet.holder.memory.take(entry.message, entry.weight)


def _release(delivery: Delivery) -> None:
    subscription, _, entry = delivery
    subscription.outlet.holder.memory.give(entry.message)
