"""Lock `lease-database`: a lease on one row, which its holder renews before it ends, as in ActiveMQ's
LeaseDatabaseLocker.

    ID            1
    TIME          when the lease ends, in ms since 1970 by the database's clock; NULL or past: free
    BROKER_NAME   the holder

This is ActiveMQ's table ACTIVEMQ_LOCK, without an additional column. TandemMQ writes further values into BROKER_NAME.
An ActiveMQ broker reads all of it as the name of another broker. A name without these values is that of an ActiveMQ
broker:

    name|epoch|nonce|lease in ms|since in ms|pid|host|admin URL

Each life of a lock has a new nonce. So a broker distinguishes its own row from one that another broker with the same
name, or its own former life, has written. If a row with our name and another nonce is renewed, a live broker has our
name, and this broker is refused. If it is not renewed, a former life of ours wrote it, and we wait until the lease
ends.

Differences from ActiveMQ: Only the database's clock decides when a lease ends. A renewal requires that the row is still
ours *and* that the lease has not ended. A broker that cannot renew knows by its own boot clock, read before the call,
when it must stop. A failed call changes nothing: the proof expires if no later call succeeds.

If the database's clock is set forward, leases end early: two brokers are master until the first one calls again or its
proof expires; the journal's fence protects the store. If the clock is set back, the lease of a dead master lasts longer
by the same time. So a standby also measures with its own boot clock: if the lease of a TandemMQ broker has not been
renewed for longer than its length, the standby takes the row by compare-and-set.

This module contains no SQL: `LeaseTable` is the interface that a database must provide.
"""

# proofs: lease

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from tandemmq.locker.contract import NO_PROOF, Holder, LockError, LockRequest, LockSettingsError
from tandemmq.locker.leased import NAMESAKE_RENEWALS, LeasedLocker
from tandemmq.locker.options import Options

#: BROKER_NAME is a VARCHAR(250).
SIGNATURE_CHARACTERS_MAX: Final = 250
NAME_CHARACTERS_MAX: Final = 100
_SEPARATOR: Final = "|"
_FIELDS: Final = 8
_NONCE_BITS: Final = 48


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """Content of the row, and the time by the database's clock when it was read."""

    name: str | None
    ends_ms: int | None
    now_ms: int

    @property
    def is_free(self) -> bool:
        return self.ends_ms is None or self.ends_ms <= self.now_ms  # prove: lease-has-ended

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the lease ends, by the database's clock; 0: the row is free."""
        return 0.0 if self.is_free or self.ends_ms is None else (self.ends_ms - self.now_ms) / 1000


@dataclass(frozen=True, slots=True)
class Signature:
    """Value that a TandemMQ broker writes into BROKER_NAME."""

    holder: Holder
    nonce: str
    lease_ms: int

    @property
    def text(self) -> str:
        """Value of BROKER_NAME. If it is longer than SIGNATURE_CHARACTERS_MAX, the admin URL is omitted, then the host
        is shortened."""
        text = self._text(self.holder.host or "", self.holder.admin or "")
        if len(text) > SIGNATURE_CHARACTERS_MAX:
            text = self._text(self.holder.host or "", "")
        if len(text) > SIGNATURE_CHARACTERS_MAX:
            room = SIGNATURE_CHARACTERS_MAX - len(self._text("", ""))
            text = self._text((self.holder.host or "")[:room], "")
        return text

    def _text(self, host: str, admin: str) -> str:
        numbers = (self.holder.epoch, self.nonce, self.lease_ms, self.holder.since_ms, self.holder.pid)
        shown = ("" if number is None else str(number) for number in numbers)
        return _SEPARATOR.join((self.holder.name, *shown, host, admin))


def read_signature(text: str) -> Signature | None:
    """Return the signature in a value of BROKER_NAME, or None if no TandemMQ broker wrote it."""
    parts = text.split(_SEPARATOR)
    if len(parts) != _FIELDS:
        return None
    name, epoch, nonce, lease_ms, since_ms, pid, host, admin = parts
    try:
        holder = Holder(name, _number(epoch), _number(pid), host or None, admin or None, _number(since_ms))
        return Signature(holder, nonce, int(lease_ms))
    except ValueError:
        return None


def holder_in(row: LeaseRow) -> Holder | None:
    """Return the holder that the row names, or None if the row is free."""
    if row.is_free:
        return None
    signature = read_signature(row.name or "")
    return signature.holder if signature is not None else Holder(row.name or "a broker that left no name")


