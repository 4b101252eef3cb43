"""The authority that decides whether this epoch's writes count: a shared volume, or the quorum of a set.

On a shared volume the fence and its checks decide, through the journal's files: there is nothing to request and nothing
to wait for. In a set of brokers, each with its own volume, the quorum decides; the files are checked too, because
another process may use this directory.

    first_file       promotion: the number of the file that begins the epoch
    check_promotion  promotion: check that it may still continue
    mend             a file is damaged: use another copy
    begin            promotion: the read is done, the header comes next
    wrote            each batch, before its sync: so that others sync while this broker does
    synced           this broker's own disk has it
    settle           before it counts: confirmed, or final
    sealed           nothing more comes into this file
    end              nothing more is written at all

The order of one batch: write, ``wrote``, sync, ``synced``, fence check, ``settle``; then receipts are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from tandemmq.journal.writer import OnWritten
from tandemmq.store.records.headers import SetHeader
from tandemmq.store.threads import Threads

#: Seconds between signs of life while a caller waits for the repair of a file.
PATIENCE_SECONDS: Final = 0.1


class Authority(Protocol):
    """Authority of one store of a process, for all its epochs. The storage thread calls it, or that of the promotion
    before it; any thread may read ``horizon``."""

    def first_file(self, last: int) -> int:
        """Return the number of the file that begins the epoch; ``last`` is the highest there is (0: none). It exceeds
        ``last``; numbers may be left out. Raises Deposed when there is no such number, or no epoch to begin."""
        ...

    def check_promotion(self) -> None:
        """Raise Deposed if the epoch of the promotion that is under way must not begin."""
        ...

    def set_header(self) -> SetHeader | None:
        """Return the part of the next file's header about the set, None if there is none. From ``first_file`` on. The
        epoch of a set has the number of its first file."""
        ...

    def begin(self, file: int, files: Callable[[], tuple[int, ...]]) -> None:
        """Begin the epoch: the read is done; ``file`` is there, the first of this epoch, and its header comes next.
        ``files``, from any thread, are those that the store needs now, in ascending order. ``end`` ends what this
        begins."""
        ...

    @property
    def wrote(self) -> OnWritten | None:
        """Callback after each write, with the bytes at an offset: a whole batch with its end record, and the offset of
        the next batch. Nothing of it is synced. Does not wait; the bytes may be kept, they do not change. May raise
        Deposed, which ends the store as it does from ``settle``. None: neither writes nor ``synced`` are needed."""
        ...

    def synced(self, file: int, end: int) -> None:
        """Note that this broker's own disk has all that was written, up to ``end`` of ``file``. Does not wait."""
        ...

    def settle(self, file: int, end: int, *, must_be_final: bool = False, alive: Callable[[], object]) -> None:
        """Wait until all that was written, up to ``end`` of ``file``, is confirmed as often and as firmly as the
        operator requires before a client may know of it. With ``must_be_final``: until it can never be undone.

        While it waits it calls ``alive`` several times a second, and passes on its errors. Raises Deposed when another
        broker leads, NoProof when this broker can no longer prove that it leads: nothing else ends the wait of a
        promotion, so a promotion must not wait without a quorum.
        """
        ...

    def sealed(self, file: int, end: int) -> None:
        """Note that nothing more is written into ``file``, which ends at ``end``; the next write is the header of a
        file after it. Does not wait."""
        ...

    def mend(self, file: int) -> Future[bool] | None:
        """Have this damaged file read and repaired, from other nodes that have it. Does not wait. The result tells
        whether all of the file verifies now; the Future is cancelled when the broker ends. None: there is no other
        copy. Any thread."""
        ...

    def damaged(self, files: Sequence[int]) -> None:
        """Note that a promotion finds these files damaged or missing, and cannot repair them. Raises Deposed if other
        nodes may have them whole: then one of them must lead."""
        ...

    @property
    def free_bytes(self) -> int | None:
        """Free bytes on the volumes of the others: with this broker, enough of them have at least this. None: no other
        broker writes this. Any thread."""
        ...

    @property
    def leaves_end_markers(self) -> bool:
        """True if a rotation leaves an end marker, TANDEMMQ-NEXT, after the end of the previous file. It must not if
        bytes after an end are cut, or copied."""
        ...

    @property
    def horizon(self) -> tuple[int, int] | None:
        """Position up to which a standby may read, as (file, end of a batch): final, and synced in its own files. (0,
        0) while that is unknown; it never moves back. None: by the rule of a shared volume, all that a later batch
        covers.
        """
        ...

    def end(self) -> None:
        """End the epoch: its file was closed, nothing is written any more. May be called again, and without an
        epoch."""
        ...


class SharedVolume:
    """The fence decides, through the files: no method waits, or contacts another node."""

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
    """Return whether the damaged ``file`` verifies now. Waits at most ``seconds``, and calls ``alive`` meanwhile:
    another copy may be unreachable for a moment."""
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
