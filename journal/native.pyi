"""Compiled from native.c, where a compiler was asked for; else there is no such module."""

from collections.abc import Sequence

DONE: int
WRITE: int
SYNC: int
SUCCESSOR_UNKNOWN: int
SUCCESSOR_THERE: int
OWN_UNKNOWN: int
OWN_IRREGULAR: int

def commit(
    fd: int, payloads: Sequence[bytes], offset: int, origin: int, successor: str, own: str, /
) -> tuple[int, int, list[int], int, int, float, int, int, float]:
    """Write one batch at ``offset``, sync, then look whether ``successor`` exists, and which file ``own`` is.

    (step that was not done, or DONE; errno of it, or 0; where the records are, ``origin`` being the location of the
    batch; length of the batch without its end record; its checksum; when the looks began, by CLOCK_BOOTTIME; device
    and inode of ``own``; how long the sync took). Any thread, one at a time for each file; without the
    interpreter's lock while the disk works. Raises ValueError for no payload, and for a file beyond 2 GiB.
    """

class CommitQueue:
    """Batches that are submitted by one thread and written by another, which waits and works without the interpreter's
    lock. What was submitted while a step was under way is one step: one write, one sync, one look.

    ``reserve``, ``submit`` and ``completed`` are one thread's, ``serve`` is another's; the rest is anybody's.
    """

    def __new__(cls, sync_bounds: tuple[float, ...], record_bounds: tuple[float, ...], /) -> CommitQueue:
        """The bounds of what ``measured`` tells."""

    def measured(self) -> tuple[tuple[list[int], float], tuple[list[int], float]]:
        """Of all steps so far: the seconds of their syncs, and their records. Of each, how many were between two of the
        bounds (the last: beyond them), and the sum."""

    def fileno(self) -> int:
        """Readable when there is something for ``completed``. Closed with this object."""

    def reserve(self, payloads: Sequence[bytes], /) -> int:
        """A place for a batch with a record for each payload, at least one: where its first record will be. ``submit``
        follows at once: ``serve`` waits for it. 0: it gets none, because nobody serves, or will not for long, or it
        does not fit into the file, or is too long. Raises ValueError and TypeError for what is no batch."""

    def submit(self) -> None:
        """What was reserved may be written. Raises ValueError when nothing was."""

    def completed(self) -> tuple[int, float]:
        """How many batches, in their order, are durable and looked after since the last call; when the last look
        began, by CLOCK_BOOTTIME."""

    def interrupt(self) -> None:
        """``serve``, or the next call of it, takes nothing more, and returns when what was submitted is done."""

    def clear(self) -> None:
        """Forget ``interrupt``, by the thread that serves: before it looks for what it was interrupted for."""

    def halt(self) -> None:
        """For good: no batch is begun any more."""

    def serve(
        self,
        fd: int,
        offset: int,
        origin: int,
        end_max: int,
        bytes_max: int,
        batches_max: int,
        seconds: float,
        successor: str,
        own: str,
        device: int,
        inode: int,
        /,
    ) -> tuple[bool, int, int, int, int, int, int, int, int, float, int, int]:
        """Write what is submitted, from ``offset`` of a file whose location is ``origin``: until interrupted, for
        ``seconds`` at most, or until ``batches_max`` batches or ``bytes_max`` bytes were written. No batch is taken
        that would end at ``end_max`` or behind, or is longer than ``bytes_max``, as no step is.

        (whether a step failed, and then nothing of it counts; step that was not done, or DONE, errno, device and inode
        at the end are of the last step as in ``commit``; batches that are done; steps; records; where the next batch
        begins; where the last one does, and its checksum; when the last look began; device; inode).
        """
