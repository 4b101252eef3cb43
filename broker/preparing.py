"""Deliveries that take too long for the loop: a compressed body is inflated beside it, a large map written.

What else is for the same outlet waits behind, so that each consumer has its order, and nothing more is given to it
meanwhile (``Outlet.is_held``). Who is gone when it is ready gets nothing: what was delivered goes back to its queue.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from broker.core.queue import Delivery, Queue
from broker.core.subscription import Outlet

log = logging.getLogger(__name__)

InThread = Callable[[Callable[[], object], Callable[[], None]], None]


def at_once_on_the_loop(work: Callable[[], object], then: Callable[[], None]) -> None:
    """For whoever has no threads."""
    work()
    then()


class Preparing:
    """See the module. ``deliver`` tells sessions; ``in_thread(work, then)`` does ``work`` beside the loop, and calls
    ``then`` on it afterwards, whatever came of it; ``on_room`` is told of outlets that may be given more again;
    ``dispatch`` of queues to which something went back."""

    __slots__ = ("_deliver", "_dispatch", "_in_thread", "_waiting", "on_room")

    def __init__(
        self,
        in_thread: InThread,
        deliver: Callable[[Sequence[Delivery]], None],
        dispatch: Callable[[Queue], None],
    ) -> None:
        self._in_thread = in_thread
        self._deliver = deliver
        self._dispatch = dispatch
        self._waiting: dict[Outlet, deque[Delivery]] = {}
        self.on_room: Callable[[Outlet], None] = lambda outlet: None

    def begin(self, prepare: Callable[[], None], delivery: Delivery) -> None:
        """``delivery`` can be told once ``prepare`` was done."""
        outlet = delivery[0].outlet
        outlet.is_held = True
        self._waiting[outlet] = deque((delivery,))
        is_ready = False

        def work() -> None:
            nonlocal is_ready
            try:
                prepare()
                is_ready = True
            except Exception:
                log.exception("%r: hung up, for a message could not be made ready for it", outlet)

        self._in_thread(work, lambda: self._is_over(outlet, is_ready=is_ready))

    def follow(self, delivery: Delivery) -> None:
        """``delivery`` is for an outlet that ``is_held``."""
        self._waiting[delivery[0].outlet].append(delivery)

    def end(self) -> None:
        """Nothing more is told to anybody."""
        self._waiting.clear()

    def _is_over(self, outlet: Outlet, *, is_ready: bool) -> None:
        waiting = self._waiting.pop(outlet, None)
        if waiting is None:
            return
        outlet.is_held = False
        if not is_ready:
            outlet.close(after_flush=False)
        self._deliver([each for each in waiting if is_ready and each[0].is_open])
        for subscription, _, entry in waiting:
            # What had to be acknowledged goes back with its subscription.
            if subscription.is_auto and entry.queue is not None and not (is_ready and subscription.is_open):
                entry.queue.untold(entry)
                self._dispatch(entry.queue)
        if not outlet.is_held:
            self.on_room(outlet)
