"""Contract of all kinds of lock.

The contract is that of ActiveMQ's `Locker` (org.apache.activemq.broker), with two additions: the proof of ownership
(when ownership was last proved, and how long that is valid), and the present holder of the lock. A lock elects the
master; it does not protect the store. The fence protects the store (the journal), because any lock can be granted
twice: a lock file is deleted, a server loses its state, a clock is wrong.

All methods of a locker block. They are called by one thread; only `proof` may be called by any thread.
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

#: Random part by which a poll comes sooner or later than configured, so that standbys do not poll at the same time.
JITTER: Final = 0.1

#: A proof is valid for this many keep-alive periods, and at least for the seconds below, so that a slow server does not
#: cause the loss of ownership.
PROOF_KEEP_ALIVES: Final = 10
PROOF_SECONDS_MIN: Final = 5.0


class LockError(Exception):
    """Base class of the errors of a lock. That another broker holds the lock is no error."""


class LockHeld(LockError):
    """`fail_if_locked` is set, and another broker holds the lock."""

    def __init__(self, where: str, holder: Holder | None) -> None:
        self.holder = holder
        owner = holder if holder is not None else "another broker"
        super().__init__(f"{where} is held by {owner}, and fail_if_locked is set")


class _LockCallError(LockError):
    """Error with the operating system's `errno` and the database's `sqlstate`, if there was one."""

    def __init__(self, message: str, errno: int | None = None, sqlstate: str | None = None) -> None:
        self.errno = errno
        self.sqlstate = sqlstate
        super().__init__(message)


class LockUnavailable(_LockCallError):
    """The lock gave no answer: it is unknown whether this broker owns the lock."""


class LockRefused(_LockCallError):
    """The lock refuses this broker, and a retry does not help: a wrong password, missing rights, a second broker with
    the same name."""


class LockSettingsError(LockError):
    """A value in `[locker]` is invalid for this kind; the message names the key and what was expected."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        self.key = key
        super().__init__(f"locker.{key} = {value!r}: expected {expected}")


class LockLost(LockError):
    """A call requires the lock, and this broker does not own it."""


class UnknownLocker(LockError):
    """No kind of lock has this name, or its module or driver is not installed."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of a lock, or a broker that waits for it. `epoch` is None until the holder has announced it; all values
    but `name` are None if they are unknown."""

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
        """Return the JSON object that a lock stores for this holder, with the values in `more`. ``since_ms`` is not in
        it: each kind stores that in its own place."""
        facts = {"holder": self.name, "epoch": self.epoch, "pid": self.pid, "host": self.host, "admin": self.admin}
        return facts | more

    @classmethod
    def of_line(cls, line: Mapping[str, Any], since_ms: int | None) -> Holder:
        """Return the holder in a JSON object of ``line()``. Raises KeyError, TypeError."""
        return cls(str(line["holder"]), line["epoch"], line["pid"], line["host"], line["admin"], since_ms)


@dataclass(frozen=True, slots=True)
class Proof:
    """Proof of ownership: when the lock was last known to be held, and how long this is valid.

    `known_at_seconds` is CLOCK_BOOTTIME, read *before* the call that proved ownership. So if the call hangs or the
    machine is suspended, the proof appears older than it is, never younger.
    """

    known_at_seconds: float
    valid_for_seconds: float

    def holds_at(self, now_seconds: float) -> bool:
        return now_seconds - self.known_at_seconds < self.valid_for_seconds  # prove: proof-grows-old


#: Proof of a broker that does not own the lock.
NO_PROOF: Final = Proof(known_at_seconds=0.0, valid_for_seconds=-math.inf)


