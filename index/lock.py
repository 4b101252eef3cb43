"""The lock of an index directory, so that two openings never write the same pages.

flock(2) on `index.lock`, held while the index is open and released by the kernel when its holder dies. The file is
removed only with its directory. A disk that is not the kernel's provides a `flock` of its own.

The lock applies to a file, not to a name: a directory can be renamed or removed between the opening of its lock file
and the locking, and another process can make the name anew.
"""

# proofs: index

import errno
import fcntl
import os

from tandemmq.disk import Disk, demand_directory, has_name, open_regular
from tandemmq.index.errors import IndexInUse

LOCK_NAME = "index.lock"


def lock_directory(disk: Disk, directory: str) -> int:
    """Lock the directory; closing the returned descriptor releases it. IndexInUse when it is locked, NotRegular when it
    is a link: writes and removals would happen elsewhere."""
    demand_directory(disk, directory)
    fd = open_regular(disk, os.path.join(directory, LOCK_NAME), os.O_RDWR | os.O_CREAT)
    try:
        getattr(disk, "flock", fcntl.flock)(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        demand_lock(disk, directory, fd)  # prove: locked-directory-has-its-name
    except OSError as error:
        disk.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise IndexInUse(f"the index in {directory} is open elsewhere") from error
        raise
    except IndexInUse:
        disk.close(fd)
        raise
    return fd


def demand_lock(disk: Disk, directory: str, lock: int) -> None:
    """Raise IndexInUse when the locked file is no longer that of ``directory``. Call it again after opening files of
    the directory: only then it is certain that they are files of the locked one."""
    if not has_name(disk, lock, os.path.join(directory, LOCK_NAME)):
        raise IndexInUse(f"the index in {directory} was replaced or removed")
