"""Which names logged in, and from which addresses: the next master knows it, too, while guessers keep it busy.

The file `known-logins` is in the directory of the store: a line for each, 16 bytes of BLAKE2b in hexadecimal, the
latest last. It is a hint: a client that is in it still has to know the password. So it is never synced, and a file that
cannot be read or written is none. Only a master has logins, so only a master writes it. In a set each node has what it
saw itself.

The volume may hang, so a thread of its own reads and writes, and nobody waits for it, not at the end either.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from tandemmq.broker.security.login_throttle import network
from tandemmq.disk import opened, read_fully, write_fully

FILE_NAME: Final = "known-logins"
#: Names, and names at addresses, that are remembered; the one that logged in longest ago is forgotten first.
REMEMBERED_MAX: Final = 20_000
#: Between two looks at the file. A standby that takes over knows what its master wrote before.
LOOK_SECONDS: Final = 2.0
_LINE_BYTES: Final = 33


class KnownLogins:
    """``knows_name``, ``knows`` and ``add`` on the loop's thread. Without ``path`` it is forgotten with the process."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._known: OrderedDict[str, None] = OrderedDict()
        self._unsaved = False
        self._seen: tuple[int, int] | None = None  # inode and time of the file
        self._ends = threading.Event()
        if path is not None:
            threading.Thread(target=self._run, name="tandemmq-known-logins", daemon=True).start()

    def knows_name(self, login: str) -> bool:
        return _digest(login, "") in self._known

    def knows(self, login: str, host: str) -> bool:
        return _digest(login, network(host)) in self._known

    def add(self, login: str, host: str) -> None:
        for each in (_digest(login, ""), _digest(login, network(host))):
            self._unsaved = self._unsaved or each not in self._known
            self._known[each] = None
            self._known.move_to_end(each)
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def close(self) -> None:
        self._ends.set()

    # ---- the thread

    def _run(self) -> None:
        assert self._path is not None, "it has a file"
        while True:
            has_ended = self._ends.is_set()
            self.look(self._path)
            if has_ended:
                return
            self._ends.wait(LOOK_SECONDS)

    def look(self, path: str) -> None:
        """Write what is new, or read what another broker wrote."""
        if not self._unsaved:
            with suppress(OSError):
                self._read(path)
            return
        self._unsaved = False  # before it is copied: what comes from now on is written the next time
        try:
            self._write(path)
        except OSError:
            self._unsaved = True

    def _write(self, path: str) -> None:
        content = "".join(f"{each}\n" for each in self._known.copy()).encode()
        with opened(os, f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) as descriptor:
            write_fully(os, descriptor, content, 0)
            status = os.fstat(descriptor)
        os.replace(f"{path}.new", path)
        self._seen = status.st_ino, status.st_mtime_ns

    def _read(self, path: str) -> None:
        status = os.stat(path)
        if (status.st_ino, status.st_mtime_ns) == self._seen:
            return
        with opened(os, path, os.O_RDONLY) as descriptor:
            status = os.fstat(descriptor)
            content = read_fully(os, descriptor, REMEMBERED_MAX * _LINE_BYTES, 0)
        for line in content.decode("ascii", "replace").split("\n"):
            if len(line) == _LINE_BYTES - 1:
                self._known.setdefault(line)
        self._seen = status.st_ino, status.st_mtime_ns


def _digest(login: str, address: str) -> str:
    data = b"%b\0%b" % (address.encode("utf-8", "surrogatepass"), login.encode("utf-8", "surrogatepass"))
    return blake2b(data, digest_size=16).hexdigest()
