"""Lock `shared-file`: a POSIX record lock on the file `lock` in the data directory, as in ActiveMQ's SharedFileLocker.

    offset 0   8 bytes   time of acquisition in ms since 1970, big-endian: all that ActiveMQ writes
    offset 8   to "\\n"   JSON: holder, epoch, pid, host, admin, nonce, touched_every, time (equal to the 8 bytes)

ActiveMQ locks bytes 0 to max(1, size) with fcntl (reference: LockFile.java). TandemMQ locks from byte 0 to the largest
offset, so the two exclude each other for any size. ActiveMQ neither reads nor truncates the content. So if the time in
the JSON line differs from the 8 bytes, a former holder wrote the line, and an ActiveMQ broker holds the file.

In POSIX a process owns a lock, not a descriptor. This has two consequences. A process always gets a lock that it has
already, so a table of this process's locks is checked first. And closing *any* descriptor of the file drops the lock:
while this process holds a file, it does not open it again, and reads it through the descriptor of the lock.

A holder sets the modification time of the file at each keep-alive, every `touched_every` seconds. If a standby sees no
change of that time, measured by the clock of the standby, it reports that the holder is silent. A silent holder keeps
the lock.

The file is never deleted by a broker. If it is deleted or replaced, its holder loses the lock, and notices this at its
next keep-alive.

All access to the file goes through `LockRequest.volume`.
"""

# proofs: shared-file-lock

from __future__ import annotations

import errno
import json
import os
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tandemmq.disk import Identity, identity_of, open_regular, write_fully
from tandemmq.locker.contract import NO_PROOF, Holder, Locker, LockLost, LockRequest, LockUnavailable, Proof
from tandemmq.locker.options import Options
from tandemmq.modes import whose

FILE_NAME: Final = "lock"
ACTIVEMQ: Final = "an ActiveMQ broker"
STAMP: Final = struct.Struct(">q")
CONTENT_BYTES_MAX: Final = 4096
NONCE_BITS: Final = 64
#: Attempts in one poll. If the file was replaced between opening and locking, it is opened again; after this many
#: attempts it counts as held.
REPLACED_MAX: Final = 3

#: Limit of a proof. An NFS server frees the locks of a client that was silent for the length of the NFS lease, which is
#: 90 s on Linux and rarely shorter than this. Each keep-alive renews that lease. A proof is still valid for at least
#: PROOF_KEEP_ALIVES_MIN keep-alive periods.
PROOF_SECONDS_MAX: Final = 30.0
PROOF_KEEP_ALIVES_MIN: Final = 2

#: A holder is reported as silent after this time, or after this many periods between touches if that is longer.
SILENCE_SECONDS_MIN: Final = 3.0
SILENCE_TOUCHES_MIN: Final = 4

# Errors of the kernel for an open file that was deleted, in particular on NFS.
_GONE: Final = frozenset({errno.ENOENT, errno.ESTALE, errno.ENOTDIR})


@dataclass(slots=True)
class _Held:
    """Lock file that this process owns."""

    descriptor: int
    inode: Identity
    content: bytes
    holder: Holder
    nonce: str


@dataclass(frozen=True, slots=True)
class _Observation:
    """State of a lock file that another process holds, at one read."""

    inode: Identity
    content: bytes
    modified: float


