"""`lease-database`: a lease on one row, which its holder extends before it ends, like ActiveMQ's LeaseDatabaseLocker.

    ID            1
    TIME          when the lease ends, in ms since 1970 by the database's clock; NULL or past: free
    BROKER_NAME   its holder

This is ActiveMQ's table ACTIVEMQ_LOCK, without an additional column. Our brokers write further values into BROKER_NAME.
An ActiveMQ broker sees the name of another broker there; a name without these values belongs to an ActiveMQ broker:

    name|epoch|nonce|lease in ms|since in ms|pid|host|admin URL

Each life of a lock has a new nonce. So a broker never takes a row for its own that another broker with the same name,
or its own former life, has written. If the row has our name and changes, a live broker has the same name: ours is
refused. If such a row does not change, a former life of ours has left it, and we wait until the lease ends.

Unlike in ActiveMQ, only the database's clock decides when a lease ends, for all brokers; extending requires that the
row is still ours *and* that it has not ended; and a broker that cannot extend knows by its own boot clock, read before
the call, when it must stop. A call that fails decides nothing: the proof expires if no later call succeeds.

Two clocks can go wrong. A database's clock that is set forward ends leases early: two brokers believe that they are
master, until the first one calls again or its proof ends; the journal's fence keeps the store safe. A clock that is set
back would extend the lease of a dead master by the same time. So a standby measures with its own boot clock: if a lease
of one of our brokers has not changed for its length, it takes the row by compare-and-set.

This module contains no SQL: `LeaseTable` is the interface that a database must provide, each verb in one atomic step.
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
    """Row as it was read, and the database's clock at that moment."""

    name: str | None
    ends_ms: int | None
    now_ms: int

    @property
    def is_free(self) -> bool:
        return self.ends_ms is None or self.ends_ms <= self.now_ms  # prove: lease-has-ended

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the lease ends, by the database's clock; 0 when it is free."""
        return 0.0 if self.is_free or self.ends_ms is None else (self.ends_ms - self.now_ms) / 1000


@dataclass(frozen=True, slots=True)
class Signature:
    """Value that a broker of ours writes into BROKER_NAME."""

    holder: Holder
    nonce: str
    lease_ms: int

    @property
    def text(self) -> str:
        """Value of BROKER_NAME, at most SIGNATURE_CHARACTERS_MAX characters: a long admin URL is left out first, then
        the host is cut."""
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
    """Return the signature in BROKER_NAME; None: no broker of ours wrote it."""
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
    """Return the holder of the lease by the row; None: it is free."""
    if row.is_free:
        return None
    signature = read_signature(row.name or "")
    return signature.holder if signature is not None else Holder(row.name or "a broker that left no name")


def _number(text: str) -> int | None:
    return int(text) if text else None


class LeaseTable(Protocol):
    """Interface of the one row. Each verb is one atomic, committed step, bounded in time, by the database's clock.
    LockUnavailable: the step may have happened or not. LockRefused: it did not, and will not.

    For one thread at a time.
    """

    @property
    def where(self) -> str:
        """Name of the row, without a password."""
        ...

    def read(self) -> LeaseRow:
        """Return the row as committed now. Makes the table first when it is missing and may be made."""
        ...

    def obtain(self, name: str, lease_ms: int) -> bool:
        """Write `name` and the end now + `lease_ms`, if the row is free now. False: it is not free."""
        ...

    def renew(self, name: str, lease_ms: int, known_as: Sequence[str]) -> bool:
        """Write `name` and the new end, if the row names one of `known_as` and has not ended. False: it names another,
        or has ended."""
        ...

    def take_over(self, name: str, lease_ms: int, seen: LeaseRow) -> bool:
        """Write `name` and the new end, if name and end of the row are still as in `seen`, even if the lease has not
        ended. False: they have changed."""
        ...

    def free(self, known_as: Sequence[str]) -> None:
        """Make the row free if it names one of `known_as`; otherwise do nothing."""
        ...

    def close(self) -> None:
        """Close the connection; the next verb connects again. Never raises; any thread."""
        ...


@dataclass(slots=True)
class Watch:
    """Row as a standby has seen it, by its own boot clock: since when it is unchanged, and how often it changed."""

    name: str | None = None
    ends_ms: int | None = None
    since_seconds: float = 0.0
    renewals: int = 0
    nonce: str | None = None

    def see(self, row: LeaseRow, now_seconds: float) -> None:
        """Note the row. `now_seconds` is read after the row was."""
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
    """Return the signature of a new life. Its nonce is long enough that no two lives of a lock have the same; its epoch
    is not known yet."""
    nonce = f"{chance.getrandbits(_NONCE_BITS):0{_NONCE_BITS // 4}x}"
    return Signature(replace(holder, name=name, epoch=None), nonce, lease_ms)


logger = logging.getLogger(__name__)

#: A lease of one of our brokers has expired if it did not change for its length and this fraction of it, by our own
#: clock.
SLACK: Final = 0.25
#: Shortest pause between two polls of a standby, also when a lease is about to end.
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

    `locker.sql.kinds` makes `settings` and `open_table` from the request; the simulator gives its own. A table is
    opened for the thread of the lock, and one more for each thread that reads the holder meanwhile.
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
        """Seconds until the next poll: the configured interval, or less if the lease that was seen ends before."""
        return max(min(super().poll_seconds, self._remaining_seconds), POLL_SECONDS_MIN)

    # Taking it

    def try_acquire(self) -> bool:
        if self._is_mine:
            return not self._is_lost
        self._remaining_seconds = math.inf
        row = self._read()
        me = self._own_text(row)
        known_at = self.clock.now()
        if row.name in self._known_as and not row.is_free:
            taken = self._table.renew(me, self._lease_ms, self._known_as)  # the answer to an earlier try was lost
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
            self._wait_for(row)
        return taken

    def _read(self) -> LeaseRow:
        before = self._wall_clock()
        row = self._table.read()
        after = self._wall_clock()
        self._watch.see(row, self.clock.now())
        self._compare_clocks(row.now_ms / 1000, before, after)
        return row

    def _own_text(self, row: LeaseRow) -> str:
        """Return our signature. It is the same in every try of this life: if the answer to a try was lost, we recognise
        it in the row."""
        if self._signature is None:
            holder = replace(self.request.holder, since_ms=row.now_ms)
            self._signature = signature_of(holder, self._lease.lease_holder_id, self.request.random, self._lease_ms)
            self._holder, self._known_as = self._signature.holder, (self._signature.text,)
        return self._signature.text

    def _is_abandoned(self, row: LeaseRow) -> bool:
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
        while self._reader_tables:
            self._reader_tables.pop().close()

    def _free(self, known_as: tuple[str, ...]) -> None:
        """Free the row. There is a second try, because the first one fails if the connection was lost meanwhile."""
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
