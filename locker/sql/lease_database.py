"""`lease-database`: a lease on one row, which its holder extends before it ends, like ActiveMQ's LeaseDatabaseLocker.

Unlike there, only the database's clock decides when a lease ends, for all brokers; extending requires that the row is
still ours *and* that it has not ended; and a broker that cannot extend knows by its own boot clock, read before the
call, when it must stop. A failed call is no answer: the proof grows old.

Two clocks can go wrong. A database's clock that is set forward ends leases early: two brokers believe that they are
master, until the first one calls again or its proof ends; the journal's fence keeps the store safe. One that is set
back would let a dead master keep its lease for as long; so a standby that saw a lease of our kind unchanged for its
length, by its own boot clock, takes the row by compare-and-set.

Two brokers with one name are not both masters, because of the nonce in the row. The second is refused, once it has seen
that the first is alive: its row changes. A row that does not change was left by a former life of ours; we wait until it
ends.
"""

# proofs: lease

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from tandemmq.locker.contract import NO_PROOF, Holder, LockError, LockRequest, LockSettingsError
from tandemmq.locker.leased import NAMESAKE_RENEWALS, LeasedLocker
from tandemmq.locker.options import Options
from tandemmq.locker.sql.lease import (
    NAME_CHARACTERS_MAX,
    LeaseRow,
    LeaseTable,
    Signature,
    Watch,
    holder_in,
    new_nonce,
    read_signature,
    signature_of,
)

logger = logging.getLogger(__name__)

