"""The lock file between processes, with POSIX locks."""

# proves: shared-file-lock

from __future__ import annotations

import errno
import fcntl
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.disk import identity_of
from tandemmq.locker.contract import Holder, LockRequest, LockSettingsError, LockUnavailable
from tandemmq.locker.shared_file import ACTIVEMQ, CONTENT_BYTES_MAX, STAMP, SharedFileLocker, decode, encode
from tandemmq.locker.volume import OsVolume
from tests.support.crash.unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk
from tests.support.locker.manual_clock import ManualClock

pytestmark = pytest.mark.promise("locks-keep-their-contract")

WAIT_SECONDS_MAX = 20.0
RequestFor = Callable[..., LockRequest]


@pytest.fixture
def locker(request_for: RequestFor) -> Iterator[SharedFileLocker]:
    made = SharedFileLocker(request_for("a"))
    yield made
    made.release()


def test_a_posix_lock_of_byte_0_is_refused_while_it_is_held(locker: SharedFileLocker, other) -> None:
    assert locker.try_acquire()
    assert other.say("probe") == "locked"
    locker.announce(1)
    assert other.say("probe") == "locked"
    locker.release()
    assert other.say("probe") == "free"


def test_a_lock_of_byte_0_alone_keeps_it_out(locker: SharedFileLocker, tmp_path: Path) -> None:
    # ActiveMQ locks one byte of a new file.
    program = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT);"
        "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0); print('locked', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "lock")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not locker.try_acquire()
        process.kill()
    assert locker.try_acquire()


def test_asking_for_the_holder_costs_the_owner_nothing(
    locker: SharedFileLocker, request_for: RequestFor, other
) -> None:
    # Closing any descriptor of the file would drop the lock of the whole process.
    standby = SharedFileLocker(request_for("b"))
    assert locker.try_acquire()
    assert locker.holder() is not None
    assert standby.holder() is not None
    assert not standby.try_acquire()
    assert other.say("probe") == "locked"
    assert locker.keep_alive()


def test_a_killed_holder_is_no_holder(locker: SharedFileLocker, other) -> None:
    assert other.say("try") == "True"
    holder = locker.holder()
    assert holder is not None
    assert holder.since_ms is not None
    other.kill()
    assert locker.holder() is None


def test_a_holder_whose_file_is_replaced_notices(locker: SharedFileLocker, tmp_path: Path) -> None:
    assert locker.try_acquire()
    copy = tmp_path / "copy"
    copy.write_bytes(os.pread(locker._mine.descriptor, CONTENT_BYTES_MAX, 0))  # type: ignore[union-attr]
    copy.rename(locker.path)
    assert not locker.keep_alive()


def test_a_holder_whose_file_went_and_came_back_stays_deposed(locker: SharedFileLocker, tmp_path: Path) -> None:
    assert locker.try_acquire()
    os.rename(locker.path, tmp_path / "away")
    assert not locker.keep_alive()
    os.rename(tmp_path / "away", locker.path)
    assert not locker.keep_alive()


@pytest.mark.parametrize("foreign", [STAMP.pack(1), b"", b"x" * 300], ids=["activemq", "emptied", "longer"])
def test_foreign_content_is_a_lost_lock(locker: SharedFileLocker, foreign: bytes) -> None:
    assert locker.try_acquire()
    # From another process: opening and closing the file here would drop the lock itself.
    program = "import sys; open(sys.argv[1], 'wb').write(bytes.fromhex(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", program, locker.path, foreign.hex()], check=True)
    assert not locker.keep_alive()


def test_a_lock_that_slipped_away_is_ours_again_or_lost_when_it_was_taken(locker: SharedFileLocker, other) -> None:
    assert locker.try_acquire()
    fcntl.lockf(locker._mine.descriptor, fcntl.LOCK_UN)  # type: ignore[union-attr]
    assert other.say("probe") == "free"
    assert locker.keep_alive()
    assert other.say("probe") == "locked"
    fcntl.lockf(locker._mine.descriptor, fcntl.LOCK_UN)  # type: ignore[union-attr]
    assert other.say("try") == "True"
    assert other.say("release") == "None"
    assert not locker.keep_alive()