class SharedFileLocker(Locker):
    """Lock on `<directory>/lock`. The volume must provide fcntl locks between its hosts (NFS: version 4).

    The file is opened and closed only under the volume's guard, because closing any descriptor drops the lock.
    `[locker] directory` sets the directory (ActiveMQ's SharedFileLocker.directory); default: the data directory. A
    configured directory must exist, because otherwise a mount is missing. Raises LockSettingsError.
    """

    kind = "shared-file"

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        options = Options(request.options)
        elsewhere = options.text("directory")
        options.end()
        self._is_elsewhere = elsewhere is not None
        self._directory = os.path.abspath(elsewhere or request.directory)
        self.path = os.path.join(self._directory, FILE_NAME)
        self._volume = request.volume
        self._mine: _Held | None = None
        self._is_lost = False
        self._observed: _Observation | None = None  # last observation of the holder, and since when it is unchanged
        self._observed_at = 0.0

    @property
    def where(self) -> str:
        return f"the lock file {self.path}"

    @property
    def unsafe(self) -> str | None:
        period = self.settings.lock_keep_alive_period_seconds
        if PROOF_KEEP_ALIVES_MIN * period > PROOF_SECONDS_MAX:
            return (
                f"lock_keep_alive_period is {period:g} s: on NFS another broker may get the lock of a disconnected "
                f"broker before that one notices; up to {PROOF_SECONDS_MAX / PROOF_KEEP_ALIVES_MIN:g} s is safe"
            )
        return super().unsafe

    def try_acquire(self) -> bool:
        if self._mine is not None:
            return not self._is_lost
        try:
            with self._volume.guard:
                for _ in range(REPLACED_MAX):
                    if self._is_taken_here():  # prove: file-of-this-process-is-taken
                        return False
                    is_mine = self._take()
                    if is_mine is not None:
                        return is_mine
                return False
        except OSError as error:
            raise self._unavailable("cannot be locked", error) from error

    def keep_alive(self) -> bool:
        mine = self._mine
        if mine is None or self._is_lost:
            return False
        known_at = self.clock.now()
        try:
            self._is_lost = not self._is_still_mine(mine)
        except OSError as error:
            raise self._unavailable("cannot be checked", error) from error
        proof = Proof(known_at, self._proof_seconds())  # prove: file-proved-before "known_at" -> "self.clock.now()"
        self._proof = NO_PROOF if self._is_lost else proof
        if not self._is_lost:
            with suppress(OSError):  # the next call reports the error
                self._volume.touch(mine.descriptor)
        return not self._is_lost

    def announce(self, epoch: int, admin: str | None = None) -> None:
        mine = self._mine
        if mine is None or not self.keep_alive():
            raise LockLost(f"{self.where} is not held by this process: nothing to announce")
        try:
            self._write(mine, replace(mine.holder, epoch=epoch, admin=admin or mine.holder.admin))
        except OSError as error:
            raise self._unavailable("cannot be written", error) from error

    def release(self) -> None:
        mine, self._mine, self._is_lost, self._proof = self._mine, None, False, NO_PROOF
        if mine is None:
            return
        with self._volume.guard:
            self._volume.held.pop(mine.inode, None)
            try:
                self._volume.close(mine.descriptor)
            except OSError:
                pass  # the descriptor is closed in any case, and the lock released

    def holder(self) -> Holder | None:
        if self._mine is not None and not self._is_lost:
            return self._mine.holder
        try:
            with self._volume.guard:
                return self._holder_in_file()
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise self._unavailable("cannot be read", error) from error

    def silence_seconds(self) -> float | None:
        if self._observed is None or (period := touched_every(self._observed.content)) is None:
            return None
        silence = self.clock.now() - self._observed_at
        return silence if silence > max(SILENCE_SECONDS_MIN, SILENCE_TOUCHES_MIN * period) else None

    # Acquiring

    def _is_taken_here(self) -> bool:
        """Return whether another locker of this process holds the file. The file is not opened for this, because
        closing it would release that lock."""
        try:
            return identity_of(self._volume.stat(self.path)) in self._volume.held
        except FileNotFoundError:
            return False

    def _take(self) -> bool | None:
        """Lock the file. Return whether this process owns the lock, or None if the file was deleted or replaced
        meanwhile."""
        known_at = self.clock.now()
        descriptor = self._open()
        try:
            if not self._volume.lock(descriptor):  # prove: locked-file-is-taken
                return False
            inode = identity_of(self._volume.fstat(descriptor))
            # If the name now belongs to another file, other processes lock that file, not the one that we locked.
            if identity_of(self._volume.stat(self.path)) != inode:  # prove: locked-file-has-its-name
                return None
            mine = _Held(descriptor, inode, b"", self.request.holder, self._nonce())
            self._write(mine, replace(mine.holder, epoch=None))
            self._volume.held[inode] = mine
            self._mine, self._is_lost, descriptor = mine, False, -1
            seconds = self._proof_seconds()
            self._proof = Proof(known_at, seconds)  # prove: file-locked-before "known_at" -> "self.clock.now()"
            return True
        except FileNotFoundError:
            return None
        finally:
            if descriptor >= 0:
                self._volume.close(descriptor)

    def _open(self) -> int:
        try:
            return open_regular(self._volume, self.path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            # A configured directory is not made: if a mount is missing on two hosts, each would get its own lock.
            if self._is_elsewhere:
                raise
            self._volume.makedirs(self._directory)
            return open_regular(self._volume, self.path, os.O_RDWR | os.O_CREAT)

    def _nonce(self) -> str:
        return f"{self.request.random.getrandbits(NONCE_BITS):0{NONCE_BITS // 4}x}"

    def _write(self, mine: _Held, holder: Holder) -> None:
        """Write our holder entry into the file, durable on return.

        This is usually one write. If it takes two, a process that reads between them may report an ActiveMQ broker. The
        entry is only for information.
        """
        now_ms = self._volume.wall_ms()
        content = encode(replace(holder, since_ms=now_ms), mine.nonce, self.settings.lock_keep_alive_period_seconds)
        size = self._volume.fstat(mine.descriptor).st_size
        write_fully(self._volume, mine.descriptor, content, 0)
        if size > len(content):
            self._volume.ftruncate(mine.descriptor, len(content))
        self._volume.fsync(mine.descriptor)
        mine.content = content
        mine.holder = replace(holder, since_ms=now_ms)

    # Proving

    def _is_still_mine(self, mine: _Held) -> bool:
        """Lock the file again, then check its name and its content. Return whether this process still owns the lock.

        Locking a file that this process has locked changes nothing. If the file server has lost the lock and the lock
        is free, this process gets it again. The content then shows whether there was another holder meanwhile: every
        holder writes to the file first, also an ActiveMQ broker.
        """
        try:
            return (
                self._volume.lock(mine.descriptor)  # prove: file-is-locked-again
                and identity_of(self._volume.stat(self.path)) == mine.inode  # prove: file-kept-its-name
                and self._volume.pread(mine.descriptor, CONTENT_BYTES_MAX, 0)
                == mine.content  # prove: file-kept-our-words
            )
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise

    # Reporting

    def _holder_in_file(self) -> Holder | None:
        former, self._observed = self._observed, None
        here = self._volume.held.get(identity_of(self._volume.stat(self.path)))
        if here is not None:
            return decode(self._volume.pread(here.descriptor, CONTENT_BYTES_MAX, 0))
        descriptor = open_regular(self._volume, self.path, os.O_RDONLY)
        try:
            pid = self._volume.holder_pid(descriptor)
            if pid is None:
                return None
            content = self._volume.pread(descriptor, CONTENT_BYTES_MAX, 0)
            status = self._volume.fstat(descriptor)
            self._observed = _Observation(identity_of(status), content, status.st_mtime)
            if self._observed != former:
                self._observed_at = self.clock.now()
            holder = decode(content)
            return replace(holder, pid=pid) if holder.pid is None and pid > 0 else holder
        finally:
            self._volume.close(descriptor)

    def _proof_seconds(self) -> float:
        period = self.settings.lock_keep_alive_period_seconds
        if period <= 0:
            return super()._proof_seconds()
        return min(super()._proof_seconds(), max(PROOF_SECONDS_MAX, PROOF_KEEP_ALIVES_MIN * period))

    def _unavailable(self, what: str, error: OSError) -> LockUnavailable:
        return LockUnavailable(f"{self.where} {what}: {error.strerror or error}{whose(error)}", error.errno)


def encode(holder: Holder, nonce: str, touched_every: float = 0.0) -> bytes:
    """Return the content of the lock file of `holder`. Its `since_ms` is the time at the start of the file.
    `touched_every` in seconds; 0: the holder does not touch the file."""
    assert holder.since_ms is not None, "a holder in a lock file has the time at which the lock was taken"
    line = holder.line(nonce=nonce, touched_every=touched_every or None, time=holder.since_ms)
    return STAMP.pack(holder.since_ms) + json.dumps(line, ensure_ascii=False).encode() + b"\n"


def decode(content: bytes) -> Holder:
    """Return the holder that wrote a lock file. Never raises: content in another form is that of an ActiveMQ broker."""
    if len(content) < STAMP.size:
        return Holder("a broker that has not written its name yet")
    (since_ms,) = STAMP.unpack_from(content)
    try:
        line = json.loads(content[STAMP.size :].partition(b"\n")[0])
        if line["time"] != since_ms:
            raise ValueError("written by a former holder")
        return Holder.of_line(line, since_ms)
    except (ValueError, KeyError, TypeError):
        return Holder(ACTIVEMQ, since_ms=since_ms)


def touched_every(content: bytes) -> float | None:
    """Return the seconds between two touches that the content states, or None if it states none."""
    try:
        line = json.loads(content[STAMP.size :].partition(b"\n")[0])
        is_promised = line["time"] == STAMP.unpack_from(content)[0]
        return float(line["touched_every"]) if is_promised else None
    except (ValueError, KeyError, TypeError, struct.error):
        return None
