"""Checks of durability that need no power cut: the duration of a sync, a sync of the directory, and the free space.

No program can prove that a disk keeps the data that it reports as synced. But if a sync returns sooner than the device
can write, the data is not durable yet, or a battery protects the device's cache. The limit depends on the kernel's
description of the device.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.cli.doctor.report import Finding, fail, ok, warn
from tandemmq.disk import opened, sync_directory, write_fully
from tandemmq.store.volume import NETWORK, Mount

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
