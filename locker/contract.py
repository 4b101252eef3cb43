"""The contract of a lock: what it promises, and what it requires of its holder.

The contract is ActiveMQ's `Locker` (org.apache.activemq.broker), with two additions: when ownership was last proved and
for how long that proof holds, and who holds the lock now. A lock only elects; it never protects the store. That is the
fence's work (the journal), because every lock can be handed out twice: by a deleted file, by a server that forgot, by a
clock.

This module knows no kind of lock, no store and no event loop. All methods of a locker block, and belong to one
dedicated thread; only `proof` may be called from any.
"""

from __future__ import annotations

import logging
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tandemmq import log_events
from tandemmq.locker.volume import OS_VOLUME, LockVolume

logger = logging.getLogger(__name__)

#: Part by which a poll comes sooner or later than set, so that standbys do not poll at the same moment.
JITTER: Final = 0.1

#: A proof outlives this many missed keep-alives, and never less than the seconds below: a slow server is not a loss.
PROOF_KEEP_ALIVES: Final = 10
PROOF_SECONDS_MIN: Final = 5.0


class LockError(Exception):
    """Any result of a locker other than that another broker holds the lock."""


class LockHeld(LockError):
    """`fail_if_locked` is set and another broker holds the lock."""

    def __init__(self, where: str, holder: Holder | None) -> None:
        self.holder = holder
        super().__init__(f"{where} is held by {holder if holder is not None else 'another broker'}, and fail_if_locked")


class _NoAnswer(LockError):
    """Error with the operating system's `errno` and the database's `sqlstate`, if there was one."""

    def __init__(self, message: str, errno: int | None = None, sqlstate: str | None = None) -> None:
        self.errno = errno
        self.sqlstate = sqlstate
        super().__init__(message)


class LockUnavailable(_NoAnswer):
    """The lock gave no answer: whether it is ours is unknown."""


class LockRefused(_NoAnswer):
    """The lock answers, and refuses us for a reason that time does not mend: a wrong password, a table without rights,
    a second broker with the same name."""


class LockSettingsError(LockError):
    """A value in `[locker]` is invalid for this kind; the message names the key and what was expected."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        self.key = key
        super().__init__(f"locker.{key} = {value!r}: expected {expected}")


class LockLost(LockError):
    """A call needed the lock, and it is not ours, or not any more."""


class UnknownLocker(LockError):
    """No kind of locker has this name here."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of a lock. `epoch` is None between taking the lock and knowing the epoch, and for other brokers."""

    name: str
    epoch: int | None = None
    pid: int | None = None
    host: str | None = None
    admin: str | None = None
    since_ms: int | None = None

    def __str__(self) -> str:
        facts = [
            *([f"epoch {self.epoch}"] if self.epoch is not None else []),
            *([f"pid {self.pid}"] if self.pid is not None else []),
            *([f"on {self.host}"] if self.host else []),
            *([f"admin {self.admin}"] if self.admin else []),
        ]
        return f"{self.name} ({', '.join(facts)})" if facts else self.name

    def line(self, **more: object) -> dict[str, object]:
        """Return the holder as a lock keeps it in JSON, without ``since_ms``, which each kind keeps in its own
        place."""
        facts = {"holder": self.name, "epoch": self.epoch, "pid": self.pid, "host": self.host, "admin": self.admin}
        return facts | more

    @classmethod
    def of_line(cls, line: Mapping[str, Any], since_ms: int | None) -> Holder:
        """Return the holder in ``line``. Raises KeyError, TypeError."""
        return cls(str(line["holder"]), line["epoch"], line["pid"], line["host"], line["admin"], since_ms)


@dataclass(frozen=True, slots=True)
class Proof:
    """Proof of ownership: when it was last known for certain, and for how long that holds.

    `known_at_seconds` is CLOCK_BOOTTIME as read *before* the call that proved ownership, so a call that hung, or a
    machine that slept, makes a proof older, never younger.
    """

    known_at_seconds: float
    valid_for_seconds: float

    def holds_at(self, now_seconds: float) -> bool:
        return now_seconds - self.known_at_seconds < self.valid_for_seconds  # prove: proof-grows-old


#: Proof of a broker that owns nothing.
NO_PROOF: Final = Proof(known_at_seconds=0.0, valid_for_seconds=-math.inf)


