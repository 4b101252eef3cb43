"""Common part of the kinds of lock with a lease: length, polls of a standby, unsafe settings.

The length of a lease is `lock_acquire_sleep_interval`, as in ActiveMQ's lease-database-locker. The pause between
renewals is `lock_keep_alive_period`.
"""

# proofs: lease

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockLost, LockRefused, LockRequest, Proof

#: Polls of a standby in the length of a lease, and the longest pause between two polls, in seconds.
POLLS_PER_LEASE: Final = 10
POLL_SECONDS_MAX: Final = 0.2
#: Limit of one request in seconds. A request of a renewal may also take only this part of a lease (1/3), so that there
#: is time for another renewal.
CALL_SECONDS_MAX: Final = 2.0
CALLS_PER_LEASE: Final = 3
#: Part of a lease that a proof does not include, because two clocks may run at slightly different speeds.
MARGIN: Final = 0.1
#: Number of observed renewals that show that a broker with our name is alive. A single renewal may be the last one of a
#: former life of this broker.
NAMESAKE_RENEWALS: Final = 2


class LeasedLocker(Locker):
    """Locker whose lock expires `lease_seconds` after the last renewal at the latest."""

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        self._has_met_others = False
        self._is_refused = False
        self._holder: Holder | None = None  # this broker, as published in the lock; None: not published
        self._is_mine = False
        self._is_lost = False

    @property
    def _mine(self) -> Holder | None:
        """Holder entry of this broker while it owns the lock, else None. Any thread."""
        holder = self._holder
        return holder if holder is not None and self._is_mine and not self._is_lost else None

    def announce(self, epoch: int, admin: str | None = None) -> None:
        mine = self._mine
        if mine is None:
            raise LockLost(f"{self.where} is not held by this process: nothing to announce")
        self._set_holder(replace(mine, epoch=epoch, admin=admin or mine.admin))
        if not self.keep_alive():
            raise LockLost(f"{self.where} is no longer held by this process: nothing to announce")

    def _set_holder(self, holder: Holder) -> None:
        """Set the holder entry that the next renewal publishes."""
        self._holder = holder

    def _forget(self) -> None:
        """End this life of the lock."""
        self._holder, self._is_mine, self._is_lost, self._proof = None, False, False, NO_PROOF

    @property
    def lease_seconds(self) -> float:
        return self.settings.lock_acquire_sleep_interval_seconds

    @property
    def poll_seconds(self) -> float:
        return min(self.lease_seconds / POLLS_PER_LEASE, POLL_SECONDS_MAX)

    @property
    def unsafe(self) -> str | None:
        period, lease = self.settings.lock_keep_alive_period_seconds, self.lease_seconds
        if period <= 0:
            return f"lock_keep_alive_period is 0: ownership is not proved again, and ends after {lease:g} s"
        if lease <= period:
            return (
                f"lock_acquire_sleep_interval, the length of the lease, is {lease:g} s and not longer than "
                f"lock_keep_alive_period, {period:g} s: ownership ends before it is proved again"
            )
        return None

    @property
    def call_seconds_max(self) -> float:
        """Limit in seconds of a request to the lock that is part of a renewal."""
        return min(self.lease_seconds / CALLS_PER_LEASE, CALL_SECONDS_MAX)

    def _proof_since(self, known_at_seconds: float) -> Proof:
        """Return the proof that results from a successful request that was sent at `known_at_seconds`."""
        seconds = self.lease_seconds * (1 - MARGIN)  # prove: proof-ends-before-lease " * (1 - MARGIN)"
        return Proof(known_at_seconds, seconds)

    def _note_namesake(self, is_namesake: bool) -> None:
        """Note a poll that found other brokers ahead of this one. `is_namesake`: all of them have this broker's
        name."""
        self._has_met_others = self._has_met_others or not is_namesake

    def _refuse_namesake(self, namesake: Holder | None, *, has: str = "held", setting: str = "broker.name") -> None:
        """Refuse to wait for a live broker with this broker's name: raise LockRefused at this poll or at the next one.

        `setting` is the setting that must differ between two brokers. The namesake is found only after some polls,
        because a former, killed process of this broker has the same name. If no other broker was seen until then, the
        next poll counts as the first one: its error ends the start of this broker.
        """
        if self._has_met_others or self._is_refused:
            raise LockRefused(
                f"{self.where} is {has} by another broker with the same name: {namesake}. "
                f"Give each broker its own name ({setting})"
            )
        self._is_refused = True
        self._has_polled = False
