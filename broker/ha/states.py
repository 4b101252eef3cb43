"""The life of a broker as two tables: the phase that follows an event, and the result of each trouble.

`TRANSITIONS` has the phase after each event; there is no other way from one phase to another. `RECOGNISED` lists
the types, errnos and SQLSTATEs by which a failure is recognised; the text of a message is never used. `ANSWERS` is the
result of each trouble at each moment. Together they replace ActiveMQ's IO exception handlers; ``tandemmq doctor
errors`` prints them.

Pure: nothing here waits, logs or touches a disk.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tandemmq.index.errors import IndexFailed, IndexTrouble
from tandemmq.journal.errors import Deposed, FenceTaken, JournalError, JournalFailed
from tandemmq.locker.contract import LockHeld, LockLost, LockRefused, LockUnavailable
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.writer.journal_end import NoProof


class Role(Enum):
    """The role of a broker; the values are those of ``tandemmq status``."""

    STARTING = "starting"
    STANDBY = "standby"
    MASTER = "master"
    DEMOTED = "demoted"


class Phase(Enum):
    """The phase in the life of a broker; ``status`` shows it beside the role."""

    STARTING = "starting"
    STANDBY = "standby"
    PROMOTING = "promoting"
    MASTER = "master"
    HANDING_OVER = "handing-over"
    DEMOTED = "demoted"
    ENDED = "ended"

    @property
    def role(self) -> Role:
        return _ROLES[self]


_ROLES: Final = {
    Phase.STARTING: Role.STARTING,
    Phase.STANDBY: Role.STANDBY,
    Phase.PROMOTING: Role.STARTING,
    Phase.MASTER: Role.MASTER,
    Phase.HANDING_OVER: Role.DEMOTED,
    Phase.DEMOTED: Role.DEMOTED,
    Phase.ENDED: Role.DEMOTED,
}


class Event(Enum):
    """An event moves a broker from one phase to the next."""

    LOCK_BUSY = "another broker has the lock"
    LOCK_TAKEN = "this broker has the lock"
    SERVING = "the ports answer"
    HANDOVER_ASKED = "a handover is requested"
    LOST = "a failure leads to a demotion"
    RESTED = "the pause after a demotion is over"
    LET_GO = "everything is handed over"
    STOP_ASKED = "a stop is requested"


TRANSITIONS: Final[Mapping[tuple[Phase, Event], Phase]] = {
    (Phase.STARTING, Event.LOCK_BUSY): Phase.STANDBY,
    (Phase.STARTING, Event.LOCK_TAKEN): Phase.PROMOTING,
    (Phase.STARTING, Event.LOST): Phase.DEMOTED,
    (Phase.STARTING, Event.STOP_ASKED): Phase.ENDED,
    (Phase.STANDBY, Event.LOCK_BUSY): Phase.STANDBY,
    (Phase.STANDBY, Event.LOCK_TAKEN): Phase.PROMOTING,
    (Phase.STANDBY, Event.LOST): Phase.DEMOTED,
    (Phase.STANDBY, Event.STOP_ASKED): Phase.ENDED,
    (Phase.PROMOTING, Event.SERVING): Phase.MASTER,
    (Phase.PROMOTING, Event.LOST): Phase.DEMOTED,
    (Phase.PROMOTING, Event.STOP_ASKED): Phase.ENDED,
    (Phase.MASTER, Event.HANDOVER_ASKED): Phase.HANDING_OVER,
    (Phase.MASTER, Event.LOST): Phase.DEMOTED,
    (Phase.HANDING_OVER, Event.LET_GO): Phase.STARTING,
    (Phase.HANDING_OVER, Event.LOST): Phase.DEMOTED,
    (Phase.HANDING_OVER, Event.STOP_ASKED): Phase.ENDED,
    (Phase.DEMOTED, Event.RESTED): Phase.STARTING,
    (Phase.DEMOTED, Event.STOP_ASKED): Phase.ENDED,
}


class LoopHung(Exception):
    """The event loop showed no life for longer than a proof of ownership lasts."""


class StorageHung(Exception):
    """A thread that works on the volume showed no life for too long, or did not finish in time (broker.ha.waits)."""


class ServiceHung(Exception):
    """The ports did not open or close in time (broker.ha.waits)."""


class Trouble(Enum):
    """Class of failures. The value is the text for operators."""

    DEPOSED = "another broker fenced this broker off"
    LOCK_LOST = "the lock is lost: changed, deleted, expired or taken"
    PROOF_EXPIRED = "ownership of the lock could not be proved in time"
    LOOP_HUNG = "the event loop hung for longer than a proof lasts"
    STORAGE_HUNG = "the storage thread hung, or did not finish in time"
    SERVICE_HUNG = "the ports did not open or close in time"
    LOCK_HELD = "another broker holds the lock, and fail_if_locked is set"
    LOCK_REFUSED = "the lock server refuses this broker, or another broker has the same name"
    LOCK_SILENT = "the lock does not answer"
    NO_SPACE = "the volume is full, including the reserve"
    READ_ONLY = "the volume refuses writes"
    GONE = "the store directory, or a file in it, disappeared"
    EXHAUSTED = "the process is out of file descriptors or memory"
    PORT_TAKEN = "another program uses a port of this broker"
    DISK_FAILED = "a read, write or sync failed"
    DAMAGED = "the journal is damaged or incomplete"
    INDEX = "the broker's index cannot be used"
    BUG = "an internal error"


@dataclass(frozen=True, slots=True)
class Sign:
    """The sign of a trouble: a type of exception and, if given, its errno."""

    trouble: Trouble
    types: tuple[type[BaseException], ...]
    errnos: frozenset[int] = frozenset()

    def is_seen_in(self, error: BaseException) -> bool:
        return isinstance(error, self.types) and (not self.errnos or getattr(error, "errno", None) in self.errnos)


# Errors that carry an errno of the volume: the system's own, the latched journal's, the index's.
_DISK: Final = (OSError, JournalError, IndexTrouble)

#: The first sign seen decides.
RECOGNISED: Final[tuple[Sign, ...]] = (
    Sign(Trouble.DEPOSED, (Deposed, FenceTaken)),
    Sign(Trouble.LOCK_LOST, (LockLost,)),
    Sign(Trouble.PROOF_EXPIRED, (NoProof,)),
    Sign(Trouble.LOOP_HUNG, (LoopHung,)),
    Sign(Trouble.STORAGE_HUNG, (StorageHung,)),
    Sign(Trouble.SERVICE_HUNG, (ServiceHung,)),
    Sign(Trouble.LOCK_HELD, (LockHeld,)),
    Sign(Trouble.LOCK_REFUSED, (LockRefused,)),
    Sign(Trouble.NO_SPACE, (*_DISK, LockUnavailable), frozenset({errno.ENOSPC, errno.EDQUOT})),
    Sign(Trouble.LOCK_SILENT, (LockUnavailable,)),
    Sign(Trouble.READ_ONLY, _DISK, frozenset({errno.EROFS, errno.EACCES, errno.EPERM})),
    Sign(Trouble.GONE, _DISK, frozenset({errno.ESTALE, errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})),
    Sign(Trouble.EXHAUSTED, _DISK, frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})),
    Sign(Trouble.EXHAUSTED, (MemoryError,)),
    Sign(Trouble.PORT_TAKEN, (OSError,), frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})),
    Sign(Trouble.DISK_FAILED, (OSError, JournalFailed, IndexFailed)),
    Sign(Trouble.DAMAGED, (JournalError, JournalLost)),
    Sign(Trouble.INDEX, (IndexTrouble,)),
)


def classify(error: BaseException) -> Trouble:
    """Return the trouble of an exception; BUG if no sign matches."""
    return next((sign.trouble for sign in RECOGNISED if sign.is_seen_in(error)), Trouble.BUG)


class Moment(Enum):
    """The moment of a trouble; the value is the heading of its column."""

    START = "at the first start"
    STANDBY = "while standing by"
    PROMOTION = "while becoming master"
    MASTER = "as master"
    HANDOVER = "while handing over"


class Answer(Enum):
    """The result of a trouble."""

    CONTINUE = "continues, and tries again"
    DEMOTE = "releases everything, pauses, becomes a standby again"
    END = "ends with an error"


_LATER: Final = {
    Moment.STANDBY: Answer.DEMOTE,
    Moment.PROMOTION: Answer.DEMOTE,
    Moment.MASTER: Answer.DEMOTE,
    Moment.HANDOVER: Answer.DEMOTE,
}
_ALWAYS: Final = {Moment.START: Answer.DEMOTE, **_LATER}
# The operator is present at the first start, and corrects errors then.
_NOT_AT_START: Final = {Moment.START: Answer.END, **_LATER}
# A lock that does not answer is not lost: a master continues while its last proof holds.
_PATIENT: Final = {**_NOT_AT_START, Moment.STANDBY: Answer.CONTINUE, Moment.MASTER: Answer.CONTINUE}

ANSWERS: Final[Mapping[Trouble, Mapping[Moment, Answer]]] = {
    Trouble.DEPOSED: _ALWAYS,
    Trouble.LOCK_LOST: _ALWAYS,
    Trouble.PROOF_EXPIRED: _ALWAYS,
    Trouble.LOOP_HUNG: _ALWAYS,
    Trouble.STORAGE_HUNG: _ALWAYS,
    Trouble.SERVICE_HUNG: _ALWAYS,
    Trouble.LOCK_HELD: dict.fromkeys(Moment, Answer.END),
    Trouble.LOCK_REFUSED: _PATIENT,
    Trouble.LOCK_SILENT: _PATIENT,
    # An operator who frees space does not restart this broker, and a supervisor would give up meanwhile.
    Trouble.NO_SPACE: _ALWAYS,
    Trouble.READ_ONLY: _NOT_AT_START,
    Trouble.GONE: _NOT_AT_START,
    Trouble.EXHAUSTED: _NOT_AT_START,
    Trouble.PORT_TAKEN: _NOT_AT_START,
    Trouble.DISK_FAILED: _NOT_AT_START,
    Trouble.DAMAGED: _NOT_AT_START,
    Trouble.INDEX: _NOT_AT_START,
    Trouble.BUG: dict.fromkeys(Moment, Answer.END),
}


#: Troubles that may affect this broker or its host alone: after them the lock is left to the others for a while. After
#: the pause another broker has the lock, or all compete for it again.
LEAVES_THE_LOCK: Final = frozenset(
    {
        Trouble.LOOP_HUNG,
        Trouble.STORAGE_HUNG,
        Trouble.SERVICE_HUNG,
        Trouble.NO_SPACE,
        Trouble.READ_ONLY,
        Trouble.GONE,
        Trouble.EXHAUSTED,
        Trouble.PORT_TAKEN,
        Trouble.DISK_FAILED,
        Trouble.DAMAGED,
        Trouble.INDEX,
    }
)


class NotMaster(Exception):
    """Only a master can hand over; the message states the role of this broker."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The result of a handover. ``seconds``: time from the last moment of a possible receipt until the release of the
    lock."""

    epoch: int
    seconds: float