def test_a_changed_time_of_the_file_is_not_a_loss(locker: SharedFileLocker) -> None:
    # ActiveMQ takes a `touch` for a loss; we look at what stands there.
    assert locker.try_acquire()
    os.utime(locker.path, (1, 1))
    assert locker.keep_alive()


def test_a_standby_changes_nothing_in_the_file(locker: SharedFileLocker, other) -> None:
    assert other.say("try") == "True"
    before = os.stat(locker.path)
    for _ in range(3):
        assert not locker.try_acquire()
        locker.holder()
    after = os.stat(locker.path)
    assert (before.st_ino, before.st_size, before.st_mtime_ns) == (after.st_ino, after.st_size, after.st_mtime_ns)


def test_the_file_stays_when_the_lock_is_released(locker: SharedFileLocker) -> None:
    assert locker.try_acquire()
    locker.release()
    assert os.path.exists(locker.path)


def test_a_child_process_inherits_no_descriptor_of_it(locker: SharedFileLocker) -> None:
    assert locker.try_acquire()
    assert not os.get_inheritable(locker._mine.descriptor)  # type: ignore[union-attr]


def test_a_poll_leaves_no_descriptor_open(locker: SharedFileLocker, other) -> None:
    assert other.say("try") == "True"
    locker.try_acquire()
    before = os.listdir("/proc/self/fd")
    for _ in range(10):
        locker.try_acquire()
        locker.holder()
    assert len(os.listdir("/proc/self/fd")) == len(before)


class ReplacedAtFirst(SharedFileLocker):
    """The file is replaced right after it was opened, so often."""

    replaced = 0

    def __init__(self, request: LockRequest, times: int) -> None:
        super().__init__(request)
        self.times = times

    def _open(self) -> int:
        descriptor = super()._open()
        if self.replaced < self.times:
            self.replaced += 1
            os.unlink(self.path)
            Path(self.path).touch()
        return descriptor


def test_a_file_replaced_while_it_was_locked_is_locked_anew(request_for: RequestFor, other) -> None:
    locker = ReplacedAtFirst(request_for("a"), 1)
    assert locker.try_acquire()
    assert other.say("probe") == "locked"
    assert locker.keep_alive()
    locker.release()


def test_a_file_replaced_again_and_again_is_not_owned(request_for: RequestFor) -> None:
    locker = ReplacedAtFirst(request_for("a"), 1_000)
    assert not locker.try_acquire()
    assert locker.replaced < 1_000


def test_the_directory_is_made_when_it_is_missing(tmp_path: Path) -> None:
    locker = SharedFileLocker(LockRequest(str(tmp_path / "new" / "store"), Holder("a")))
    assert locker.try_acquire()
    locker.release()


@pytest.mark.parametrize(
    ("directory", "message", "number"),
    [
        ("file", "Not a directory", errno.ENOTDIR),
        # Its mount may be missing: a directory made here would be another than the other broker's.
        ("elsewhere", "No such file or directory", errno.ENOENT),
        ("with a directory", "is a directory, no regular file", errno.EINVAL),
    ],
)
def test_a_path_that_cannot_be_a_lock_file_is_an_error_with_errno(
    request_for: RequestFor, tmp_path: Path, directory: str, message: str, number: int
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "with a directory" / "lock").mkdir(parents=True)
    locker = SharedFileLocker(replace(request_for("a"), options={"directory": str(tmp_path / directory)}))
    with pytest.raises(LockUnavailable, match=message) as failure:
        locker.acquire(threading.Event())
    assert failure.value.errno == number
    assert not (tmp_path / "elsewhere").exists()


