"""``tandemmq doctor storage``: check whether a volume provides what a pair of brokers requires.

The examination goes from the options of the mount to races with a second process. It works in a scratch directory on
the volume, always removes it, and opens no file of a broker.

The checks of durability need no power cut: the duration of a sync, a sync of the directory, and the free space. No
program can prove that a disk keeps the data that it reports as synced. But if a sync returns sooner than the device
can write, the data is not durable yet, or a battery protects the device's cache. The limit depends on the kernel's
description of the device.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Final, NoReturn

import click

from tandemmq.cli.doctor import pair_checks
from tandemmq.cli.doctor.local_probe import LocalProbe
from tandemmq.cli.doctor.remote_probe import NoRemoteProbe, ProbePair, RemoteProbe, connect, fork_remote_probe, listen
from tandemmq.cli.doctor.report import Check, Finding, Report, Verdict, as_lines, fail, ok, warn
from tandemmq.cli.failures import EXIT_FAILED, Failed
from tandemmq.cli.output import json_option, tell
from tandemmq.disk import opened, sync_directory, write_fully
from tandemmq.store.volume import NETWORK, Mount, mount_under, objections

SYNCS: Final = 40
SYNC_BYTES: Final = 4096
#: Minimum durations of a sync. A sync that returns sooner is suspicious. One turn of a disk takes at least 4 ms, one
#: round trip on a network at least 50 us, and writing a page of flash at least 20 us.
SPINNING_SECONDS_MIN: Final = 0.001
NETWORK_SECONDS_MIN: Final = 0.000_05
FLASH_SECONDS_MIN: Final = 0.000_02
#: Duration of a sync above which a producer that waits for each receipt sends fewer than 20 messages a second.
SLOW_SECONDS: Final = 0.05

MIB: Final = 1 << 20
#: Free space that a broker needs with the defaults of `[store]`: two journal files, and the reserve below which
#: producers are blocked.
FREE_BYTES_MIN: Final = 128 * MIB
FREE_BYTES_GOOD: Final = 1024 * MIB
FREE_INODES_MIN: Final = 1000

SLAVES_DEPTH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Device:
    """Block device, as described in /sys/dev/block. If it consists of several devices (RAID, LVM), a flag is true if it
    is true for at least one of them."""

    name: str
    is_rotational: bool
    has_write_cache: bool

    def __str__(self) -> str:
        turns = "a spinning disk" if self.is_rotational else "no spinning disk"
        cache = "a write cache, which a sync must empty" if self.has_write_cache else "no volatile write cache"
        return f"{self.name}: {turns}, {cache}"


def device_under(mount: Mount, sys: str = "/sys") -> Device | None:
    """Return the block device of a mount, or None if there is none or the kernel does not report it."""
    number = mount.device
    if number.startswith("0:") and mount.source.startswith("/dev/"):  # btrfs: the number is not that of the device
        try:
            status = os.stat(mount.source)
        except OSError:
            return None
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    place = os.path.realpath(f"{sys}/dev/block/{number}")
    return _device(place, SLAVES_DEPTH_MAX) if number and os.path.isdir(place) else None


def _device(place: str, depth_max: int) -> Device | None:
    if not os.path.isdir(f"{place}/queue"):  # a partition
        place = os.path.dirname(place)
    rotational, cache = _word(f"{place}/queue/rotational"), _word(f"{place}/queue/write_cache")
    if rotational is None:
        return None
    below = []
    if depth_max > 0 and os.path.isdir(f"{place}/slaves"):
        slaves = (os.path.realpath(f"{place}/slaves/{name}") for name in sorted(os.listdir(f"{place}/slaves")))
        below = [found for slave in slaves if (found := _device(slave, depth_max - 1)) is not None]
    return Device(
        os.path.basename(place),
        rotational == "1" or any(each.is_rotational for each in below),
        cache == "write back" or any(each.has_write_cache for each in below),
    )


def _word(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def time_syncs(directory: str) -> list[float]:
    """Overwrite SYNCS pages. After each page, call the sync that the journal uses for a batch. Return the duration of
    each sync in seconds."""
    path = os.path.join(directory, "synced")
    with opened(os, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        write_fully(os, fd, bytes(SYNCS * SYNC_BYTES), 0)
        os.fsync(fd)
        taken = []
        for number in range(SYNCS):
            write_fully(os, fd, bytes([number + 1]) * SYNC_BYTES, number * SYNC_BYTES)
            started = time.perf_counter()
            os.fdatasync(fd)
            taken.append(time.perf_counter() - started)
    return taken


def judge_syncs(taken: Sequence[float], kind: str, device: Device | None) -> Finding:
    """Return the finding for ``taken``, the durations of syncs in seconds. ``kind``: type of the file system."""
    p50, worst = statistics.median(taken), max(taken)
    figures = {"sync_p50_us": round(p50 * 1e6), "sync_max_us": round(worst * 1e6)}
    text = f"a sync takes {p50 * 1000:.2f} ms (p50), {worst * 1000:.2f} ms at worst"
    if kind in NETWORK:
        least, why = NETWORK_SECONDS_MIN, "sooner than a server can have answered"
    elif device is not None and device.is_rotational:
        least, why = (
            SPINNING_SECONDS_MIN,
            "sooner than a disk can rotate, unless a controller with a battery, or a hypervisor, answers",
        )
    elif device is not None and not device.has_write_cache:
        least, why = 0.0, ""  # without a write cache, a write is durable at once
    else:
        least, why = FLASH_SECONDS_MIN, "sooner than flash can write: it may not have happened"
    if p50 < least:
        return warn(f"{text}: {why}", **figures)
    if p50 > SLOW_SECONDS:
        return warn(f"{text}: a producer that waits for receipts is slow", **figures)
    return ok(text, **figures)


def syncs(directory: str, mount: Mount | None) -> Finding:
    device = None if mount is None else device_under(mount)
    return judge_syncs(time_syncs(directory), "" if mount is None else mount.kind, device)


def device(mount: Mount | None) -> Finding | None:
    """Return the kernel's description of the device, or None if there is none."""
    found = None if mount is None else device_under(mount)
    if found is None:
        return None
    return ok(str(found), device=found.name, rotational=found.is_rotational, write_cache=found.has_write_cache)