#: A row of ours that is unchanged for its lease and this part of it more, by our own clock, has expired.
SLACK: Final = 0.25
#: A standby polls again after this at the earliest, also when a lease is about to end.
POLL_SECONDS_MIN: Final = 0.01
#: Number of tries to release a lease.
RELEASES_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Settings of `[locker]` for this kind, without the database.

    lease_holder_id                  the name in the row; default: the broker's
    max_allowable_diff_from_db_time  warn of a larger difference between the database's clock and ours; 0: no check
    """

    lease_holder_id: str
    max_allowable_diff_seconds: float = 0.0

    @classmethod
    def read(cls, options: Options, name: str) -> LeaseSettings:
        """Read the settings. Raises LockSettingsError."""
        holder_id = options.text("lease_holder_id", name) or name
        is_plain = holder_id.isascii() and holder_id.isprintable() and not {"|", " "} & set(holder_id)
        if not is_plain or len(holder_id) > NAME_CHARACTERS_MAX:
            expected = f"at most {NAME_CHARACTERS_MAX} printable characters, no blank and no '|'"
            raise LockSettingsError("lease_holder_id", holder_id, expected)
        return cls(holder_id, options.number("max_allowable_diff_from_db_time", 0.0) / 1000)


class LeaseDatabaseLocker(LeasedLocker):
    """Lease of `lock_acquire_sleep_interval`, extended every `lock_keep_alive_period`.

    `locker.kinds` makes `settings` and `open_table` from the request; the simulator gives its own. A table is opened
    for the thread of the lock, and one more for each thread that reads the holder meanwhile.
    """

    kind = "lease-database"

    def __init__(
        self,
        request: LockRequest,
        settings: LeaseSettings,
        open_table: Callable[[], LeaseTable],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(request)
        self._lease = settings
        self._open_table = open_table
        self._table = open_table()
        self._asking: list[LeaseTable] = []
        self._wall_clock = wall_clock
        self._signature: Signature | None = None  # of this life; it may be in the row from the first try on
        self._known_as: tuple[str, ...] = ()  # signatures of ours that may be in the row, the newest last
        self._watch = Watch()
        self._remaining_seconds = math.inf
        self._clocks_differ = False

    @property
    def where(self) -> str:
        return self._table.where

    @property
    def poll_seconds(self) -> float:
        """Seconds between polls: short enough to lose little time, and ending when the lease last seen ends."""
        return max(min(super().poll_seconds, self._remaining_seconds), POLL_SECONDS_MIN)

    # Taking it

    def try_acquire(self) -> bool:
        if self._is_mine:
            return not self._is_lost
        self._remaining_seconds = math.inf
        row = self._read()
        me = self._me(row)
        known_at = self.clock.now()
        if row.name in self._known_as and not row.is_free:
            taken = self._table.renew(me, self._lease_ms, self._known_as)  # a former try whose answer was lost
        elif row.is_free:
            taken = self._table.obtain(me, self._lease_ms)
        elif self._is_left(row):
            logger.warning("%s: %s has not extended its lease; the database's clock was set back", self.where, row.name)
            taken = self._table.take_over(me, self._lease_ms, row)
        else:
            taken = False
        if taken:
            self._is_mine, self._is_lost = True, False
            self._proof = self._proof_since(known_at)  # prove: lease-taken-before "known_at" -> "self.clock.now()"
        else:
            self._wait_for(row)
        return taken

    def _read(self) -> LeaseRow:
        before = self._wall_clock()
        row = self._table.read()
        after = self._wall_clock()
        self._watch.see(row, self.clock.now())
        self._compare_clocks(row.now_ms / 1000, before, after)
        return row

    def _me(self, row: LeaseRow) -> str:
        """Return our signature, the same in every try of this life: an answer may be lost, and the row be ours."""
        if self._signature is None:
            nonce = new_nonce(self.request.random)
            holder = replace(self.request.holder, since_ms=row.now_ms)
            self._signature = signature_of(holder, self._lease.lease_holder_id, nonce, self._lease_ms)
            self._holder, self._known_as = self._signature.holder, (self._signature.text,)
        return self._signature.text

    def _is_left(self, row: LeaseRow) -> bool:
        """Return whether the lease was not extended in time, by our own clock. An ActiveMQ broker does not write the
        length of its leases."""
        signature = read_signature(row.name or "")
        if signature is None:
            return False
        patience_seconds = signature.lease_ms / 1000 * (1 + SLACK)  # prove: slack-of-a-left-lease " * (1 + SLACK)"
        return self._watch.unchanged_seconds(self.clock.now()) > patience_seconds  # prove: left-lease-stood-unchanged

    def _wait_for(self, row: LeaseRow) -> None:
        """Note that another broker has the lease. Raises LockRefused, at this poll or the next, when that is a live
        namesake."""
        self._remaining_seconds = row.remaining_seconds or math.inf
        signature = read_signature(row.name or "")
        is_namesake = signature is not None and signature.holder.name == self._lease.lease_holder_id
        self._finds(is_namesake)
        if is_namesake and self._watch.renewals >= NAMESAKE_RENEWALS:
            self._refuse_beside(holder_in(row), setting="broker.name, or locker.lease_holder_id")

    # Keeping it

    def keep_alive(self) -> bool:
        if not self._is_mine or self._is_lost or self._signature is None:
            return False
        known_at = self.clock.now()
        if self._table.renew(self._signature.text, self._lease_ms, self._known_as):
            self._known_as = (self._signature.text,)
            self._proof = self._proof_since(known_at)  # prove: lease-renewed-before "known_at" -> "self.clock.now()"
        else:
            self._is_lost, self._proof = True, NO_PROOF  # prove: lost-lease-is-lost
        return not self._is_lost

    def _say(self, holder: Holder) -> None:
        assert self._signature is not None, "an owner has signed"
        self._holder, self._signature = holder, replace(self._signature, holder=holder)
        self._known_as = (*self._known_as[-1:], self._signature.text)

    def release(self) -> None:
        known_as = self._known_as
        self._forget()
        self._signature, self._known_as = None, ()
        if known_as:
            self._free(known_as)
        self._table.close()
        while self._asking:
            self._asking.pop().close()

    def _free(self, known_as: tuple[str, ...]) -> None:
        """Free the row, with one more try: a connection that was lost meanwhile shows at the first try."""
        for tries_left in reversed(range(RELEASES_MAX)):
            try:
                self._table.free(known_as)
                return
            except LockError as error:
                if not tries_left:
                    logger.warning("%s is not released, and ends by itself: %s", self.where, error)

    # Reporting

    def holder(self) -> Holder | None:
        """Return the holder. Any thread may call it: each calling thread uses a connection of its own meanwhile."""
        mine = self._mine
        if mine is not None:
            return mine
        table = self._asking.pop() if self._asking else self._open_table()
        try:
            row = table.read()
        except LockError:
            table.close()
            raise
        self._asking.append(table)
        return holder_in(row)

    @property
    def _lease_ms(self) -> int:
        return max(1, round(self.lease_seconds * 1000))

    def _compare_clocks(self, database: float, before: float, after: float) -> None:
        allowed = self._lease.max_allowable_diff_seconds
        apart = max(before - database, database - after)
        differ = 0 < allowed < apart
        if differ and not self._clocks_differ:
            logger.warning(
                "the clock of the database says %s and this host's %s: %.3f s apart, and "
                "max_allowable_diff_from_db_time is %g s. Leases go by the database's clock",
                _shown(database),
                _shown(after),
                apart,
                allowed,
            )
        self._clocks_differ = differ


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