class Failing(OsVolume):
    """A volume on which one kind of call fails, as long as the test sets this."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, int] = {}

    def __getattribute__(self, name: str) -> object:
        number = object.__getattribute__(self, "failing").get(name) if name != "failing" else None
        if number is not None:
            raise OSError(number, os.strerror(number))
        return object.__getattribute__(self, name)


@pytest.mark.parametrize(
    ("call", "number"),
    [("pread", errno.EIO), ("stat", errno.EACCES), ("lock", errno.ENOLCK)],
    ids=["content", "permission", "lock server"],
)
def test_what_cannot_be_asked_is_neither_owned_nor_lost(request_for: RequestFor, call: str, number: int) -> None:
    volume = Failing()
    locker = SharedFileLocker(replace(request_for("a"), volume=volume))
    assert locker.try_acquire()
    proof = locker.proof()
    volume.failing = {call: number}
    with pytest.raises(LockUnavailable, match=os.strerror(number)) as failure:
        locker.keep_alive()
    assert failure.value.errno == number
    assert locker.proof() == proof
    volume.failing = {}
    assert locker.keep_alive()
    locker.release()


def test_a_lock_that_cannot_be_written_is_not_kept(request_for: RequestFor, other) -> None:
    volume = Failing()
    locker = SharedFileLocker(replace(request_for("a"), volume=volume))
    volume.failing = {"pwrite": errno.ENOSPC}
    with pytest.raises(LockUnavailable, match="No space left"):
        locker.try_acquire()
    assert other.say("try") == "True"


class Unwilling(OsVolume):
    """A volume that takes writes in part, or not at all."""

    def __init__(self, mood: str) -> None:
        super().__init__()
        self._disk = UnwillingDisk(mood)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
        return self._disk.pwrite(fd, data, offset)


@pytest.mark.parametrize("mood", MOODS)
def test_the_name_in_a_lock_file_is_written_as_a_whole_or_the_lock_is_not_kept(
    request_for: RequestFor, other, mood: str
) -> None:
    locker = SharedFileLocker(replace(request_for("a"), volume=Unwilling(mood)))
    if mood in ENDS_WITH:
        with pytest.raises(LockUnavailable) as failure:
            locker.try_acquire()
        assert failure.value.errno == ENDS_WITH[mood]
        assert other.say("try") == "True"
        return
    assert locker.try_acquire()
    locker.announce(7)
    assert locker.keep_alive()
    locker.release()
    with open(locker.path, "rb") as file:  # not before: closing it would let go of the lock
        assert decode(file.read()).epoch == 7


def test_a_volume_that_hangs_makes_the_proof_old_and_nothing_else(request_for: RequestFor) -> None:
    class Hanging(OsVolume):
        answers = threading.Event()

        def stat(self, path: str) -> os.stat_result:  # type: ignore[override]
            self.answers.wait()
            return os.stat(path)

    volume, clock = Hanging(), ManualClock()
    volume.answers.set()
    locker = SharedFileLocker(replace(request_for("a"), volume=volume, clock=clock))
    assert locker.try_acquire()
    volume.answers.clear()
    answered: list[bool] = []
    asking = threading.Thread(target=lambda: answered.append(locker.keep_alive()))
    asking.start()
    clock.advance(locker.proof().valid_for_seconds)
    assert not locker.proof().holds_at(clock.now())
    volume.answers.set()
    asking.join(WAIT_SECONDS_MAX)
    # The answer was asked for before the volume hung: it proves that time, and no later one.
    assert answered == [True]
    assert not locker.proof().holds_at(clock.now())
    locker.release()


def test_two_volumes_are_two_processes(request_for: RequestFor) -> None:
    # What one process holds is a matter of that process: a volume of its own knows nothing of it, only the kernel does.
    here, there = OsVolume(), OsVolume()
    a = SharedFileLocker(replace(request_for("a"), volume=here))
    assert a.try_acquire()
    assert list(here.held) == [identity_of(os.stat(a.path))]
    assert not there.held
    a.release()
    assert not here.held


# Elsewhere


def test_the_lock_file_may_lie_elsewhere(request_for: RequestFor, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    here, there = (
        SharedFileLocker(replace(request_for(name), options={"directory": str(elsewhere)})) for name in ("a", "b")
    )
    assert here.try_acquire()
    assert here.path == str(elsewhere / "lock")
    assert os.listdir(elsewhere) == ["lock"]
    assert not (tmp_path / "lock").exists()
    assert not there.try_acquire()
    here.release()
    assert there.try_acquire()
    there.release()


def test_a_directory_that_was_replaced_is_a_lost_lock(request_for: RequestFor, tmp_path: Path) -> None:
    # Mounted over, or moved away and restored from a copy: the standby sees another file than the one we locked.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    locker = SharedFileLocker(replace(request_for("a"), options={"directory": str(elsewhere)}))
    assert locker.try_acquire()
    elsewhere.rename(tmp_path / "away")
    elsewhere.mkdir()
    (elsewhere / "lock").write_bytes((tmp_path / "away" / "lock").read_bytes())
    assert not locker.keep_alive()
    locker.release()


@pytest.mark.parametrize(
    ("options", "key"), [({"directory": ""}, "directory"), ({"directory": 7}, "directory"), ({"dir": "x"}, "dir")]
)
def test_an_option_that_cannot_be_meant_is_named(request_for: RequestFor, options: dict[str, object], key: str) -> None:
    with pytest.raises(LockSettingsError, match=rf"locker\.{key} = .*: expected") as failure:
        SharedFileLocker(replace(request_for("a"), options=options))
    assert failure.value.key == key


@pytest.mark.parametrize(
    ("period", "seconds", "is_safe"),
    [(0.5, 5.0, True), (0.1, 5.0, True), (15.0, 30.0, True), (20.0, 40.0, False), (0, math.inf, False)],
)
def test_a_proof_holds_for_ten_keep_alives_as_long_as_a_server_of_nfs_keeps_the_lock_of_a_silent_client(
    request_for: RequestFor, period: float, seconds: float, is_safe: bool
) -> None:
    locker = SharedFileLocker(request_for("a", lock_keep_alive_period_seconds=period))
    assert locker.try_acquire()
    assert locker.keep_alive()
    assert locker.proof().valid_for_seconds == seconds
    assert (locker.unsafe is None) == is_safe
    locker.release()


# Signs of life


def test_a_holder_that_stops_touching_the_file_is_silent_until_it_does_again(request_for: RequestFor, other) -> None:
    clock = ManualClock()
    standby = SharedFileLocker(replace(request_for("b"), clock=clock))

    def look() -> float | None:
        assert standby.holder() is not None
        return standby.silence_seconds()

    assert other.say("try") == "True"
    assert look() is None
    clock.advance(8.0)
    before = os.stat(standby.path).st_mtime_ns
    assert look() == 8.0
    while os.stat(standby.path).st_mtime_ns == before:  # what the kernel calls now is some milliseconds old
        assert other.say("keep") == "True"
    assert look() is None
    clock.advance(2.5)
    assert look() is None
    other.kill()
    clock.advance(8.0)
    assert standby.holder() is None
    assert standby.silence_seconds() is None


@pytest.mark.parametrize("holder", ["an ActiveMQ broker", "one without keep-alives"])
def test_nothing_is_said_of_the_silence_of_a_holder_that_promises_no_signs(
    request_for: RequestFor, other, holder: str
) -> None:
    clock = ManualClock()
    standby = SharedFileLocker(replace(request_for("b"), clock=clock))
    assert other.say("try") == "True"
    ours = encode(Holder("a", since_ms=5), "n", 0.0)
    Path(standby.path).write_bytes(STAMP.pack(6) + ours[8:] if "ActiveMQ" in holder else ours)
    for _ in range(2):
        assert standby.holder() is not None
        assert standby.silence_seconds() is None
        clock.advance(100.0)


# The content


def test_the_content_is_a_time_and_one_line() -> None:
    content = encode(Holder("ä", 3, 42, "h", None, since_ms=1_700_000_000_000), "n")
    assert content[:8] == (1_700_000_000_000).to_bytes(8, "big")
    assert content.count(b"\n") == 1
    assert content.endswith(b"}\n")
    assert decode(content) == Holder("ä", 3, 42, "h", None, 1_700_000_000_000)


OURS, SHORT = encode(Holder("a-long-name" * 9, 3, since_ms=5), "n"), encode(Holder("b", None, since_ms=6), "n")


@pytest.mark.parametrize(
    ("content", "holder"),
    [
        (STAMP.pack(5), Holder(ACTIVEMQ, since_ms=5)),
        # ActiveMQ writes its 8 bytes over ours and cuts nothing off.
        (STAMP.pack(6) + OURS[8:], Holder(ACTIVEMQ, since_ms=6)),
        (SHORT + OURS[len(SHORT) :], Holder("b", None, since_ms=6)),
    ],
)
def test_what_a_former_holder_left_names_nobody(content: bytes, holder: Holder) -> None:
    assert decode(content) == holder


@pytest.mark.parametrize("content", [b"", b"1234567", STAMP.pack(5) + b"[]\n", STAMP.pack(5) + b"{}\n", b"\xff" * 99])
def test_any_content_of_a_held_file_is_somebody(content: bytes) -> None:
    assert decode(content).name
