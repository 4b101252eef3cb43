"""Errors of an index, with the cause and the response of its owner.

IndexDamaged   the content on disk cannot be trusted: rename the directory, and build a new index from the journal
IndexInUse     another process has opened the directory: use another directory
IndexStolen    another process published a root: stop, this process does not own the index any more
IndexFailed    the disk refused a read, a write or a sync: final, nothing is retried
IndexClosed    the index was closed before: by a demotion, or by mistake
"""


class IndexTrouble(Exception):
    """Base class of these errors; never raised itself."""


class IndexDamaged(IndexTrouble):
    """Bytes that do not match their checksum, or pages that contradict each other."""


class IndexInUse(IndexTrouble):
    """Another descriptor holds the directory's lock."""


class IndexStolen(IndexTrouble):
    """A root slot holds a root that this process neither read when it opened the index nor wrote."""


class IndexFailed(IndexTrouble):
    """The disk failed. The operating system's error is the cause (`__cause__`); its number is `errno`."""

    def __init__(self, what: str, errno: int | None = None) -> None:
        super().__init__(what)
        self.errno = errno


class IndexClosed(IndexTrouble):
    """The index was used after close()."""