def directory_sync(directory: str) -> Finding:
    """Check that a directory can be synced: otherwise a new journal file may be lost in a power cut."""
    sync_directory(os, directory)
    return ok("fsync of a directory succeeds")


def judge_room(volume: os.statvfs_result) -> Finding:
    """Check the free space for the reserve and some journal files, and the free inodes for their names."""
    free = volume.f_bavail * volume.f_frsize
    figures = {"free_bytes": free, "free_inodes": volume.f_favail}
    text = f"{free / MIB:,.0f} MiB are free"
    if free < FREE_BYTES_MIN:
        return fail(f"{text}; a broker with its reserve needs {FREE_BYTES_MIN // MIB} MiB to take messages", **figures)
    if volume.f_files and volume.f_favail < FREE_INODES_MIN:
        return warn(f"{text}, but only {volume.f_favail} inodes", **figures)
    if free < FREE_BYTES_GOOD:
        return warn(f"{text}: soon full when consumers are away", **figures)
    return ok(text, **figures)


PORT_MAX = 65535
HERE = "another process on this host"
UNTESTED = (
    "that a power cut loses nothing, and that the lock of a host without power is released: test by cutting the power "
    "(an NFSv4 server releases it when its lease ends, by default after 90 s)"
)

Progress = Callable[[str], None]


