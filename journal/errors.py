"""What can go wrong with a journal, as the caller meets it.

Reading:  JournalMissing, JournalCorrupt.      The journal is not what it should be; an operator decides.
Writing:  JournalFailed.                       The disk failed; final for this writer.
Fencing:  FenceTaken, Deposed.                 Somebody else is master; demote and stand by.
"""

from __future__ import annotations


class JournalError(Exception):
    """Any of the below."""


class JournalMissing(JournalError):
    """A journal file that something refers to is not there."""

    def __init__(self, file: int, offset: int) -> None:
        super().__init__(f"journal file db-{file}.log is missing (asked for offset {offset})")
        self.file = file
        self.offset = offset


class JournalCorrupt(JournalError):
    """The bytes from ``start`` to ``stop`` of a journal file are not what was written there.

    Never raised for a torn tail: no receipt was sent for it.
    """

    def __init__(self, file: int, start: int, stop: int, reason: str) -> None:
        super().__init__(f"journal file db-{file}.log is corrupt from offset {start} to {stop}: {reason}")
        self.file = file
        self.start = start
        self.stop = stop
        self.reason = reason


class JournalFailed(JournalError):
    """Writing, syncing or looking failed. Nothing that was not synced before may be acknowledged, now or later."""

    def __init__(self, doing: str, cause: OSError) -> None:
        super().__init__(f"journal failed to {doing}: {cause}")
        self.doing = doing
        self.errno = cause.errno
        self.__cause__ = cause  # compiled code raises without one


class FenceTaken(JournalError):
    """The file that was to be published exists already, and somebody else made it."""

    def __init__(self, file: int) -> None:
        super().__init__(f"journal file db-{file}.log was made by somebody else")
        self.file = file


class Deposed(JournalError):
    """A successor has fenced this writer off: nothing written since the last good fence check counts."""

    def __init__(self, file: int, reason: str) -> None:
        super().__init__(f"deposed while writing db-{file}.log: {reason}")
        self.file = file
        self.reason = reason
