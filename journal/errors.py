"""Errors of a journal, as the caller meets them.

Reading:  JournalMissing, JournalCorrupt.      The journal is not as it should be; an operator decides.
Writing:  JournalFailed.                       The disk failed; final for this writer.
Fencing:  FenceTaken, Deposed.                 Another broker is master; demote and stand by.
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

    Never raised for a torn tail: no receipt was sent for it.
    """

    def __init__(self, file: int, start: int, stop: int, reason: str) -> None:
        super().__init__(f"journal file db-{file}.log is corrupt from offset {start} to {stop}: {reason}")
        self.file = file
        self.start = start
        self.stop = stop
        self.reason = reason


class JournalFailed(JournalError):
    """Writing, syncing or checking failed. Nothing that was not synced before may be acknowledged, now or later."""

    def __init__(self, doing: str, cause: OSError) -> None:
        super().__init__(f"journal failed to {doing}: {cause}")
        self.doing = doing
        self.errno = cause.errno
        self.__cause__ = cause  # compiled code raises without a cause


class FenceTaken(JournalError):
    """The file to be published exists already, and another broker made it."""

    def __init__(self, file: int) -> None:
        super().__init__(f"journal file db-{file}.log was made by another broker")
        self.file = file


class Deposed(JournalError):
    """A successor has fenced this writer off: nothing written since the last good fence check counts."""

    def __init__(self, file: int, reason: str) -> None:
        super().__init__(f"deposed while writing db-{file}.log: {reason}")
        self.file = file
        self.reason = reason
