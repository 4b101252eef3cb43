"""Steps of one process on the volume: small, named, in one scratch directory.

The examiner has a local probe. The second process serves a remote one over a wire (`cli.doctor.remote_probe`). Both
have the same methods, so each check can run in both directions. Every result is plain JSON.

Blocking, for one thread. Errors are the volume's OSError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import time
import uuid
from collections.abc import Callable
from typing import Final, NoReturn, TypedDict

from tandemmq.disk import opened, write_fully

NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")
READ_BYTES_MAX: Final = 4096
LOOK_AGAIN_SECONDS: Final = 0.002
REUSE_FILES: Final = 64
HELD, REFUSED = b"1", b"0"


class LookResult(TypedDict):
    """``is_seen``: the name was as wanted in the end; ``is_first``: at the first check; ``seconds``: time taken."""

    is_seen: bool
    is_first: bool
    seconds: float


class LocalProbe:
    """Probe of this process. `close` removes no file."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._name = uuid.uuid4().hex[:16]  # in two containers both may be process 1
        self._kept: dict[str, int] = {}
        self._holder: tuple[int, int] | None = None  # pid, and the pipe; closing the pipe ends the process

    def _path(self, name: str) -> str:
        if not NAME.fullmatch(name):
            raise OSError(errno.EINVAL, f"a name in the scratch directory is {NAME.pattern}", name)
        return f"{self.directory}/{name}"

    # -- races for a name

    def race_links(self, prefix: str, rounds: int) -> list[int]:
        """Link a file of this process to ``prefix0``, ``prefix1``, ... and return the rounds that it won.

        EEXIST does not always mean a lost round: if NFS loses a reply, the repeated request finds the link of this
        process. So the inode decides.
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
        """Create ``prefix0``, ... with O_EXCL and return the rounds in which the system reported success."""
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
        """Fork a process that takes the fcntl lock and keeps it until `kill_holder`. Return whether it got the lock."""
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
        """Send SIGKILL to the process that holds the lock. The process is gone on return."""
        if self._holder is None:
            return
        (pid, end), self._holder = self._holder, None
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(end)

    def is_free(self, name: str, by_flock: bool = False) -> bool:
        """Return whether this process could get the lock. It is released at once."""
        take = fcntl.flock if by_flock else fcntl.lockf
        with opened(os, self._path(name), os.O_RDWR) as fd:
            try:
                take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    return False
                raise
        return True

    def wait_free(self, name: str, seconds: float) -> bool:
        """Wait until the lock is free. Return False if it is not within ``seconds``."""
        return self._poll(lambda: self.is_free(name), seconds)["is_seen"]

    # -- names and contents

    def link(self, source: str, name: str) -> None:
        os.link(self._path(source), self._path(name))

    def unlink(self, name: str) -> None:
        os.unlink(self._path(name))

    def rename(self, source: str, name: str) -> None:
        os.rename(self._path(source), self._path(name))

    def write(self, name: str, text: str) -> None:
        """Write the text at the start of the file, which is created if needed. Synced on return."""
        with opened(os, self._path(name), os.O_WRONLY | os.O_CREAT) as fd:
            write_fully(os, fd, text.encode(), 0)
            os.fsync(fd)

    def read(self, name: str) -> str:
        """Return the content of the file, newly opened."""
        with opened(os, self._path(name), os.O_RDONLY) as fd:
            return os.pread(fd, READ_BYTES_MAX, 0).decode()

    def keep(self, name: str) -> None:
        """Open the file and leave it open for `read_kept`."""
        self._kept[name] = os.open(self._path(name), os.O_RDONLY)

    def read_kept(self, name: str) -> str:
        return os.pread(self._kept[name], READ_BYTES_MAX, 0).decode()

    def look(self, name: str, is_there: bool, seconds: float) -> LookResult:
        """Wait until the name exists (or, without ``is_there``, does not exist), for ``seconds`` at most."""
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

    # -- checks without a second process

    def is_inode_stable(self, name: str) -> bool:
        """Return whether a file keeps its inode number, by descriptor and by name, over a rename."""
        path, other = self._path(name), self._path(f"{name}-renamed")
        with open(path, "xb") as file:
            inodes = {os.fstat(file.fileno()).st_ino, os.stat(path).st_ino}
            os.rename(path, other)
            inodes |= {os.fstat(file.fileno()).st_ino, os.stat(other).st_ino}
        return len(inodes | {os.stat(other).st_ino}) == 1

    def is_inode_reused(self, name: str) -> bool:
        """Return whether the inode number of a deleted file that is still open is given to a new file."""
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
        """End the lock holder, if there is one, and close the descriptors that were kept open."""
        self.kill_holder()
        for fd in self._kept.values():
            os.close(fd)
        self._kept.clear()


def _hold(path: str, closes_another: bool, tell: int, stay: int) -> NoReturn:
    """Hold a lock until this process is killed or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the examiner handles Ctrl-C and ends this process
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
