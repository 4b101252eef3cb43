"""Whether a thread that says nothing still works: one that computes is busy, one that waits for a disk is not."""

from __future__ import annotations

from store.threads import Threads


class Pulse:
    """Of the thread ``native_id``, from now on. Whoever asks must do so now and then: it is noticed only then."""

    __slots__ = ("_cpu_seconds", "_native_id", "_seen_busy", "_threads")

    def __init__(self, threads: Threads, native_id: int) -> None:
        self._threads = threads
        self._native_id = native_id
        self._cpu_seconds = threads.cpu_seconds(native_id)
        self._seen_busy = threads.monotonic()

    def seen_busy(self) -> float:
        """When, on the monotonic clock, the thread was last found to have computed something."""
        cpu_seconds = self._threads.cpu_seconds(self._native_id)
        if cpu_seconds > self._cpu_seconds:
            self._cpu_seconds = cpu_seconds
            self._seen_busy = self._threads.monotonic()
        return self._seen_busy