def _number(text: str) -> int | None:
    return int(text) if text else None


class LeaseTable(Protocol):
    """Interface of the row, for one thread at a time. "Now" is the time by the database's clock.

    Each method is one atomic, committed step with a time limit. It raises LockUnavailable if the step may or may not
    have happened, LockRefused if it did not happen and a retry does not help.
    """

    @property
    def where(self) -> str:
        """Name of the row, without a password."""
        ...

    def read(self) -> LeaseRow:
        """Return the committed row. If the table or the row is missing, and may be created, it is created first."""
        ...

    def obtain(self, name: str, lease_ms: int) -> bool:
        """Write `name` and the end now + `lease_ms` if the row is free now. Return whether it was free."""
        ...

    def renew(self, name: str, lease_ms: int, known_as: Sequence[str]) -> bool:
        """Write `name` and the end now + `lease_ms` if the row has one of the names `known_as` and its lease has not
        ended. Return whether it was written."""
        ...

    def take_over(self, name: str, lease_ms: int, seen: LeaseRow) -> bool:
        """Write `name` and the end now + `lease_ms` if name and end of the row equal those of `seen`, even if the lease
        has not ended. Return whether it was written."""
        ...

    def free(self, known_as: Sequence[str]) -> None:
        """Make the row free if it has one of the names `known_as`; otherwise do nothing."""
        ...

    def close(self) -> None:
        """Close the connection; the next call connects again. Never raises; any thread."""
        ...


@dataclass(slots=True)
class Watch:
    """Observation of the row by a standby: `since_seconds` is the time by its own boot clock since which the row is
    unchanged, `renewals` the number of observed renewals with the same nonce."""

    name: str | None = None
    ends_ms: int | None = None
    since_seconds: float = 0.0
    renewals: int = 0
    nonce: str | None = None

    def see(self, row: LeaseRow, now_seconds: float) -> None:
        """Note a row that was read. `now_seconds` is the time by the boot clock after the read."""
        if (row.name, row.ends_ms) == (self.name, self.ends_ms):
            return
        signature = read_signature(row.name or "")
        is_known = self.nonce is not None and signature is not None and signature.nonce == self.nonce
        self.renewals = self.renewals + 1 if is_known else 0
        self.nonce = signature.nonce if signature is not None else None
        self.name, self.ends_ms, self.since_seconds = row.name, row.ends_ms, now_seconds  # prove: watch-begins-anew

    def unchanged_seconds(self, now_seconds: float) -> float:
        return now_seconds - self.since_seconds


def signature_of(holder: Holder, name: str, chance: random.Random, lease_ms: int) -> Signature:
    """Return the signature of a new life of a lock, with a random nonce that no other life has. Its epoch is not known
    yet."""
    nonce = f"{chance.getrandbits(_NONCE_BITS):0{_NONCE_BITS // 4}x}"
    return Signature(replace(holder, name=name, epoch=None), nonce, lease_ms)


logger = logging.getLogger(__name__)