class Event(Protocol):
    """Event that stops a waiting standby: a `threading.Event`, or the simulator's."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Clock(Protocol):
    """Clock for lockers."""

    def now(self) -> float:
        """Return the seconds of a clock that continues in suspend and cannot be set."""
        ...

    def wait(self, stop: Event, seconds: float) -> bool:
        """Wait; True as soon as `stop` is set."""
        ...


class BootClock:
    """CLOCK_BOOTTIME: unlike CLOCK_MONOTONIC it counts the time of a suspended machine."""

    __slots__ = ()

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wait(self, stop: Event, seconds: float) -> bool:
        return stop.wait(seconds)


@dataclass(frozen=True, slots=True)
class LockSettings:
    """Settings of any lock, with ActiveMQ's meanings, in seconds.

    fail_if_locked               one poll; held by another broker -> LockHeld (here every kind honours it)
    lock_acquire_sleep_interval  between polls of a standby; the length of a lease, for lease kinds
    lock_keep_alive_period       between proofs of a master; 0 is off, which is unsafe
    """

    use_lock: bool = True
    fail_if_locked: bool = False
    lock_acquire_sleep_interval_seconds: float = 0.05
    lock_keep_alive_period_seconds: float = 0.5

    @property
    def proof_seconds(self) -> float:
        """Seconds that a proof holds for kinds whose lock has no length of its own: it outlives some keep-alives, and
        ends before a silent session is ended."""
        period = self.lock_keep_alive_period_seconds
        return math.inf if period <= 0 else max(PROOF_KEEP_ALIVES * period, PROOF_SECONDS_MIN)


@dataclass(frozen=True, slots=True)
class LockRequest:
    """All that a kind of locker is built from. Argument of a factory of the entry point group `tandemmq.lockers`.

    `directory` is the data directory, `holder` names this broker, `options` holds the settings of `[locker]` for this
    kind alone: plain values, which the kind checks itself (LockSettingsError). `volume` keeps a lock file, `clock` and
    `random` are time and chance.
    """

    directory: str
    holder: Holder
    settings: LockSettings = field(default_factory=LockSettings)
    options: Mapping[str, object] = field(default_factory=dict)
    clock: Clock = field(default_factory=BootClock)
    random: random.Random = field(default_factory=random.Random)
    volume: LockVolume = OS_VOLUME


class Locker(ABC):
    """A broker's handle of a lock. Blocking, and for one thread, except `proof`.

    A life is: `acquire`, `announce`, `keep_alive` again and again, `release`; and then it may begin anew.
    """

    kind: str = "?"

    def __init__(self, request: LockRequest) -> None:
        self.request = request
        self.settings = request.settings
        self.clock = request.clock
        self.refused_at_seconds: float | None = None  # when another broker was last known to have it, on our clock
        self._was_asked = False
        self._proof = NO_PROOF  # for a kind to set

    # Implemented by each kind

    @property
    @abstractmethod
    def where(self) -> str:
        """Name of the lock for logs and errors: a path, a URL without its password."""

    @abstractmethod
    def try_acquire(self) -> bool:
        """Poll once, without waiting for the holder. True: the lock is ours, and `holder` returns our name from now on.
        Raises LockUnavailable when the lock gives no answer, LockRefused when it refuses us.
        """

    @abstractmethod
    def keep_alive(self) -> bool:
        """Prove ownership again. True: ours. False: lost, and so until released. LockUnavailable: unknown."""

    @abstractmethod
    def announce(self, epoch: int, admin: str | None = None) -> None:
        """Publish our epoch and admin URL in the lock for those who read the holder. Raises LockLost when the lock is
        not ours."""

    @abstractmethod
    def release(self) -> None:
        """Release the lock; the next poll of a standby succeeds. Does nothing when nothing is held. Never raises."""

    def proof(self) -> Proof:
        """Return the last proof of ownership; NO_PROOF when there is none. Never blocks; any thread."""
        return self._proof

    @abstractmethod
    def holder(self) -> Holder | None:
        """Return the holder of the lock, possibly this broker; None: the lock is free. Raises LockUnavailable."""

    def waiters(self) -> list[Holder] | None:
        """Return the brokers that wait for the lock, the next first; None if this kind cannot know. LockUnavailable as
        for `holder`."""
        return None

    def silence_seconds(self) -> float | None:
        """Return for how long the holder that `holder` named last has shown no sign of life, if that is longer than a
        healthy holder is silent. None: it is not, or this kind knows of no signs. Never blocks; on the thread that
        calls `holder`."""
        return None

    @property
    def lease_seconds(self) -> float | None:
        """Seconds for which the lock outlives a silent holder; None for a lock that ends with the holder's process."""
        return None

    @property
    def poll_seconds(self) -> float:
        """Seconds between the polls of a standby."""
        return self.settings.lock_acquire_sleep_interval_seconds

    @property
    def unsafe(self) -> str | None:
        """Reason for which this lock, with these settings, does not keep two masters apart; None when it does its
        best."""
        if self.settings.lock_keep_alive_period_seconds <= 0:
            return "lock_keep_alive_period is 0: a lost lock is not noticed"
        return None

    # Shared by all kinds

    def acquire(self, stop: Event, refused: Callable[[], None] = lambda: None) -> bool:
        """Poll every `poll_seconds`, more or less, until the lock is ours (True) or `stop` is set (False).

        `refused` is called, on this thread, after each poll that found another holder, or was refused. With
        `fail_if_locked` there is one poll, and LockHeld if it fails. If the lock gives no answer at the very first poll
        of this locker, or refuses us then, the operator must repair it: LockUnavailable, LockRefused. Later it may come
        back: the error is logged once, and polling continues.
        """
        reason: str | None = None
        while not stop.is_set():
            first, self._was_asked = not self._was_asked, True
            asked_at = self.clock.now()
            try:
                if self.try_acquire():
                    return True
                self.refused_at_seconds = asked_at
                refused()
                reason = None
            except (LockUnavailable, LockRefused) as error:
                if first or self.settings.fail_if_locked:
                    raise
                if isinstance(error, LockRefused):
                    refused()
                if str(error) != reason:
                    reason = str(error)
                    logger.warning(
                        "%s; trying again every %g s", error, self.poll_seconds, extra=log_events.LOCK_SILENT
                    )
            else:
                if self.settings.fail_if_locked:
                    raise LockHeld(self.where, self.holder())
            jitter = 1.0 + self.request.random.uniform(-JITTER, JITTER)
            if self.clock.wait(stop, self.poll_seconds * jitter):
                return False
        return False

    def _proof_seconds(self) -> float:
        return self.settings.proof_seconds
