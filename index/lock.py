"""Lock of an index directory: it prevents two processes from writing the same pages.

The lock is flock(2) on `index.lock`, held while the index is open. The kernel releases it when its holder dies. The
file is removed only with its directory. A simulated disk provides its own `flock`.

The lock applies to a file, not to a name. Between opening and locking the lock file, another process may rename or
remove the directory and make a new one with the same name. So the name is checked after locking.
"""

# proofs: index

import errno
import fcntl
import os

from tandemmq.disk import Disk, demand_directory, has_name, open_regular
from tandemmq.index.errors import IndexInUse

LOCK_NAME = "index.lock"


def lock_directory(disk: Disk, directory: str) -> int:
    """Lock a directory. Return a descriptor; closing it releases the lock.

    Raises IndexInUse if the directory is locked. Raises NotRegular if it is a symbolic link, because writes and
    removals would happen elsewhere.
    """
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
    """Raise IndexInUse if the lock file of ``directory`` is not the locked one any more. To be sure that opened files
    are in the locked directory, call this again after opening them."""
    if not has_name(disk, lock, os.path.join(directory, LOCK_NAME)):
        raise IndexInUse(f"the index in {directory} was replaced or removed")
