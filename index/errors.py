"""Errors of an index, by the owner's response.

IndexDamaged   the content on disk cannot be trusted: rename the directory, start anew from the journal
IndexInUse     another process has the directory: use another one
IndexStolen    another process published a root: stop, the index does not belong to this process any more
IndexFailed    the disk refused a read, a write or a sync: final, nothing is retried
IndexClosed    an error of our own, or a demotion: the index was closed before
"""


class IndexTrouble(Exception):
    """Base class; never raised itself."""


class IndexDamaged(IndexTrouble):
    """Bytes that do not match their checksum, or pages that contradict each other."""


class IndexInUse(IndexTrouble):
    """Another descriptor holds the directory's lock."""


class IndexStolen(IndexTrouble):
    """A root slot holds a root that this opening neither read at its start nor wrote."""


class IndexFailed(IndexTrouble):
    """The disk failed. The operating system's error is the cause (`__cause__`); its number is `errno`."""

    def __init__(self, what: str, errno: int | None = None) -> None:
        super().__init__(what)
        self.errno = errno


class IndexClosed(IndexTrouble):
    """The index was used after close()."""
