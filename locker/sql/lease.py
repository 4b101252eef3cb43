"""A lease in a row of a table: the content of the row, its writer, and the interface of the table.

    ID            1
    TIME          when the lease ends, in ms since 1970 by the database's clock; NULL or past: free
    BROKER_NAME   its holder

This is ActiveMQ's table ACTIVEMQ_LOCK, without an additional column. Our other values are in BROKER_NAME, too, so an
ActiveMQ broker reads a foreign name there, and we read a plain name as ActiveMQ's:

    name|epoch|nonce|lease in ms|since in ms|pid|host|admin URL

The nonce is new in each life of a lock: a broker that was master before the row had other holders does not find itself
in it, nor does another broker with the same name.

Nothing here knows SQL: `LeaseTable` is the interface that a database must provide, each verb in one atomic step.
"""

# proofs: lease

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from tandemmq.locker.contract import Holder

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
        """Write `name`, until now + `lease_ms`, if the row is free now. False: it is not."""
        ...

    def renew(self, name: str, lease_ms: int, known_as: Sequence[str]) -> bool:
        """Write `name` likewise if the row names one of `known_as` and has not ended. False: it names another, or has
        ended."""
        ...

    def take_over(self, name: str, lease_ms: int, seen: LeaseRow) -> bool:
        """Write `name` likewise if the row's name and end are still as in `seen`, whatever the clock says. False: they
        are not."""
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


def new_nonce(chance: random.Random) -> str:
    """Return a nonce, long enough that no two lives of a lock have the same."""
    return f"{chance.getrandbits(_NONCE_BITS):0{_NONCE_BITS // 4}x}"


def signature_of(holder: Holder, name: str, nonce: str, lease_ms: int) -> Signature:
    """Return the signature of a new life: its epoch is not known yet."""
    return Signature(replace(holder, name=name, epoch=None), nonce, lease_ms)
