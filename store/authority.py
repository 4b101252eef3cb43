"""Who says that what this epoch writes counts: a shared volume, or the quorum of a set.

On a shared volume the fence and the checks of it decide, which the journal's files answer: there is nobody to ask and
nothing to wait for. In a set of brokers, each with a volume of its own, the quorum decides; the files are checked all
the same, for another process may have come to this directory.

    first_file       promotion: the number of the file that begins the epoch
    check_promotion  promotion: may it still go on?
    mend             a file is damaged: is there another copy?
    begin            promotion: all was read, the header comes next
    wrote            each batch, before its sync: so that others sync while this broker does
    synced           this broker's own disk has it
    settle           before it counts: confirmed, or final
    sealed           nothing more comes into this file
    end              nothing more is written at all

The order of one batch: write, ``wrote``, sync, ``synced``, fence check, ``settle``; then it is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from tandemmq.journal.writer import OnWritten
from tandemmq.store.records.headers import SetHeader
from tandemmq.store.threads import Threads

#: Who waits for a file to be mended shows this often that it lives.
PATIENCE_SECONDS: Final = 0.1


class Authority(Protocol):
    """One for each store of a process, over all its epochs. The storage thread, or that of the promotion before it,
    calls it; ``horizon`` may be asked from any thread."""

    def first_file(self, last: int) -> int:
        """The number of the file that begins the epoch; ``last`` is the highest there is (0: none). It is greater than
        ``last``; numbers may be left out. Raises Deposed when there is no such number, or no epoch to begin."""
        ...

    def check_promotion(self) -> None:
        """Raises Deposed when the epoch of the promotion that is under way is not to begin."""
        ...

    def set_header(self) -> SetHeader | None:
        """What the header of the next file says of the set, None if there is none. From ``first_file`` on. The epoch of
        a set has the number of its first file."""
        ...

    def begin(self, file: int, files: Callable[[], tuple[int, ...]]) -> None:
        """Everything was read; ``file`` is there, the first of this epoch, and its header comes next. ``files``, from
        any thread, are those that the store needs now, in ascending order. ``end`` ends what this begins."""
        ...

    @property
    def wrote(self) -> OnWritten | None:
        """Is told that these bytes were just written at an offset: a whole batch with its end record, and where the
        next one begins. Nothing of it is synced. Does not wait; the bytes may be kept, nobody changes them. May raise
        Deposed, which ends the store as it does from ``settle``. None: nobody wants to know, nor of ``synced``."""
        ...

    def synced(self, file: int, end: int) -> None:
        """This broker's own disk has all that was written, up to ``end`` of ``file``. Does not wait."""
        ...

    def settle(self, file: int, end: int, *, must_be_final: bool = False, alive: Callable[[], object]) -> None:
        """Returns when all that was written, up to ``end`` of ``file``, is confirmed: as often and as firmly as the
        operator demands before anybody is told of it. With ``must_be_final``: when it can never be undone.

        While it waits it calls ``alive`` several times a second, and passes on what that raises. Raises Deposed when
        somebody else leads, NoProof when nobody can prove any more that this broker does: nothing else ends the waiting
        of a promotion, so it must not be waited for without a quorum.
        """
        ...

    def sealed(self, file: int, end: int) -> None:
        """Nothing more is written into ``file``, which ends at ``end``; the next thing written is the header of a file
        behind it. Does not wait."""
        ...

    def mend(self, file: int) -> Future[bool] | None:
        """Somebody met damage in this file: have it read and repaired, from others who have it. Does not wait. The
        result is whether all of the file verifies now; the Future is cancelled when the broker ends. None: there is no
        other copy. Any thread."""
        ...

    def damaged(self, files: Sequence[int]) -> None:
        """A promotion finds these files damaged or missing, and they could not be mended. Raises Deposed where others
        may have them whole: then one of them is to lead."""
        ...

    @property
    def free_bytes(self) -> int | None:
        """What others need, too, is free there: with this broker, enough of them have at least so much. None: nobody
        else writes this. Any thread."""
        ...

    @property
    def leaves_end_markers(self) -> bool:
        """Whether a rotation leaves an end marker behind the end of the file before: TANDEMMQ-NEXT. It must not where
        bytes behind an end are cut, or copied."""
        ...

    @property
    def horizon(self) -> tuple[int, int] | None:
        """How far a standby may read, as (file, end of a batch): what is final, and is synced in its own files. (0, 0)
        while that is unknown; it never moves back. None: by the rule of a shared volume, all that a later batch covers.
        """
        ...

    def end(self) -> None:
        """The epoch's file was closed, nothing is written any more. May be called again, and without an epoch."""
        ...


class SharedVolume:
    """The fence decides, and the files answer for it: nothing is asked here, nothing is waited for."""

    __slots__ = ()

    free_bytes = None
    wrote = None
    leaves_end_markers = True
    horizon = None

    def first_file(self, last: int) -> int:
        return last + 1

    def check_promotion(self) -> None:
        pass

    def mend(self, file: int) -> None:
        return None

    def damaged(self, files: Sequence[int]) -> None:
        pass

    def set_header(self) -> None:
        return None

    def begin(self, file: int, files: Callable[[], tuple[int, ...]]) -> None:
        pass

    def synced(self, file: int, end: int) -> None:
        pass

    def settle(self, file: int, end: int, *, must_be_final: bool = False, alive: Callable[[], object]) -> None:
        pass

    def sealed(self, file: int, end: int) -> None:
        pass

    def end(self) -> None:
        pass


SHARED_VOLUME: Authority = SharedVolume()


def is_mended(
    authority: Authority, file: int, *, seconds: float, alive: Callable[[], object], threads: Threads
) -> bool:
    """Whether ``file``, in which damage was met, verifies now. Waits so long at most, and calls ``alive`` meanwhile:
    another copy may be out of reach for a moment."""
    deadline = threads.monotonic() + seconds
    while (mending := authority.mend(file)) is not None:
        while not threads.wait([mending], PATIENCE_SECONDS):
            alive()
            if threads.monotonic() > deadline:
                return False
        if mending.cancelled() or mending.result():
            return not mending.cancelled()
        alive()
        if threads.monotonic() > deadline:
            return False
        threads.sleep(PATIENCE_SECONDS)
    return False
