"""Lock `memory`: a lock between the brokers of one process.

It is for tests and the simulator, and for a broker without a standby. On request it simulates the faults of a lock: it
is granted twice, is lost, or gives no answer.
"""

# proofs: memory-lock

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockLost, LockRequest, LockUnavailable, Proof

#: Part of a lease that a proof does not include.
MARGIN: Final = 0.02


@dataclass(slots=True)
class _Lease:
    holder: Holder
    expires_at_seconds: float


class MemoryLock:
    """Lock that several MemoryLocker share. With `lease_seconds` it expires if it is not renewed; without, it is held
    until it is released. Any thread."""

    def __init__(self, name: str = "memory", lease_seconds: float = math.inf) -> None:
        self.name = name
        self.lease_seconds = lease_seconds
        self._guard = threading.Lock()
        self._leases: dict[object, _Lease] = {}
        self._grants_left = 0
        self._failure: str | None = None

    # Simulated faults

    def grant_twice(self, times: int = 1) -> None:
        """Grant the lock to the next `times` brokers that poll, although it is held: both brokers then own it."""
        with self._guard:
            self._grants_left += times

    def steal(self) -> None:
        """Take the lock from its holders. Their next keep-alive returns False, and the next poll gets the lock."""
        with self._guard:
            self._leases.clear()

    def fail(self, reason: str | None) -> None:
        """Let all calls raise LockUnavailable with this reason; None ends the fault."""
        with self._guard:
            self._failure = reason

    # Calls of MemoryLocker

    def take(self, who: object, holder: Holder, now_seconds: float) -> bool:
        with self._guard:
            self._answer()
            others = [other for other, lease in self._leases.items() if lease.expires_at_seconds > now_seconds]
            if others and not self._grants_left:  # prove: memory-lock-goes-to-one
                return False
            if others:
                self._grants_left -= 1
            else:
                self._leases.clear()
            self._leases[who] = _Lease(holder, now_seconds + self.lease_seconds)
            return True

    def renew(self, who: object, now_seconds: float) -> bool:
        with self._guard:
            self._answer()
            lease = self._leases.get(who)
            if lease is None or lease.expires_at_seconds <= now_seconds:  # prove: memory-renews-before-end
                return False
            lease.expires_at_seconds = now_seconds + self.lease_seconds
            return True

    def rename(self, who: object, holder: Holder) -> None:
        with self._guard:
            self._answer()
            if who in self._leases:
                self._leases[who].holder = holder

    def drop(self, who: object) -> None:
        with self._guard:
            self._leases.pop(who, None)

    def holder(self, now_seconds: float) -> Holder | None:
        with self._guard:
            self._answer()
            live = [lease.holder for lease in self._leases.values() if lease.expires_at_seconds > now_seconds]
            return live[-1] if live else None

    def _answer(self) -> None:
        if self._failure is not None:
            raise LockUnavailable(f"the lock {self.name} is unavailable: {self._failure}")


class MemoryLocker(Locker):
    """Handle of a MemoryLock. Without `lock` it makes its own lock."""

    kind = "memory"

    def __init__(self, request: LockRequest, lock: MemoryLock | None = None) -> None:
        super().__init__(request)
        self.lock = lock if lock is not None else MemoryLock()
        self._holder: Holder | None = None
        self._is_lost = False

    @property
    def where(self) -> str:
        return f"the lock {self.lock.name}"

    @property
    def unsafe(self) -> str | None:
        return "a lock in memory does not exclude brokers of other processes"

    @property
    def lease_seconds(self) -> float | None:
        return None if math.isinf(self.lock.lease_seconds) else self.lock.lease_seconds

    def try_acquire(self) -> bool:
        if self._holder is not None:
            return not self._is_lost
        known_at = self.clock.now()
        holder = replace(self.request.holder, epoch=None, since_ms=time.time_ns() // 1_000_000)
        if not self.lock.take(self, holder, known_at):
            return False
        self._holder = holder
        self._proof = self._proof_since(known_at)  # prove: memory-taken-before "known_at" -> "self.clock.now()"
        return True

    def keep_alive(self) -> bool:
        if self._holder is None or self._is_lost:
            return False
        known_at = self.clock.now()
        self._is_lost = not self.lock.renew(self, known_at)
        proof = self._proof_since(known_at)  # prove: memory-renewed-before "known_at" -> "self.clock.now()"
        self._proof = NO_PROOF if self._is_lost else proof
        return not self._is_lost

    def announce(self, epoch: int, admin: str | None = None) -> None:
        if self._holder is None or not self.keep_alive():
            raise LockLost(f"{self.where} is not held by this process: nothing to announce")
        self._holder = replace(self._holder, epoch=epoch, admin=admin or self._holder.admin)
        self.lock.rename(self, self._holder)

    def release(self) -> None:
        self._holder, self._is_lost, self._proof = None, False, NO_PROOF
        self.lock.drop(self)

    def holder(self) -> Holder | None:
        return self.lock.holder(self.clock.now())

    def _proof_since(self, known_at_seconds: float) -> Proof:
        seconds = self.lock.lease_seconds * (1 - MARGIN)  # prove: memory-proof-ends-before-lease " * (1 - MARGIN)"
        return Proof(known_at_seconds, seconds)
