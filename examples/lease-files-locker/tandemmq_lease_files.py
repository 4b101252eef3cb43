"""`lease-files`: a lease in plain files, for volumes without locks. An example of a kind of lock in another package.

    <directory>/claim-00000000000000000007    one line of JSON; the file with the highest number is the lease
    <directory>/.claim-<nonce>                a file in preparation

    {"holder", "epoch", "pid", "host", "admin", "since", "nonce", "lease_ms", "beat", "released"}

A broker takes the lease with link(2), which makes the complete file with the next number appear. If several brokers
try, one succeeds. The holder renews the lease: it rewrites its file with the next `beat`. No clocks of two hosts are
compared: a standby takes the next number when the highest file has not changed for longer than its lease, by the
standby's own boot clock. The holder's proof begins before its write.

Some time passes between a standby's last reading of the file and its link. In this time, the holder can rewrite its
file and find no next number. So a renewal counts only if it is complete within one lease after the previous renewal. A
standby decides only after a longer time than that, so it has read each renewal that counts.

A slow standby can take a number that other brokers used and removed long ago. So each broker checks for higher numbers
after its link. The highest file is never removed, so such a broker always finds a higher number.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, replace
from typing import Any, Final

from tandemmq.locker.contract import NO_PROOF, Holder, LockLost, LockRequest, LockSettingsError, LockUnavailable, Proof
from tandemmq.locker.leased import LeasedLocker
from tandemmq.locker.options import Options

PREFIX: Final = "claim-"
DIGITS: Final = 20
CONTENT_BYTES_MAX: Final = 4096
LEASE_MS: Final = 2_000.0
LEASE_MS_MIN: Final = 100.0
#: Part of a lease that the proof of the holder does not include, and the part by which a standby waits longer.
MARGIN: Final = 0.1
SLACK: Final = 0.25
#: Maximum number of readings, if the highest file is removed before it can be read.
LOOKS_MAX: Final = 5
#: Number of changes that show that another broker with our name is alive. A former life of this broker can cause one.
NAMESAKE_BEATS: Final = 2
NONCE_BITS: Final = 64


@dataclass(slots=True)
class _Claim:
    """The file of this broker, which is open."""

    number: int
    path: str
    descriptor: int
    inode: int
    line: dict[str, Any]


@dataclass(slots=True)
class _Watch:
    """The highest file at the last reading, and the time of its last change by our boot clock."""

    number: int = -1
    content: bytes = b""
    nonce: object = None
    since_seconds: float = 0.0
    beats: int = 0

    def see(self, number: int, content: bytes, now_seconds: float) -> None:
        if (number, content) == (self.number, self.content):
            return
        nonce = _read(content).get("nonce")
        self.beats = self.beats + 1 if (number, nonce) == (self.number, self.nonce) else 0
        self.number, self.content, self.nonce, self.since_seconds = number, content, nonce, now_seconds


class LeaseFilesLocker(LeasedLocker):
    """Lease of the brokers that have the same `directory`."""

    kind = "lease-files"

    def __init__(self, request: LockRequest) -> None:
        super().__init__(request)
        options = Options(request.options, "options")
        directory = options.text("directory")
        if directory is None:
            raise LockSettingsError("options.directory", None, "a directory for the leases, which both brokers see")
        self._directory = os.path.abspath(directory)
        self._lease_ms = options.number("lease", LEASE_MS, LEASE_MS_MIN)
        options.end()
        self._claim: _Claim | None = None
        self._is_lost = False
        self._proof = NO_PROOF
        self._watch = _Watch()

    @property
    def where(self) -> str:
        return f"the lease in {self._directory}"

    @property
    def lease_seconds(self) -> float:
        """Length of the lease. It has its own option, because the default of `lock_acquire_sleep_interval` is for lock
        files."""
        return self._lease_ms / 1000

    # Acquiring

    def try_acquire(self) -> bool:
        if self._claim is not None:
            return not self._is_lost
        try:
            os.makedirs(self._directory, exist_ok=True)
            number, content = self._highest()
            self._watch.see(number, content, self.clock.now())
            if not self._is_free(content):
                self._wait_behind(content)
                return False
            return self._take(number + 1)
        except OSError as error:
            raise self._unavailable(error) from error

    def _is_free(self, content: bytes) -> bool:
        """Return whether no broker has the lease: there is no file, it is released, or it has not changed for too
        long (`_watch`)."""
        line = _read(content)
        lease_seconds = float(line.get("lease_ms", self._lease_ms)) / 1000
        unchanged_seconds = self.clock.now() - self._watch.since_seconds
        return self._watch.number == 0 or bool(line.get("released")) or unchanged_seconds > lease_seconds * (1 + SLACK)

    def _wait_behind(self, content: bytes) -> None:
        """Raise LockRefused if another broker with our name has the lease and is alive."""
        holder = _holder_in(content)
        is_namesake = holder is not None and holder.name == self.request.holder.name
        self._note_namesake(is_namesake)
        if is_namesake and self._watch.beats >= NAMESAKE_BEATS:
            self._refuse_namesake(holder)

    def _take(self, number: int) -> bool:
        known_at = self.clock.now()
        nonce = f"{self.request.random.getrandbits(NONCE_BITS):0{NONCE_BITS // 4}x}"
        line = {
            **_line_of(replace(self.request.holder, epoch=None, since_ms=self.request.volume.wall_ms())),
            "nonce": nonce,
            "lease_ms": self._lease_ms,
            "beat": 0,
            "released": False,
        }
        prepared = os.path.join(self._directory, f".{PREFIX}{nonce}")
        descriptor = os.open(prepared, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _write(descriptor, line)
            path = self._path(number)
            inode = os.fstat(descriptor).st_ino
            if not _link(prepared, path, inode) or self._highest()[0] != number:
                return False
            self._claim, descriptor = _Claim(number, path, descriptor, inode, line), -1
            self._is_lost, self._proof = False, self._proof_since(known_at)
            self._sweep(number)
            return True
        finally:
            os.unlink(prepared)
            if descriptor >= 0:
                os.close(descriptor)

    def _sweep(self, number: int) -> None:
        """Remove the files before ours, the lowest first, so that a former holder finds its file missing."""
        for lower in sorted(self._numbers()):
            if lower < number:
                try:
                    os.unlink(self._path(lower))
                except FileNotFoundError:
                    pass

    # Renewing

    def keep_alive(self) -> bool:
        claim = self._claim
        if claim is None or self._is_lost:
            return False
        known_at = self.clock.now()
        try:
            claim.line["beat"] += 1
            _write(claim.descriptor, claim.line)
            self._is_lost = not self._is_highest(claim) or self._has_ended()
        except OSError as error:
            raise self._unavailable(error) from error
        self._proof = NO_PROOF if self._is_lost else self._proof_since(known_at)
        return not self._is_lost

    def _has_ended(self) -> bool:
        """Return whether the lease had ended when a renewal was complete: a standby may have taken it."""
        return self.clock.now() - self._proof.known_at_seconds >= self.lease_seconds

    def _is_highest(self, claim: _Claim) -> bool:
        """Return whether our file exists and no next one does. Call it after a write. If the next file was removed,
        ours was removed before it."""
        try:
            if os.stat(claim.path).st_ino != claim.inode:
                return False
        except FileNotFoundError:
            # If the directory is missing (a lost mount), this raises an error: the lease may not be lost. If only our
            # file is missing, another broker removed it.
            os.stat(self._directory)
            return False
        try:
            os.stat(self._path(claim.number + 1))
        except FileNotFoundError:
            return True
        return False

    def announce(self, epoch: int, admin: str | None = None) -> None:
        claim = self._claim
        if claim is None or self._is_lost:
            raise LockLost(f"{self.where} is not held by this process: nothing to announce")
        claim.line |= {"epoch": epoch, "admin": admin or claim.line["admin"]}
        if not self.keep_alive():
            raise LockLost(f"{self.where} is no longer held by this process: nothing to announce")

    def release(self) -> None:
        claim, self._claim, self._is_lost, self._proof = self._claim, None, False, NO_PROOF
        self._watch = _Watch()
        if claim is None:
            return
        try:
            # If the file is not the highest any more, no broker reads this.
            _write(claim.descriptor, claim.line | {"released": True})
        except OSError:
            pass  # the lease expires
        finally:
            os.close(claim.descriptor)

    # Reporting

    def proof(self) -> Proof:
        return self._proof

    def holder(self) -> Holder | None:
        """Return the holder, or None. Any thread."""
        try:
            number, content = self._highest()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable(error) from error
        is_seen = (number, content) == (self._watch.number, self._watch.content)
        return None if is_seen and self._is_free(content) else _holder_in(content)

    # Files

    def _highest(self) -> tuple[int, bytes]:
        """Return number and content of the highest file; 0 and b"" if there is none."""
        for tries_left in reversed(range(LOOKS_MAX)):
            number = max(self._numbers(), default=0)
            if number == 0:
                break
            try:
                with open(self._path(number), "rb") as file:
                    return number, file.read(CONTENT_BYTES_MAX)
            except FileNotFoundError:  # meanwhile another broker took the next number and removed this file
                if not tries_left:
                    raise
        return 0, b""

    def _numbers(self) -> list[int]:
        return [int(name.removeprefix(PREFIX)) for name in os.listdir(self._directory) if name.startswith(PREFIX)]

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{PREFIX}{number:0{DIGITS}d}")

    def _unavailable(self, error: OSError) -> LockUnavailable:
        return LockUnavailable(f"{self.where} is unavailable: {error.strerror or error}", error.errno)

    def _proof_since(self, known_at_seconds: float) -> Proof:
        return Proof(known_at_seconds, self.lease_seconds * (1 - MARGIN))


def _link(prepared: str, path: str, inode: int) -> bool:
    try:
        os.link(prepared, path)
    except FileExistsError:
        # NFS repeats a request whose reply was lost, so the name may be our own link.
        return os.stat(path).st_ino == inode
    return True


def _write(descriptor: int, line: dict[str, Any]) -> None:
    """Rewrite and sync the file. A reader can see a mixture of old and new content, which also counts as a change."""
    content = json.dumps(line).encode() + b"\n"
    if os.pwrite(descriptor, content, 0) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(content))
    os.fsync(descriptor)


def _line_of(holder: Holder) -> dict[str, Any]:
    return {
        "holder": holder.name,
        "epoch": holder.epoch,
        "pid": holder.pid,
        "host": holder.host,
        "admin": holder.admin,
        "since": holder.since_ms,
    }


def _read(content: bytes) -> dict[str, Any]:
    """Return the values in a file; {} if it is invalid."""
    try:
        line = json.loads(content)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def _holder_in(content: bytes) -> Holder | None:
    line = _read(content)
    if line.get("released"):
        return None
    if "holder" not in line:
        return Holder("a broker whose lease cannot be read") if content else None
    facts = (line.get(key) for key in ("epoch", "pid", "host", "admin", "since"))
    return Holder(str(line["holder"]), *facts)
