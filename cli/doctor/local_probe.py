"""What one process does on the volume: small steps, by name, in one scratch directory.

The examiner has a local probe; the second process serves a remote one over a wire (`cli.doctor.remote_probe`). The
checks do not see the difference, so each can be made in both directions. Every result is plain JSON.

Blocking, for one thread. Errors are OSError as the volume gives them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TypedDict

from tandemmq.disk import write_fully

NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")
READ_BYTES_MAX: Final = 4096
LOOK_AGAIN_SECONDS: Final = 0.002
REUSE_FILES: Final = 64
HELD, REFUSED = b"1", b"0"


@contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    """A descriptor, closed afterwards."""
    fd = os.open(path, flags, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


class LookResult(TypedDict):
    """``is_seen``: was the name as wanted in the end; ``is_first``: at the first check already; how long it took."""

    is_seen: bool
    is_first: bool
    seconds: float


class LocalProbe:
    """The probe of this process. `close` ends what it holds; it removes nothing."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._name = uuid.uuid4().hex[:16]  # in two containers both may be process 1
        self._kept: dict[str, int] = {}
        self._holder: tuple[int, int] | None = None  # pid, and the pipe whose end ends it

    def _path(self, name: str) -> str:
        if not NAME.fullmatch(name):
            raise OSError(errno.EINVAL, f"a name in the scratch directory is {NAME.pattern}", name)
        return f"{self.directory}/{name}"

    # -- who wins a name

    def race_links(self, prefix: str, rounds: int) -> list[int]:
        """Link a file of ours to ``prefix0``, ``prefix1``, ...; the rounds that were won, by inode as by answer.

        The answer alone would not do: on NFS a reply may be lost, and the repeated request finds our own link (EEXIST).
        """
        source = self._path(f"{prefix}own-{self._name}")
        with open(source, "xb") as file:
            inode = os.fstat(file.fileno()).st_ino
            won = []
            for number in range(rounds):
                name = self._path(f"{prefix}{number}")
                try:
                    os.link(source, name)
                except FileExistsError:
                    if os.stat(name).st_ino != inode:
                        continue
                won.append(number)
        return won

    def race_creates(self, prefix: str, rounds: int) -> list[int]:
        """Create ``prefix0``, ... with O_EXCL; the rounds in which the system said that we did."""
        won = []
        for number in range(rounds):
            try:
                os.close(os.open(self._path(f"{prefix}{number}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                continue
            won.append(number)
        return won

    # -- locks

    def hold(self, name: str, closes_another: bool = False) -> bool:
        """Have a process of its own take the fcntl lock and keep it until `kill_holder`; was it given?"""
        path = self._path(name)
        news, tell = os.pipe()
        stay, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(end)
            _hold(path, closes_another, tell, stay)
        os.close(tell)
        os.close(stay)
        self._holder = pid, end
        answer = os.read(news, 1)
        os.close(news)
        return answer == HELD

    def kill_holder(self) -> None:
        """SIGKILL for the process that holds the lock. When it returns the process is gone."""
        if self._holder is None:
            return
        (pid, end), self._holder = self._holder, None
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(end)

    def is_free(self, name: str, by_flock: bool = False) -> bool:
        """Would this process get the lock? It is given back at once."""
        take = fcntl.flock if by_flock else fcntl.lockf
        with opened(self._path(name), os.O_RDWR) as fd:
            try:
                take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    return False
                raise
        return True

    def wait_free(self, name: str, seconds: float) -> bool:
        """Wait until the lock is free; False when it is not in time."""
        return self._poll(lambda: self.is_free(name), seconds)["is_seen"]

    # -- names and contents

    def link(self, source: str, name: str) -> None:
        os.link(self._path(source), self._path(name))

    def unlink(self, name: str) -> None:
        os.unlink(self._path(name))

    def rename(self, source: str, name: str) -> None:
        os.rename(self._path(source), self._path(name))

    def write(self, name: str, text: str) -> None:
        """Put the text at the start of the file, which is made if need be. Synced on return."""
        with opened(self._path(name), os.O_WRONLY | os.O_CREAT) as fd:
            write_fully(os, fd, text.encode(), 0)
            os.fsync(fd)

    def read(self, name: str) -> str:
        """What the file has, opened afresh."""
        with opened(self._path(name), os.O_RDONLY) as fd:
            return os.pread(fd, READ_BYTES_MAX, 0).decode()

    def keep(self, name: str) -> None:
        """Open the file and leave it open for `read_kept`."""
        self._kept[name] = os.open(self._path(name), os.O_RDONLY)

    def read_kept(self, name: str) -> str:
        return os.pread(self._kept[name], READ_BYTES_MAX, 0).decode()

    def look(self, name: str, is_there: bool, seconds: float) -> LookResult:
        """Stat the name until it is there, or is not, as wanted; for so long at most."""
        path = self._path(name)

        def is_as_wanted() -> bool:
            try:
                os.stat(path)
            except FileNotFoundError:
                return not is_there
            return is_there

        return self._poll(is_as_wanted, seconds)

    @staticmethod
    def _poll(ask: Callable[[], bool], seconds: float) -> LookResult:
        started = time.monotonic()
        is_first = True
        while True:
            if ask():
                return LookResult(is_seen=True, is_first=is_first, seconds=time.monotonic() - started)
            is_first = False
            if time.monotonic() - started > seconds:
                return LookResult(is_seen=False, is_first=False, seconds=seconds)
            time.sleep(LOOK_AGAIN_SECONDS)

    # -- what needs no second

    def is_inode_stable(self, name: str) -> bool:
        """Does a file keep its number, by descriptor and by name, over a rename?"""
        path, other = self._path(name), self._path(f"{name}-renamed")
        with open(path, "xb") as file:
            inodes = {os.fstat(file.fileno()).st_ino, os.stat(path).st_ino}
            os.rename(path, other)
            inodes |= {os.fstat(file.fileno()).st_ino, os.stat(other).st_ino}
        return len(inodes | {os.stat(other).st_ino}) == 1

    def is_inode_reused(self, name: str) -> bool:
        """Is the number of a deleted file that is still open given to one of the next?"""
        path = self._path(name)
        with open(path, "xb") as file:
            inode = os.fstat(file.fileno()).st_ino
            os.unlink(path)
            for number in range(REUSE_FILES):
                with open(self._path(f"{name}-{number}"), "xb") as another:
                    if os.fstat(another.fileno()).st_ino == inode:
                        return True
        return False

    def close(self) -> None:
        """End the holder of a lock, if there is one, and close what was kept open."""
        self.kill_holder()
        for fd in self._kept.values():
            os.close(fd)
        self._kept.clear()


def _hold(path: str, closes_another: bool, tell: int, stay: int) -> NoReturn:
    """The life of the process that holds a lock: until it is killed, or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the examiner's, which ends this process
    try:
        fd = os.open(path, os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if closes_another:
            os.close(os.open(path, os.O_RDWR))
        os.write(tell, HELD)
    except OSError:
        os.write(tell, REFUSED)
    finally:
        os.read(stay, 1)
        os._exit(0)
