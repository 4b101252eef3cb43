"""Store without an event loop, for a command that uses a data directory while no broker does.

It begins a new epoch, as the promotion of a broker does, and ends it as a planned stop does. The caller's thread
replaces the loop: it handles the results of the storage thread while it waits here. The caller must hold the lock of
the store until the store is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from tandemmq.disk import unlink_if_there
from tandemmq.journal.files import JournalFiles
from tandemmq.store.membership import demand_no_set
from tandemmq.store.operations import Operation, Page, PagedMessage
from tandemmq.store.recovery.index_trust import numbering_of
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store

OFFLINE = "offline"
PAGE_MESSAGES = 1_000
PAGE_BYTES = 8 << 20

T = TypeVar("T")


class OfflineStore:
    """A promoted store in ``directory``, for one thread. As a context manager it closes the store at the end of the
    block; if an exception leaves the block, it drops the store without a further write.

    ``index_root`` defaults to ``index/`` in the directory. ``broker_name`` names the index below it, and the holder in
    the headers. Before each report of durable operations, ``has_proof`` is called: it must return whether this process
    still holds the lock. Opening raises BelongsToSet, and the errors of ``Standby.promote``. Any later call raises the
    error that ended the store, if there was one.
    """

    def __init__(
        self,
        directory: str,
        index_root: str | None = None,
        broker_name: str = OFFLINE,
        settings: StoreSettings | None = None,
        *,
        has_proof: Callable[[], bool] = lambda: True,
    ) -> None:
        demand_no_set(directory)
        self._arrived: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._turn: list[Callable[[], None]] = []
        self._lost: BaseException | None = None
        self._next_path = JournalFiles(directory).next_path(broker_name)
        standby = Standby(
            directory,
            index_root or os.path.join(directory, "index"),
            broker_name,
            settings or StoreSettings(),
            number_owners=numbering_of,
        )
        try:
            self.store: Store = standby.promote(
                has_proof=has_proof,
                call_soon=self._arrived.put,
                call_later=lambda _, function: self._turn.append(function),
                on_lost=self._on_lost,
            )
        except BaseException:
            standby.close()
            raise
        self.store.start(self)

    # ---- the engine's part

    def durable(self, operations: list[Operation]) -> None:
        """Do nothing: the caller has the operations that it appended, and the store has set their results."""

    def drained(self) -> None:
        """Do nothing: ``append`` checks for congestion itself."""

    def _on_lost(self, error: BaseException) -> None:
        self._lost = error

    # ---- the caller's part

    def append(self, operation: Operation) -> None:
        """Append one operation. Wait while the store is congested. The operation is durable when ``flush`` returns."""
        self.store.append(operation)
        self._end_turn()
        while self.store.is_congested:
            self._wait()

    def flush(self) -> None:
        """Wait until all appended operations are durable."""
        self._end_turn()
        while self.store.has_pending:
            self._wait()

    def messages(self, owner: int) -> Iterator[PagedMessage]:
        """Iterate over the messages of ``owner``, in order. They are read page by page, so messages that are removed
        meanwhile may be missing."""
        after = 0
        while True:
            page = Page(owner, after, PAGE_MESSAGES, PAGE_BYTES)
            self.append(page)
            self.flush()
            yield from page.messages
            if page.is_end:
                return
            after = page.messages[-1].order_key

    def result(self, future: Future[T]) -> T:
        """Return the result of a future of the storage thread (``Store.ask``, ``Store.compact``)."""
        future.add_done_callback(lambda _: self._arrived.put(lambda: None))
        self._end_turn()
        while not future.done() or future.cancelled():  # cancelled: the thread has ended; ``_wait`` raises its error
            self._wait()
        return future.result()

    def close(self) -> None:
        """Write the waiting operations, make a last checkpoint, close the files. Durable on return."""
        self._end_turn()
        self.store.close()
        unlink_if_there(os, self._next_path)  # the next journal file, made in advance and not needed any more

    def drop(self) -> None:
        """Close the files without a further write."""
        self.store.drop()

    def __enter__(self) -> OfflineStore:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.drop()

    # ---- the loop's part

    def _end_turn(self) -> None:
        turn = list(self._turn)
        self._turn.clear()
        for function in turn:
            function()

    def _wait(self) -> None:
        """Wait for the next result of the storage thread and handle it. Raises the error that ended the store."""
        if self._lost is None:
            self._arrived.get()()
        if self._lost is not None:
            raise self._lost
        self._end_turn()
