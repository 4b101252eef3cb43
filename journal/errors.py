"""Errors of a journal, by operation.

Reading:  JournalMissing, JournalCorrupt.      Files or bytes are lost; the operator decides.
Writing:  JournalFailed.                       The disk failed; final for this writer.
Fencing:  FenceTaken, Deposed.                 Another broker is master; this broker must become a standby.
"""

from __future__ import annotations


class JournalError(Exception):
    """Base class of the errors below."""


class JournalMissing(JournalError):
    """A referenced journal file is missing."""

    def __init__(self, file: int, offset: int) -> None:
        super().__init__(f"journal file db-{file}.log is missing (asked for offset {offset})")
        self.file = file
        self.offset = offset


class JournalCorrupt(JournalError):
    """The bytes from ``start`` to ``stop`` of a journal file are not those that were written.

    Not raised for a torn tail, because no client got a receipt for it.
    """

    def __init__(self, file: int, start: int, stop: int, reason: str) -> None:
        super().__init__(f"journal file db-{file}.log is corrupt from offset {start} to {stop}: {reason}")
        self.file = file
        self.start = start
        self.stop = stop
        self.reason = reason


class JournalFailed(JournalError):
    """A write, a sync or a fence check failed. Only what was confirmed before may be acknowledged, now or later."""

    def __init__(self, doing: str, cause: OSError) -> None:
        super().__init__(f"journal failed to {doing}: {cause}")
        self.doing = doing
        self.errno = cause.errno
        self.__cause__ = cause  # set here: "raise" in compiled code may not set it


class FenceTaken(JournalError):
    """The file to be published exists already, and another broker made it."""

    def __init__(self, file: int) -> None:
        super().__init__(f"journal file db-{file}.log was made by another broker")
        self.file = file


class Deposed(JournalError):
    """A successor has made a fence: nothing that this writer wrote after its last good fence check counts."""

    def __init__(self, file: int, reason: str) -> None:
        super().__init__(f"deposed while writing db-{file}.log: {reason}")
        self.file = file
        self.reason = reason
