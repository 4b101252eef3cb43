"""Names and addresses of successful logins, in a file. With it, the next master serves known clients before password
guessers.

The file `known-logins` is in the directory of the store. It has a line for each pair of name and address: 8 bytes of
BLAKE2b of the name, and 8 of both, in hexadecimal; the latest pair is last. The file only changes the order of logins;
a client in it must still send its password. So it is never synced, and a file that cannot be read or written counts as
missing. A broker reads the entries of other brokers before it writes, because users also log in at the admin server of
a standby. In a set, each node has only its own entries.

The volume may hang. So a separate thread reads and writes the file, and no other thread waits for it, not even at the
end.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import OrderedDict
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from tandemmq.broker.security.login_throttle import network
from tandemmq.disk import NotRegular, kind_of, opened, read_fully, write_fully

log = logging.getLogger(__name__)

FILE_NAME: Final = "known-logins"
#: Maximum number of pairs of name and address. Beyond it, the least recently used name loses its oldest address.
REMEMBERED_MAX: Final = 20_000
#: Maximum number of addresses of one name, so that a name with very many addresses does not replace other names.
ADDRESSES_MAX: Final = 64
#: Interval between reads of the file. So a standby that takes over knows the entries of its master.
READ_SECONDS: Final = 2.0
_DIGEST_CHARACTERS: Final = 16
_LINE_BYTES: Final = 2 * _DIGEST_CHARACTERS + 1


class KnownLogins:
    """Pairs of name and address that logged in. ``knows_name``, ``knows`` and ``add`` run on the loop. ``path`` None:
    the entries are only in memory."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._known: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()  # name -> addresses
        self._count = 0
        self._lock = threading.Lock()  # held for one entry at a time
        self._unsaved = False
        self._problem = ""
        self._seen: tuple[int, int] | None = None  # inode and modification time of the file
        self._ends = threading.Event()
        if path is not None:
            threading.Thread(target=self._run, name="tandemmq-known-logins", daemon=True).start()

    def knows_name(self, login: str) -> bool:
        return _digest(login, "") in self._known

    def knows(self, login: str, host: str) -> bool:
        return _digest(login, network(host)) in self._known.get(_digest(login, ""), ())

    def add(self, login: str, host: str) -> None:
        if self._add(_digest(login, ""), _digest(login, network(host))):
            self._unsaved = True

    def _add(self, name: str, address: str) -> bool:
        """Make the pair the latest one. Return whether it is new. Both threads call this."""
        with self._lock:
            addresses = self._known.setdefault(name, OrderedDict())
            self._known.move_to_end(name)
            is_new = address not in addresses
            addresses[address] = None
            addresses.move_to_end(address)
            self._count += is_new
            if len(addresses) > ADDRESSES_MAX:  # prove: a-name-pushes-out-its-own
                self._forget(name)
            if self._count > REMEMBERED_MAX:
                self._forget(next(iter(self._known)))
            return is_new

    def _forget(self, name: str) -> None:
        self._known[name].popitem(last=False)
        self._count -= 1
        if not self._known[name]:
            del self._known[name]

    def close(self) -> None:
        self._ends.set()

    # ---- the thread

    def _run(self) -> None:
        assert self._path is not None, "the thread runs only with a file"
        while True:
            has_ended = self._ends.is_set()
            self.exchange(self._path)
            if has_ended:
                return
            self._ends.wait(READ_SECONDS)

    def exchange(self, path: str) -> None:
        """Read the entries of other brokers, and write new entries of this broker."""
        with suppress(OSError):
            self._read(path)  # prove: what-others-wrote-stays
        if not self._unsaved:
            return
        self._unsaved = False  # set before the copy, so that later entries are written the next time
        try:
            self._write(path)
            self._problem = ""
        except OSError as error:
            self._unsaved = True
            if isinstance(error, NotRegular | FileExistsError) and str(error) != self._problem:
                self._problem = str(error)
                log.warning("the file of known logins for the next master cannot be written: %s", error)

    def _write(self, path: str) -> None:
        lines = [f"{name}{each}\n" for name, addresses in list(self._known.items()) for each in list(addresses)]
        content = "".join(lines).encode()
        _remove_left_over(f"{path}.new")
        with opened(os, f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600) as descriptor:
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
                name, address = line[:_DIGEST_CHARACTERS], line[_DIGEST_CHARACTERS:]
                if address not in self._known.get(name, ()):
                    self._add(name, address)
        self._seen = status.st_ino, status.st_mtime_ns


def _remove_left_over(path: str) -> None:
    """Remove the temporary file of a broker that ended during a write. Raises NotRegular, and FileExistsError if
    another program made the file."""
    if (kind := kind_of(path)) is not None:
        raise NotRegular(path, kind)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if status.st_nlink > 1 or status.st_uid != os.geteuid():
        raise FileExistsError(errno.EEXIST, "another program made this file", path)
    os.unlink(path)


def _digest(login: str, address: str) -> str:
    data = b"%b\0%b" % (address.encode("utf-8", "surrogatepass"), login.encode("utf-8", "surrogatepass"))
    return blake2b(data, digest_size=_DIGEST_CHARACTERS // 2).hexdigest()
