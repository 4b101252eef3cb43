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
) -> tuple[int, int, list[int], int, int, float, int, int]:
    """Write one batch at ``offset``, sync, then look whether ``successor`` exists, and which file ``own`` is.

    (step that was not done, or DONE; errno of it, or 0; where the records are, ``origin`` being the location of the
    batch; length of the batch without its end record; its checksum; when the looks began, by CLOCK_BOOTTIME; device and
    inode of ``own``). Any thread, one at a time for each file; without the interpreter's lock while the disk works.
    Raises ValueError for no payload, and for a file beyond 2 GiB.
    """