class Event(Protocol):
    """Event that stops the waiting of a standby: a `threading.Event`, or an event of the simulator."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Clock(Protocol):
    """Clock for lockers."""

    def now(self) -> float:
        """Return the seconds of a clock that cannot be set, and that counts the time of a suspended machine."""
        ...

    def wait(self, stop: Event, seconds: float) -> bool:
        """Wait for `seconds` at most. Return True as soon as `stop` is set, False after the time."""
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
    """Settings of all kinds of lock, with the meanings of ActiveMQ; times in seconds.

    use_lock                     False: no lock
    fail_if_locked               poll once, and raise LockHeld if another broker holds the lock; applies to all kinds
    lock_acquire_sleep_interval  time between two polls of a standby; for kinds with a lease, the length of the lease
    lock_keep_alive_period       time between two proofs of a master; 0: no proofs, which is unsafe
    """

    use_lock: bool = True
    fail_if_locked: bool = False
    lock_acquire_sleep_interval_seconds: float = 0.05
    lock_keep_alive_period_seconds: float = 0.5

    @property
    def proof_seconds(self) -> float:
        """Seconds for which a proof is valid, for kinds without a lease: longer than some keep-alive periods, and
        shorter than the silence after which a server ends a session."""
        period = self.lock_keep_alive_period_seconds
        return math.inf if period <= 0 else max(PROOF_KEEP_ALIVES * period, PROOF_SECONDS_MIN)


@dataclass(frozen=True, slots=True)
class LockRequest:
    """Argument of the factory of a kind of lock (entry point group `tandemmq.lockers`).

    directory  the data directory
    holder     this broker
    settings   settings of `[locker]` for all kinds
    options    settings of `[locker]` for this kind only, not checked yet: the kind raises LockSettingsError
    volume     file operations of a lock file
    clock, random  of the operating system; the simulator provides its own
    """

    directory: str
    holder: Holder
    settings: LockSettings = field(default_factory=LockSettings)
    options: Mapping[str, object] = field(default_factory=dict)
    clock: Clock = field(default_factory=BootClock)
    random: random.Random = field(default_factory=random.Random)
    volume: LockVolume = OS_VOLUME


class Locker(ABC):
    """Handle of a lock for one broker. Its methods block, and are for one thread, except `proof`.

    Order of the calls: `acquire`, `announce`, `keep_alive` periodically, `release`. Then `acquire` may follow again:
    this begins another life of the lock.
    """

    kind: str = "?"

    def __init__(self, request: LockRequest) -> None:
        self.request = request
        self.settings = request.settings
        self.clock = request.clock
        self.refused_at_seconds: float | None = None  # time by `clock` of the last poll that found another holder
        self._has_polled = False
        self._proof = NO_PROOF  # set by the kind

    # Implemented by each kind

    @property
    @abstractmethod
    def where(self) -> str:
        """Name of the lock for logs and errors, for example a path or a URL without password."""

    @abstractmethod
    def try_acquire(self) -> bool:
        """Poll once, without waiting for the holder. Return whether this broker owns the lock; `holder` then returns
        this broker. Raises LockUnavailable if the lock gives no answer, LockRefused if it refuses this broker.
        """

    @abstractmethod
    def keep_alive(self) -> bool:
        """Prove ownership again. Return True if this broker owns the lock. Return False if the lock is lost, and at all
        later calls until `release`. Raises LockUnavailable if ownership is unknown."""

    @abstractmethod
    def announce(self, epoch: int, admin: str | None = None) -> None:
        """Publish this broker's epoch and admin URL in the lock, for callers of `holder` on other brokers. Raises
        LockLost if this broker does not own the lock, LockUnavailable if the lock gives no answer."""

    @abstractmethod
    def release(self) -> None:
        """Release the lock, so that the next poll of a standby succeeds. Does nothing if this broker does not hold it.
        Never raises."""

    def proof(self) -> Proof:
        """Return the last proof of ownership, or NO_PROOF. Never blocks; any thread."""
        return self._proof

    @abstractmethod
    def holder(self) -> Holder | None:
        """Return the holder of the lock, which may be this broker, or None if the lock is free. Raises
        LockUnavailable."""

    def waiters(self) -> list[Holder] | None:
        """Return the brokers that wait for the lock, the next owner first, or None if this kind does not list them.
        Raises LockUnavailable."""
        return None

    def silence_seconds(self) -> float | None:
        """Return the seconds since the last sign of life of the holder that `holder` returned last, if a healthy holder
        would have shown one. None: the holder is not silent, or this kind has no such sign. Never blocks; for the
        thread that calls `holder`."""
        return None

    @property
    def lease_seconds(self) -> float | None:
        """Seconds after which the lock of a silent holder expires; None: the lock ends with the holder's process."""
        return None

    @property
    def poll_seconds(self) -> float:
        """Seconds between the polls of a standby."""
        return self.settings.lock_acquire_sleep_interval_seconds

    @property
    def unsafe(self) -> str | None:
        """Reason why two brokers can own the lock with these settings; None: the settings are safe."""
        if self.settings.lock_keep_alive_period_seconds <= 0:
            return "lock_keep_alive_period is 0: a lost lock is not noticed"
        return None

    # Shared by all kinds

    def acquire(self, stop: Event, refused: Callable[[], None] = lambda: None) -> bool:
        """Poll about every `poll_seconds`. Return True when this broker owns the lock, False when `stop` is set.

        `refused` is called, on this thread, after each poll that found another holder or raised LockRefused. With
        `fail_if_locked` there is only one poll, and LockHeld is raised if another broker holds the lock.

        If the first poll of this locker raises LockUnavailable or LockRefused, the error is raised, because the
        operator must repair the lock. Such an error of a later poll is logged once, and polling continues.
        """
        reason: str | None = None
        while not stop.is_set():
            first, self._has_polled = not self._has_polled, True
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
