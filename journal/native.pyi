"""Steps of the journal writer in C (native.c). The module exists only if the build compiled it."""

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
    """Write one batch at ``offset``, sync it, then check whether the path ``successor`` exists, and read the identity
    of the file at the path ``own``.

    Return (step that failed, or DONE; its errno, or 0; locations of the records, if ``origin`` is the location of the
    batch; length of the batch without its end record; its checksum; seconds by CLOCK_BOOTTIME when the check of
    ``successor`` began; device of ``own``; inode of ``own``; duration of the sync in seconds).

    Any thread; one call at a time for each file. The interpreter's lock is released during the disk operations. Raises
    ValueError if there is no payload, or if the file would reach 2 GiB.
    """

class CommitQueue:
    """Queue of batches that one thread submits and another thread, in ``serve``, writes without the interpreter's lock.

    A step is one write, one sync and one fence check. Batches that were submitted during a step are written together by
    the next step. One thread calls ``reserve``, ``submit`` and ``completed``; one other thread calls ``serve``. Any
    thread may call the other methods.
    """

    def __new__(cls, sync_bounds: tuple[float, ...], record_bounds: tuple[float, ...], /) -> CommitQueue:
        """Make a queue. The arguments are the bounds of the histograms that ``measured`` returns."""

    def measured(self) -> tuple[tuple[list[int], float], tuple[list[int], float]]:
        """Return two histograms of all steps so far: of the duration of the sync in seconds, and of the number of
        records. Each is (number of steps in each bucket, sum); the last bucket is above the last bound."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``completed`` has news. It is closed with this object."""

    def reserve(self, payloads: Sequence[bytes], /) -> int:
        """Reserve a place in the file for a batch with one record for each payload. Return the location of its first
        record.

        The caller must call ``submit`` next, because ``serve`` waits for it. Return 0 if no place is reserved: no
        thread is in ``serve``, or ``serve`` is about to return, or the batch does not fit into the file, or is longer
        than ``bytes_max``. Raises ValueError if there is no payload, TypeError if a payload is not bytes.
        """

    def submit(self) -> None:
        """Hand the reserved batch to ``serve``. Raises ValueError if no batch is reserved."""

    def completed(self) -> tuple[int, float]:
        """Return (number of batches that were confirmed since the last call, in the order of their submission; seconds
        by CLOCK_BOOTTIME when the last fence check began)."""

    def interrupt(self) -> None:
        """Let the present or the next call of ``serve`` accept no more batches. It returns when all submitted batches
        are done."""

    def clear(self) -> None:
        """Cancel an ``interrupt``. Called by the thread of ``serve``, before it checks why it was interrupted."""

    def halt(self) -> None:
        """Begin no further step, now or later: submitted batches are not written."""

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
        """Write the submitted batches, beginning at ``offset`` of the file whose location is ``origin``. Return after
        ``interrupt``, after ``seconds``, or after ``batches_max`` batches or ``bytes_max`` bytes.

        A batch that would end at ``end_max`` or later gets no place. No batch and no step has more than ``bytes_max``
        bytes.

        Return (whether the last step failed: then nothing of it counts; the step of ``commit`` that failed, or DONE;
        its errno; batches done; steps done; records done; offset of the next batch; offset of the last batch; its
        checksum; seconds by CLOCK_BOOTTIME when the last fence check began; device of ``own``; inode of ``own``).
        """
