"""Permissions of a broker's files and directories, by the umask of the process.

Files are created with NEW_FILE and directories with 0777; the umask removes the other permissions. The module imports
no other module of the broker.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

NEW_FILE = 0o666

_CLASSES = (6, 3, 0)  # first bits of owner, group and others
_OTHERS = (("g", 3), ("o", 0))
_BITS = (("r", 4), ("w", 2), ("x", 1))


def directory_mode(file_mode: int) -> int:
    """Return the mode of a directory with files of that mode: users that may read them may also search it."""
    return sum((each | bool(each & 4)) << at for at in _CLASSES for each in [file_mode >> at & 7])


def umask_of(file_mode: int) -> int:
    """Return the umask for which new files get ``file_mode``, and new directories its ``directory_mode``."""
    return 0o777 & ~directory_mode(file_mode)


def narrowing(file_mode: int, classes: str = "go") -> str:
    """Return the mode of chmod(1) that removes all permissions of files beyond ``file_mode``, for these ``classes``."""
    allowed = directory_mode(file_mode)
    taken = [(name, "".join(bit for bit, value in _BITS if not allowed >> at & value)) for name, at in _OTHERS]
    return ",".join(f"{name}-{bits}" for name, bits in taken if bits and name in classes)


def mending(paths: Sequence[str], file_mode: int, user: int, groups: Collection[int]) -> str:
    """Return the command that restricts ``paths``, the first of which is the directory of all others, to ``file_mode``,
    and keeps the access of ``user`` in ``groups``: a user who is not their owner may have it by the bits that would be
    removed. Raises OSError."""
    directory = paths[0]
    others = [status for status in map(os.lstat, paths) if user not in (0, status.st_uid)]
    if not others:
        return f"chmod -R {narrowing(file_mode)} {directory}"
    if not all(status.st_gid in groups for status in others):
        return f"chown -R {user}:{min(groups)} {directory} && chmod -R {narrowing(file_mode)} {directory}"
    keeping = f'store.file_mode = "{file_mode | 0o060:04o}", because this broker has access by its group'
    taking = narrowing(file_mode, "o")
    return f"{keeping}, and chmod -R {taking} {directory}" if taking else keeping


def groups() -> frozenset[int]:
    """Groups of this process."""
    return frozenset((os.getegid(), *os.getgroups()))


def whose(error: OSError) -> str:
    """Return the end of a sentence about a permission error: owner of the path and user of the process. Otherwise
    ""."""
    is_refusal = isinstance(error, PermissionError) and isinstance(error.filename, str)
    return f": {who_may(error.filename)}" if is_refusal else ""


def who_may(path: str) -> str:
    """Return the owner of ``path``, or of the nearest existing directory above it, and the user of this process, for an
    error text."""
    found = nearest(path)
    status = os.stat(found)
    owner = f"{_name(status.st_uid, _user_name)}:{_name(status.st_gid, _group_name)}"
    asks = f"{_name(os.geteuid(), _user_name)}, groups {', '.join(map(str, sorted(groups())))}"
    return f"{found} belongs to {owner}, mode {stat.S_IMODE(status.st_mode):04o}; this process runs as {asks}"


def nearest(path: str) -> str:
    """Return ``path``, or if it does not exist, the nearest existing directory above it."""
    path = os.path.abspath(path)
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _name(number: int, name: Callable[[int], str]) -> str:
    try:
        return f"{name(number)} ({number})"
    except KeyError:  # as in a container with a random user
        return str(number)


def _user_name(number: int) -> str:
    return pwd.getpwuid(number).pw_name


def _group_name(number: int) -> str:
    return grp.getgrgid(number).gr_name


@contextmanager
def made_like(directory: str) -> Iterator[None]:
    """Make new files of this process readable and writable for the users of ``directory``. OSError: it does not
    exist."""
    former = os.umask(0o777 & ~stat.S_IMODE(os.stat(directory).st_mode))
    try:
        yield
    finally:
        os.umask(former)


def wider(paths: Iterable[str], file_mode: int) -> list[str]:
    """Return those of ``paths`` with more permissions than ``file_mode``, or its ``directory_mode``, allows. Missing
    and inaccessible ones are omitted."""
    found = []
    for path in paths:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        allowed = directory_mode(file_mode) if stat.S_ISDIR(status.st_mode) else file_mode
        if not stat.S_ISLNK(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o777 & ~(allowed | stat.S_IXUSR):
            found.append(path)
    return found
