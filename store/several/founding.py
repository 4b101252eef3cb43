"""New stores, made on a thread of their own while the others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from store.several.member import Member
from store.store import Store


class Founding:
    """``make_store`` makes a store by name, blocking. ``made(member)`` is called on the loop when that of ``member`` is
    there, to be had by ``take``; ``on_lost(error)`` when it could not be made. ``call_soon`` runs a function on the
    loop, from any thread."""

    def __init__(
        self,
        make_store: Callable[[str], Store],
        call_soon: Callable[[Callable[[], None]], object],
        *,
        made: Callable[[Member], None],
        on_lost: Callable[[BaseException], None],
    ) -> None:
        self._make_store = make_store
        self._call_soon = call_soon
        self._made = made
        self._on_lost = on_lost
        self._unopened: dict[Member, Store] = {}
        self._is_over = False
        self._thread = ThreadPoolExecutor(1, "tandemmq-founding")

    def begin(self, member: Member) -> None:
        """Have the store of ``member`` made. On the loop; at once."""
        making = self._thread.submit(self._make_store, member.name)
        making.add_done_callback(partial(self._done, member))

    def _done(self, member: Member, making: Future[Store]) -> None:
        """On the thread."""
        if making.cancelled():
            return
        error = making.exception()
        if error is not None:
            self._call_soon(partial(self._on_lost, error))
        elif self._is_over:
            making.result().drop(0.0)
        else:
            self._call_soon(partial(self._there, member, making.result()))

    def _there(self, member: Member, store: Store) -> None:
        if self._is_over:
            store.drop(0.0)
            return
        self._unopened[member] = store
        self._made(member)

    def take(self, member: Member) -> Store | None:
        """The store that was made for ``member``; whoever takes it ends it. None: it was dropped with the others."""
        return self._unopened.pop(member, None)

    def halt(self) -> None:
        """What is being made is dropped when it is there. Any thread; at once."""
        self._is_over = True

    def end(self, wait_seconds: float | None = None) -> None:
        """Drop what nobody took. Blocking, until nothing is being made, or for ``wait_seconds``: a volume may hang."""
        self._is_over = True
        ending = threading.Thread(target=lambda: self._thread.shutdown(cancel_futures=True), daemon=True)
        ending.start()
        unopened, self._unopened = self._unopened, {}
        for store in unopened.values():
            store.drop(0.0)
        ending.join(wait_seconds)
