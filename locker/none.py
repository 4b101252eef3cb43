"""Locker for `use_lock = false`: there is no lock. Each broker owns it at once; it is reported as unsafe.

The setting is ActiveMQ's useLock, "intended primarily for use during development". The fence still protects the store
from two masters.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockRequest, Proof


class Unlocked(Locker):
    """Locker without a lock: the first poll succeeds, and ownership never ends."""

    kind = "none"

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        self._holder: Holder | None = None

    @property
    def where(self) -> str:
        return f"no lock (use_lock = false) on {self.request.directory}"

    @property
    def unsafe(self) -> str | None:
        return "use_lock is false: nothing prevents a second master"

    def try_acquire(self) -> bool:
        self._holder = replace(self.request.holder, since_ms=time.time_ns() // 1_000_000)
        self._proof = Proof(self.clock.now(), math.inf)
        return True

    def keep_alive(self) -> bool:
        return self._holder is not None

    def announce(self, epoch: int, admin: str | None = None) -> None:
        holder = self._holder or self.request.holder
        self._holder = replace(holder, epoch=epoch, admin=admin or holder.admin)

    def release(self) -> None:
        self._holder, self._proof = None, NO_PROOF

    def holder(self) -> Holder | None:
        return self._holder
