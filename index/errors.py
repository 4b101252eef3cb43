"""What can go wrong with an index, by what the owner can do about it.

IndexDamaged   what is on disk cannot be trusted: rename the directory, start anew from the journal
IndexInUse     somebody else holds the directory: use another one
IndexStolen    somebody else published a root under us: stop, this index is not ours any more
IndexFailed    the disk refused a read, a write or a sync: final, nothing is retried
IndexClosed    our own mistake or a demotion: the index was closed before
"""


class IndexTrouble(Exception):
    """The family; never raised itself."""


class IndexDamaged(IndexTrouble):
    """Bytes that do not match their checksum, or pages that contradict each other."""


class IndexInUse(IndexTrouble):
    """The directory's lock is held by another opening."""


class IndexStolen(IndexTrouble):
    """A root slot holds a root that this opening neither read at its start nor wrote."""


class IndexFailed(IndexTrouble):
    """The disk failed. The operating system's error is the cause (`__cause__`); its number is `errno`."""

    def __init__(self, what: str, errno: int | None = None) -> None:
        super().__init__(what)
        self.errno = errno


class IndexClosed(IndexTrouble):
    """The index was used after close()."""
