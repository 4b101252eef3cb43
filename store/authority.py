"""Authority: it decides whether the writes of an epoch count. It is a shared volume, or the quorum of a set.

On a shared volume the fence decides, which is a file of the journal; no other node is contacted. In a set of brokers,
each with its own volume, the quorum decides; the fence is checked too, because another process may use this directory.

    first_file       promotion: returns the number of the first file of the epoch
    check_promotion  promotion: checks that it may continue
    mend             repairs a damaged file from another copy
    begin            promotion: the journal was read, the header is written next
    wrote            after the write of a batch, before its sync: other nodes can sync at the same time
    synced           after the sync on this broker's own disk
    settle           waits until the batch is confirmed, or final
    sealed           this file is complete
    end              the epoch has ended on this broker

Order for one batch: write, ``wrote``, sync, ``synced``, fence check, ``settle``; then receipts are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from tandemmq.journal.writer import OnWritten
from tandemmq.store.records.headers import SetHeader
from tandemmq.store.threads import Threads

#: Seconds between two calls of ``alive`` while a caller waits for the repair of a file.
PATIENCE_SECONDS: Final = 0.1


class Authority(Protocol):
    """Authority of one store of a process, for all its epochs. It is called by the thread of the promotion, later by
    the storage thread; any thread may read ``horizon``."""

    def first_file(self, last: int) -> int:
        """Return the number of the first file of the epoch. It is larger than ``last``, the highest existing number (0:
        there is no file); numbers may be skipped. Raises Deposed if this broker may not begin an epoch."""
        ...

    def check_promotion(self) -> None:
        """Raise Deposed if the present promotion may not continue."""
        ...

    def set_header(self) -> SetHeader | None:
        """Return the part of the next file's header that describes the set, or None without a set. Valid after
        ``first_file``. In a set, the number of an epoch is that of its first file."""
        ...

    def begin(self, file: int, files: Callable[[], tuple[int, ...]]) -> None:
        """Begin the epoch: the journal was read, and ``file``, the first file of the epoch, exists; its header is
        written next. ``files`` returns the files that the store needs now, ascending; any thread may call it. ``end``
        must follow."""
        ...

    @property
    def wrote(self) -> OnWritten | None:
        """Callback for each written batch, called before its sync; for the arguments see ``OnWritten``. None: the
        authority needs neither this nor ``synced``.

        The callback does not block. It may keep the bytes. If it raises Deposed, the store ends, as after ``settle``.
        """
        ...

    def synced(self, file: int, end: int) -> None:
        """Note that all bytes up to offset ``end`` of ``file`` are synced on this broker's own disk. Does not block."""
        ...

    def settle(self, file: int, end: int, *, must_be_final: bool = False, alive: Callable[[], object]) -> None:
        """Wait until all bytes up to offset ``end`` of ``file`` are confirmed as the settings require before a receipt.
        With ``must_be_final``, wait until they are final.

        While it waits, it calls ``alive`` several times a second, and raises the errors of ``alive``. Raises Deposed if
        another broker leads, NoProof if this broker cannot prove any more that it leads. Nothing else ends the wait, so
        a promotion must not wait without a quorum.
        """
        ...

    def sealed(self, file: int, end: int) -> None:
        """Note that ``file`` is complete and ends at offset ``end``. The next write is the header of the next file.
        Does not block."""
        ...

    def mend(self, file: int) -> Future[bool] | None:
        """Begin to repair this damaged file from other nodes. Does not block; any thread.

        The result of the Future is True if the whole file then matches its checksums. The Future is cancelled when the
        broker ends. Return None if there is no other copy.
        """
        ...

    def damaged(self, files: Sequence[int]) -> None:
        """Note that a promotion found these files damaged or missing, and could not repair them. Raises Deposed if
        other nodes may have intact copies: then one of these nodes must lead."""
        ...

    @property
    def free_bytes(self) -> int | None:
        """Free bytes on the volumes of the other nodes: so many nodes have at least this much free that they form a
        quorum with this broker. None: there are no other nodes. Any thread."""
        ...

    @property
    def leaves_end_markers(self) -> bool:
        """True if a rotation writes an end marker, TANDEMMQ-NEXT, after the end of the previous file. False in a set,
        whose nodes truncate and copy bytes after an end."""
        ...

    @property
    def horizon(self) -> tuple[int, int] | None:
        """Position up to which a standby may read, as (file, end of a batch): all before it is final, and synced on the
        standby's own disk. It never decreases; (0, 0): unknown yet. None: the rule of a shared volume applies, by which
        a batch counts when a later batch follows it.
        """
        ...

    def end(self) -> None:
        """End the epoch. Its file is closed already. Does nothing without an epoch."""
        ...


class SharedVolume:
    """Authority of a shared volume: the fence in the journal decides, so no method blocks."""

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
    """Repair the damaged ``file``, with several attempts for ``seconds`` at most, and return whether it matches its
    checksums then. ``alive`` is called several times a second."""
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
