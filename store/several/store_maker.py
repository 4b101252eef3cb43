"""Maker of new stores, in a separate thread, while the other stores continue."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from tandemmq.store.several.member import Member
from tandemmq.store.store import Store
from tandemmq.store.threads import Threads
from tandemmq.store.writer.background import Pulses


@dataclass(eq=False, repr=False)
class StoreMaker:
    """Maker of new stores.

    make_store  makes the store with this name; blocks
    call_soon   runs a function on the event loop; any thread
    made        called on the event loop with a member when its store is ready for ``take``
    on_lost     called on the event loop with the error if a store could not be made
    """

    _make_store: Callable[[str], Store]
    _call_soon: Callable[[Callable[[], None]], object]
    _: KW_ONLY
    made: Callable[[Member], None]
    on_lost: Callable[[BaseException], None]
    threads: Threads
    _unopened: dict[Member, Store] = field(default_factory=dict, init=False)
    _making: set[Future[Store]] = field(default_factory=set, init=False)
    _making_since: float = field(default=0.0, init=False)
    _is_over: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._thread = self.threads.executor(1, "tandemmq-founding")
        self._pulses = Pulses(self.threads)

    def begin(self, member: Member) -> None:
        """Begin to make the store of ``member``. On the event loop; does not block."""
        if not self._making:
            self._making_since = self.threads.monotonic()
        making = self._thread.submit(self._make, member.name)
        self._making.add(making)
        making.add_done_callback(partial(self._done, member))

    def _make(self, name: str) -> Store:
        with self._pulses.beating():
            return self._make_store(name)

    def seen_alive(self) -> float:
        """Return the monotonic time at which the thread was last seen working, or the present time if it has no work.
        Any thread."""
        return max(self._making_since, self._pulses.seen_busy()) if self._making else self.threads.monotonic()

    def _done(self, member: Member, making: Future[Store]) -> None:
        """Report the store, or the error, to the event loop. Runs in the thread of the maker."""
        self._making.discard(making)
        if making.cancelled():
            return
        error = making.exception()
        if error is not None:
            self._call_soon(partial(self.on_lost, error))
        elif self._is_over:
            making.result().drop()
        else:
            self._call_soon(partial(self._ready, member, making.result()))

    def _ready(self, member: Member, store: Store) -> None:
        if self._is_over:
            self.threads.thread(store.drop, "tandemmq-dropping").start()  # drop() blocks
            return
        self._unopened[member] = store
        self.made(member)

    def take(self, member: Member) -> Store | None:
        """Return the store that was made for ``member``, which the caller must end. None: it was dropped by ``end``."""
        return self._unopened.pop(member, None)

    def halt(self) -> None:
        """Drop stores that are being made as soon as they are ready. Any thread; does not block."""
        self._is_over = True

    def end(self) -> None:
        """Drop the stores that were not taken. Blocks until no store is being made."""
        self._is_over = True
        self._thread.shutdown(cancel_futures=True)
        unopened, self._unopened = self._unopened, {}
        for store in unopened.values():
            store.drop()
