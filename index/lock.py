"""The lock of an index directory, so that two openings never write the same pages.

flock(2) on `index.lock`, held while the index is open and dropped by the kernel when its holder dies. The file is
never removed. A disk that is not the kernel's brings a `flock` of its own.
"""

import errno
import fcntl
import os

from tandemmq.disk import Disk, demand_directory, open_regular
from tandemmq.index.errors import IndexInUse

LOCK_NAME = "index.lock"


def lock_directory(disk: Disk, directory: str) -> int:
    """Lock the directory; closing the descriptor returned lets go. IndexInUse when it is taken, NotRegular when it is a
    link: what is written and removed in it would be elsewhere."""
    demand_directory(disk, directory)
    fd = open_regular(disk, os.path.join(directory, LOCK_NAME), os.O_RDWR | os.O_CREAT)
    try:
        getattr(disk, "flock", fcntl.flock)(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        disk.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise IndexInUse(f"the index in {directory} is open elsewhere") from error
        raise
    return fd
