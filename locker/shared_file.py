"""`shared-file`: a POSIX record lock on the file `lock` in the data directory, as ActiveMQ's SharedFileLocker takes it.

    offset 0   8 bytes   time of taking in ms, big-endian: all that ActiveMQ writes
    offset 8   to "\\n"   JSON: holder, epoch, pid, host, admin, nonce, touched_every, time (the 8 bytes again)

ActiveMQ locks bytes 0 to max(1, size) with fcntl (reference: LockFile.java); we lock from byte 0 to the largest offset,
so the two exclude each other whatever the size. ActiveMQ neither reads nor truncates the content: a JSON line whose
time is not that of the 8 bytes was left by a former holder, and an ActiveMQ broker holds the file.

POSIX gives locks to processes, not to descriptors, with two traps. A process is never refused its own lock, so a table
of this process's locks replaces the kernel's check. And closing *any* descriptor of the file drops the lock: while a
file is held, this process opens it nowhere else, and reads it through the descriptor that holds it.

A holder touches the file at each keep-alive, every `touched_every` seconds. A standby for which the file's time does
not change reports that the holder is silent. It compares that time only with its former value, and measures by its own
clock. It only reports: a silent holder keeps the lock.

The file is never deleted; deleting or replacing it takes the lock away from its holder, which notices at the next
keep-alive.

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
#: A file replaced between opening and locking it is opened anew; at most this often in a poll, then it counts as held.
REPLACED_MAX: Final = 3

#: An NFS server frees the locks of a client that was silent for the length of its lease: 90 s on Linux, rarely less
#: than this. A keep-alive renews that lease, so a proof lasts no longer than this, but at least this many keep-alives.
PROOF_SECONDS_MAX: Final = 30.0
PROOF_KEEP_ALIVES_MIN: Final = 2

#: A healthy holder touches the file more often than this, even when something is slow for a moment.
SILENCE_SECONDS_MIN: Final = 3.0
SILENCE_TOUCHES_MIN: Final = 4

# Errors of the kernel for a file that went away under an open descriptor, on NFS in particular.
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
class _Sign:
    """State of a file that another process holds, at one reading."""

    inode: Identity
    content: bytes
    modified: float


class SharedFileLocker(Locker):
    """The lock on `<directory>/lock`. Needs a volume that honours fcntl locks between its hosts (NFS: version 4).

    The file is opened and closed under the volume's guard only; see the second trap above. `[locker] directory` sets
    its place (ActiveMQ's SharedFileLocker.directory); the default is the data directory. A directory that the operator
    set must exist: otherwise a mount is missing. Raises LockSettingsError.
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
        self._sign: _Sign | None = None  # the holder's last, and when we first saw it
        self._sign_at = 0.0

    @property
    def where(self) -> str:
        return f"the lock file {self.path}"

    @property
    def unsafe(self) -> str | None:
        period = self.settings.lock_keep_alive_period_seconds
        if PROOF_KEEP_ALIVES_MIN * period > PROOF_SECONDS_MAX:
            return (
                f"lock_keep_alive_period is {period:g} s: on NFS the lock of a broker that was cut off may be "
                f"another's before it knows; up to {PROOF_SECONDS_MAX / PROOF_KEEP_ALIVES_MIN:g} s is safe"
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
            raise LockLost(f"{self.where} is not ours: nothing to announce there")
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
        if self._sign is None or (period := touched_every(self._sign.content)) is None:
            return None
        silence = self.clock.now() - self._sign_at
        return silence if silence > max(SILENCE_SECONDS_MIN, SILENCE_TOUCHES_MIN * period) else None

    # Taking it

    def _is_taken_here(self) -> bool:
        """Return whether another locker of this process holds the file. Opening the file to find out would release that
        lock."""
        try:
            return identity_of(self._volume.stat(self.path)) in self._volume.held
        except FileNotFoundError:
            return False

    def _take(self) -> bool | None:
        """Lock the file. None: the file was deleted or replaced while we locked it."""
        known_at = self.clock.now()
        descriptor = self._open()
        try:
            if not self._volume.lock(descriptor):  # prove: locked-file-is-taken
                return False
            inode = identity_of(self._volume.fstat(descriptor))
            # The process that replaced the file between our opening and locking it has the lock that others see.
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
            # Two hosts that each make the directory because a mount is missing would each have a lock of its own.
            if self._is_elsewhere:
                raise
            self._volume.makedirs(self._directory)
            return open_regular(self._volume, self.path, os.O_RDWR | os.O_CREAT)

    def _nonce(self) -> str:
        return f"{self.request.random.getrandbits(NONCE_BITS):0{NONCE_BITS // 4}x}"

    def _write(self, mine: _Held, holder: Holder) -> None:
        """Put our name into the file that we own, synced.

        Usually in one write. A reader between two writes may take us for an ActiveMQ broker; names decide nothing.
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

    # Keeping it

    def _is_still_mine(self, mine: _Held) -> bool:
        """Lock again, then check name and content.

        Locking our own file changes nothing. If the lock was lost (a server that forgot it) and is free, it is ours
        again; the content shows that there was no other holder meanwhile: every holder, ActiveMQ too, writes it first.
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

    # Reading it

    def _holder_in_file(self) -> Holder | None:
        sign, self._sign = self._sign, None
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
            self._sign = _Sign(identity_of(status), content, status.st_mtime)
            if self._sign != sign:
                self._sign_at = self.clock.now()
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
    """Return the content of a lock file held by `holder`, whose `since_ms` is the time at the start. `touched_every` 0:
    never touched."""
    assert holder.since_ms is not None, "a holder in a lock file has a time of taking"
    line = holder.line(nonce=nonce, touched_every=touched_every or None, time=holder.since_ms)
    return STAMP.pack(holder.since_ms) + json.dumps(line, ensure_ascii=False).encode() + b"\n"


def decode(content: bytes) -> Holder:
    """Return the holder that wrote a lock file. Never fails: content that cannot be read was not written by us."""
    if len(content) < STAMP.size:
        return Holder("a broker that has not given its name yet")
    (since_ms,) = STAMP.unpack_from(content)
    try:
        line = json.loads(content[STAMP.size :].partition(b"\n")[0])
        if line["time"] != since_ms:
            raise ValueError("left by a former holder")
        return Holder.of_line(line, since_ms)
    except (ValueError, KeyError, TypeError):
        return Holder(ACTIVEMQ, since_ms=since_ms)


def touched_every(content: bytes) -> float | None:
    """Return the seconds between two touches that the writer promises; None: none are promised."""
    try:
        line = json.loads(content[STAMP.size :].partition(b"\n")[0])
        is_promised = line["time"] == STAMP.unpack_from(content)[0]
        return float(line["touched_every"]) if is_promised else None
    except (ValueError, KeyError, TypeError, struct.error):
        return None
