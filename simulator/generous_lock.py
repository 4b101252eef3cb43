"""A lock that is given to one more broker while another one has it, as often as a fault requests.

Each broker has its real locker; a poll that the lock refuses is granted here. Then both brokers can prove that the lock
is theirs, and neither can learn of the other one by the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandemmq.locker.contract import NO_PROOF, Holder, Locker, Proof


@dataclass(slots=True)
class Grants:
    """Number of polls to grant although another broker has the lock: ``left``. ``period``: a grant ends with the period
    in which it was given."""

    left: int = 0
    period: int = 0

    def end(self) -> None:
        """End the grants: from now on the lock has one owner at most."""
        self.left = 0
        self.period += 1


class GenerousLocker(Locker):
    """Locker ``inner``, with the additional grants. ``granted`` is called when one was taken."""

    kind = "generous"

    def __init__(self, inner: Locker, grants: Grants, granted: Callable[[], None]) -> None:
        super().__init__(inner.request)
        self._inner = inner
        self._grants = grants
        self._granted = granted
        self._period: int | None = None  # of the grant of this broker

    @property
    def where(self) -> str:
        return self._inner.where

    @property
    def unsafe(self) -> str | None:
        return self._inner.unsafe

    @property
    def lease_seconds(self) -> float | None:
        return self._inner.lease_seconds

    @property
    def poll_seconds(self) -> float:
        return self._inner.poll_seconds

    def silence_seconds(self) -> float | None:
        return self._inner.silence_seconds()

    def waiters(self) -> list[Holder] | None:
        return self._inner.waiters()

    def proof(self) -> Proof:
        return self._inner.proof() if self._period is None else self._proof

    def try_acquire(self) -> bool:
        if self._period is not None:
            return self._is_granted
        if self._inner.try_acquire():
            return True
        if not self._grants.left:
            return False
        self._grants.left -= 1
        self._period = self._grants.period
        self._proof = Proof(self.clock.now(), self._proof_seconds())
        self._granted()
        return True

    def keep_alive(self) -> bool:
        if self._period is None:
            return self._inner.keep_alive()
        self._proof = Proof(self.clock.now(), self._proof_seconds()) if self._is_granted else NO_PROOF
        return self._is_granted

    def announce(self, epoch: int, admin: str | None = None) -> None:
        if self._period is None:
            self._inner.announce(epoch, admin)

    def release(self) -> None:
        self._period, self._proof = None, NO_PROOF
        self._inner.release()

    def holder(self) -> Holder | None:
        return self._inner.holder() if self._period is None else self.request.holder

    @property
    def _is_granted(self) -> bool:
        return self._period == self._grants.period