#: A standby takes the lease of a TandemMQ broker if it was not renewed for its length and this part of it, by the
#: standby's boot clock.
SLACK: Final = 0.25
#: Shortest pause between two polls of a standby, used if a lease is about to end.
POLL_SECONDS_MIN: Final = 0.01
#: Number of attempts to release a lease.
RELEASES_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Settings of `[locker]` for this kind, without those of the database.

    lease_holder_id                  the name in the row; default: the broker's name
    max_allowable_diff_from_db_time  log a warning if the clocks of database and host differ by more; 0: no check
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
    """Lease of length `lock_acquire_sleep_interval`, renewed every `lock_keep_alive_period`.

    `locker.sql.kinds` makes `settings` and `open_table` from the request; the simulator provides its own. The thread of
    the lock uses one table; other threads that call `holder` at the same time use one each.
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
        self._reader_tables: list[LeaseTable] = []
        self._wall_clock = wall_clock
        self._signature: Signature | None = None  # of this life; it may be in the row from the first attempt on
        self._known_as: tuple[str, ...] = ()  # our signatures that may be in the row, the newest last
        self._watch = Watch()
        self._remaining_seconds = math.inf
        self._clocks_differ = False

    @property
    def where(self) -> str:
        return self._table.where

    @property
    def poll_seconds(self) -> float:
        """Seconds until the next poll: the configured interval, or less if the observed lease ends before."""
        return max(min(super().poll_seconds, self._remaining_seconds), POLL_SECONDS_MIN)

    # Acquiring

    def try_acquire(self) -> bool:
        if self._is_mine:
            return not self._is_lost
        self._remaining_seconds = math.inf
        row = self._read()
        me = self._own_text(row)
        known_at = self.clock.now()
        if row.name in self._known_as and not row.is_free:
            taken = self._table.renew(me, self._lease_ms, self._known_as)  # the answer to an earlier attempt was lost
        elif row.is_free:
            taken = self._table.obtain(me, self._lease_ms)
        elif self._is_abandoned(row):
            logger.warning("%s: %s has not extended its lease; the database's clock was set back", self.where, row.name)
            taken = self._table.take_over(me, self._lease_ms, row)
        else:
            taken = False
        if taken:
            self._is_mine, self._is_lost = True, False
            self._proof = self._proof_since(known_at)  # prove: lease-taken-before "known_at" -> "self.clock.now()"
        else:
            self._wait_behind(row)
        return taken

    def _read(self) -> LeaseRow:
        before = self._wall_clock()
        row = self._table.read()
        after = self._wall_clock()
        self._watch.see(row, self.clock.now())
        self._compare_clocks(row.now_ms / 1000, before, after)
        return row

    def _own_text(self, row: LeaseRow) -> str:
        """Return our signature. All attempts of a life use the same one: if the answer to an attempt is lost, the next
        attempt recognises the signature in the row."""
        if self._signature is None:
            holder = replace(self.request.holder, since_ms=row.now_ms)
            self._signature = signature_of(holder, self._lease.lease_holder_id, self.request.random, self._lease_ms)
            self._holder, self._known_as = self._signature.holder, (self._signature.text,)
        return self._signature.text

    def _is_abandoned(self, row: LeaseRow) -> bool:
        """Return whether the lease was not renewed in time, by our own clock. False for an ActiveMQ broker, which does
        not write the length of its lease."""
        signature = read_signature(row.name or "")
        if signature is None:
            return False
        expiry_seconds = signature.lease_ms / 1000 * (1 + SLACK)  # prove: slack-of-a-left-lease " * (1 + SLACK)"
        return self._watch.unchanged_seconds(self.clock.now()) > expiry_seconds  # prove: left-lease-stood-unchanged

    def _wait_behind(self, row: LeaseRow) -> None:
        """Note that another broker has the lease. Raises LockRefused, at this poll or the next one, if that is a live
        broker with our own name."""
        self._remaining_seconds = row.remaining_seconds or math.inf
        signature = read_signature(row.name or "")
        is_namesake = signature is not None and signature.holder.name == self._lease.lease_holder_id
        self._note_namesake(is_namesake)
        if is_namesake and self._watch.renewals >= NAMESAKE_RENEWALS:
            self._refuse_namesake(holder_in(row), setting="broker.name, or locker.lease_holder_id")

    # Renewing

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

    def _set_holder(self, holder: Holder) -> None:
        assert self._signature is not None, "an owner has a signature"
        self._holder, self._signature = holder, replace(self._signature, holder=holder)
        self._known_as = (*self._known_as[-1:], self._signature.text)

    def release(self) -> None:
        known_as = self._known_as
        self._forget()
        self._signature, self._known_as = None, ()
        if known_as:
            self._free(known_as)
        self._table.close()
        while self._reader_tables:
            self._reader_tables.pop().close()

    def _free(self, known_as: tuple[str, ...]) -> None:
        """Free the row. There is a second attempt, because the first one fails if the connection is lost."""
        for tries_left in reversed(range(RELEASES_MAX)):
            try:
                self._table.free(known_as)
                return
            except LockError as error:
                if not tries_left:
                    logger.warning("%s is not released, and will expire: %s", self.where, error)

    # Reporting

    def holder(self) -> Holder | None:
        """Return the holder. Any thread: each call uses its own connection."""
        mine = self._mine
        if mine is not None:
            return mine
        table = self._reader_tables.pop() if self._reader_tables else self._open_table()
        try:
            row = table.read()
        except LockError:
            table.close()
            raise
        self._reader_tables.append(table)
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
                "the clock of the database is %s, the clock of this host %s: they are %.3f s apart, and "
                "max_allowable_diff_from_db_time is %g s. Only the database's clock decides when a lease ends",
                _shown(database),
                _shown(after),
                apart,
                allowed,
            )
        self._clocks_differ = differ


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
