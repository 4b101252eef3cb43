"""Common part of the kinds with a lease: its length, the polls of a standby, what is unsafe.

The length of a lease is `lock_acquire_sleep_interval`, as for ActiveMQ's lease-database-locker;
`lock_keep_alive_period` is the pause between renewals.
"""

# proofs: lease

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockLost, LockRefused, LockRequest, Proof

#: Polls of a standby in the length of a lease, and the longest pause between two polls, in seconds.
POLLS_PER_LEASE: Final = 10
POLL_SECONDS_MAX: Final = 0.2
#: Limit of one request; for a renewal also this part of a lease, so that there is time for another.
CALL_SECONDS_MAX: Final = 2.0
CALLS_PER_LEASE: Final = 3
#: Part of a lease that is not relied on: a clock may run a little faster than another.
MARGIN: Final = 0.1
#: Number of renewals by a broker with our name that show a live namesake; one renewal may be the last of a former life.
NAMESAKE_RENEWALS: Final = 2


class LeasedLocker(Locker):
    """Kind whose lock outlives its holder by `lease_seconds` at most."""

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        self._has_met_others = False
        self._is_refused = False
        self._holder: Holder | None = None  # this broker, as it was announced; None: it was not
        self._is_mine = False
        self._is_lost = False

    @property
    def _mine(self) -> Holder | None:
        """Holder entry of this broker, as long as the lock is known to be ours. Any thread."""
        holder = self._holder
        return holder if holder is not None and self._is_mine and not self._is_lost else None

    def announce(self, epoch: int, admin: str | None = None) -> None:
        mine = self._mine
        if mine is None:
            raise LockLost(f"{self.where} is not ours: nothing to announce there")
        self._say(replace(mine, epoch=epoch, admin=admin or mine.admin))
        if not self.keep_alive():
            raise LockLost(f"{self.where} is not ours any more: nothing to announce there")

    def _say(self, holder: Holder) -> None:
        """Set what the next renewal publishes about this broker."""
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
        """Return the proof that an answer gives whose request was sent at that time."""
        seconds = self.lease_seconds * (1 - MARGIN)  # prove: proof-ends-before-lease " * (1 - MARGIN)"
        return Proof(known_at_seconds, seconds)

    def _finds(self, is_namesake: bool) -> None:
        """Note, at each poll that found other brokers in front, whether all of them have our own name."""
        self._has_met_others = self._has_met_others or not is_namesake

    def _refuse_beside(self, namesake: Holder | None, *, has: str = "held", setting: str = "broker.name") -> None:
        """Refuse to wait behind a live broker with our own name. Raises LockRefused, at the next poll if not at this
        one; `setting` is what must differ between two brokers.

        It may show only after a while, since our former, killed process has our name too. A broker that has met no
        other broker until then is refused as at its first poll, which ends a start.
        """
        if self._has_met_others or self._is_refused:
            raise LockRefused(
                f"{self.where} is {has} by a broker that has our own name: {namesake}. "
                f"Give each broker a name of its own ({setting})"
            )
        self._is_refused = True
        self._was_asked = False
