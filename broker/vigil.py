"""A watch over the two threads that a master cannot do without, from a third.

A loop that hangs cannot hang up on its clients, and a storage thread that hangs answers nobody; both hold the lock all
the same, because the lock has a thread of its own. So somebody else must notice, and let it go.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.states import LoopHung, StorageHung
from store.threads import Threads

# A volume may be slow for this long without being taken for hung, however short a proof is.
HUNG_SECONDS_MIN = 5.0
# With a proof that never ends, or that no keep-alive renews.
HUNG_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.5


class Vigil:
    """From ``__init__`` until ``end``. ``loop_is_alive`` is called on the loop, about every LOOK_SECONDS.

    ``storage_seen_alive`` says when the storage thread last showed life, ``proof_seconds`` how long a proof of
    ownership holds; nobody is taken for hung before ``hung_seconds_min``. One of ``on_loop_hung`` and
    ``on_storage_hung`` is called, once, on the thread of the vigil.
    """

    def __init__(
        self,
        threads: Threads,
        storage_seen_alive: Callable[[], float],
        proof_seconds: Callable[[], float],
        *,
        hung_seconds_min: float | None = None,
        on_loop_hung: Callable[[LoopHung], None],
        on_storage_hung: Callable[[StorageHung], None],
    ) -> None:
        self._threads = threads
        self._storage_seen_alive = storage_seen_alive
        self._proof_seconds = proof_seconds
        self._hung_seconds_min = HUNG_SECONDS_MIN if hung_seconds_min is None else hung_seconds_min
        self._on_loop_hung = on_loop_hung
        self._on_storage_hung = on_storage_hung
        self._loop_seen_alive = threads.monotonic()
        self._ended = threads.event()
        threads.thread(self._run, "tandemmq-vigil").start()

    def loop_is_alive(self) -> None:
        self._loop_seen_alive = self._threads.monotonic()

    def end(self) -> None:
        """Nothing is noticed any more. At once, from any thread."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            limit = min(max(self._proof_seconds(), self._hung_seconds_min), HUNG_SECONDS_MAX)
            now = self._threads.monotonic()
            silence = now - self._loop_seen_alive
            if silence > limit:
                self._on_loop_hung(LoopHung(f"the event loop has shown no life for {silence:.1f} s"))
                return
            silence = now - self._storage_seen_alive()
            if silence > limit:
                self._on_storage_hung(StorageHung(f"the storage thread has shown no life for {silence:.1f} s"))
                return