def address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Parse HOST:PORT, with brackets around an IPv6 address."""
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise click.BadParameter(f"{value!r} is not an address like storage-two:7777")
    return host.strip("[]"), int(port)


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, writable=True))
@click.option("--peer", metavar="HOST:PORT", callback=address, help="Address of the other host, which runs --listen.")
@click.option(
    "--listen",
    "listens",
    metavar="HOST:PORT",
    callback=address,
    help="Address to listen on, for one check by the other host with --peer.",
)
@json_option
def storage(directory: str, peer: tuple[str, int] | None, listens: tuple[str, int] | None, as_json: bool) -> None:
    """Check whether the volume of DIRECTORY is safe for the store of a pair.

    Works in a temporary directory below DIRECTORY and changes nothing else; a broker may run. For a pair on two hosts
    start it with --listen on one host, then with --peer on the other.

    Exits with 1 if a check fails; a warning is not a failure.
    """
    if peer is not None and listens is not None:
        raise click.UsageError("--peer and --listen are for two hosts: give one of them")
    # SIGTERM, like Ctrl-C, must remove the scratch directory.
    signal.signal(signal.SIGTERM, _ended)
    try:
        if listens is not None:
            _listen(directory, *listens, as_json)
            return
        remote_probe = None if peer is None else connect(*peer)
        report = examine(directory, remote_probe, _progress if sys.stderr.isatty() else lambda name: None)
    except (NoRemoteProbe, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(report.as_json()) if as_json else as_text(report))
    sys.exit(EXIT_FAILED if report.verdict is Verdict.FAIL else 0)


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    raise Failed("ended by SIGTERM")


def _listen(directory: str, host: str, port: int, as_json: bool) -> None:
    def say(port: int) -> None:
        hint = f"listening on {host}:{port}; on the other host: tandemmq doctor storage DIR --peer HOST:{port}"
        click.echo(hint, err=as_json)

    examiner = listen(directory, host, port, say)
    tell(as_json, {"examiner": examiner}, f"checked together with {examiner}; the report is on that host")


def _progress(name: str) -> None:
    click.echo(f"{name} ...", err=True)


def as_text(report: Report) -> str:
    """Return one line for each check, and the conclusion."""
    conclusion = {
        Verdict.OK: "no problem was found on this volume",
        Verdict.WARN: "usable; read the warnings",
        Verdict.FAIL: "a pair must not have its store here",
    }[report.verdict]
    title = f"{report.directory}, together with {report.remote_probe}"
    return "\n".join([title, "", *as_lines(report.checks), "", conclusion, f"Not tested: {UNTESTED}."])


# ---- the examination


def examine(directory: str, remote_probe: RemoteProbe | None = None, progress: Progress = lambda name: None) -> Report:
    """Examine the volume of ``directory`` together with ``remote_probe``, which is closed at the end; None: fork one.

    ``progress`` is called with the name of each check before it begins. Takes seconds on a good volume, and minutes on
    a bad one. Raises NoRemoteProbe when the other process is lost or sees another directory, OSError when nothing can
    be created. Leaves nothing behind, even when interrupted. For a process without other threads.
    """
    who = HERE if remote_probe is None else remote_probe.name
    with _scratch(directory) as scratch:
        other = fork_remote_probe(directory) if remote_probe is None else remote_probe
        local = LocalProbe(scratch)
        try:
            if not other.enter(os.path.basename(scratch)):
                raise NoRemoteProbe(f"{who} does not see {scratch}: is its directory on the same volume?")
            mount = mount_under(directory)
            pair = ProbePair(local, other, "the second process" if remote_probe is None else "the other host")
            return Report(directory, who, list(_checks(mount, scratch, pair, progress)))
        finally:
            local.close()
            other.close()


@contextmanager
def _scratch(directory: str) -> Iterator[str]:
    path = os.path.join(directory, f".doctor-{uuid.uuid4().hex}")
    os.mkdir(path, 0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)  # the other process may have been first
        if os.path.isdir(path):
            shutil.rmtree(path)


def _checks(mount: Mount | None, scratch: str, pair: ProbePair, progress: Progress) -> Iterator[Check]:
    yield from mount_checks(mount)
    if (found := device(mount)) is not None:
        yield Check("device", found)
    yield _tried("room", lambda: judge_room(os.statvfs(scratch)), progress)
    yield _tried("sync takes its time", partial(syncs, scratch, mount), progress)
    yield _tried("directory can be synced", partial(directory_sync, scratch), progress)
    for name, check in pair_checks.CHECKS:
        yield _tried(name, partial(check, pair), progress)


def mount_checks(mount: Mount | None) -> Iterator[Check]:
    """Check the mount against the known-bad mounts (`store.volume`). Only the other checks judge other kinds."""
    if mount is None:
        yield Check("mount", warn("the mount of this directory is unknown (no /proc/self/mountinfo)"))
        return
    place = f"{mount.kind} ({mount.source}) mounted at {mount.point}"
    yield Check("mount", ok(place, kind=mount.kind, point=mount.point, options=",".join(sorted(mount.options))))
    for objection in objections(mount):
        say = fail if objection.is_grave else warn
        yield Check(f"mount: {objection.name}", say(str(objection), concern=objection.concern.value))


def _tried(name: str, check: Callable[[], Finding], progress: Progress) -> Check:
    progress(name)
    try:
        return Check(name, check())
    except OSError as error:
        code = "" if error.errno is None else f" (errno {error.errno})"
        return Check(name, fail(f"cannot be done here: {error.strerror or error}{code}"))
