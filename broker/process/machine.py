"""Limits, time zone and boot of the machine: memory, file descriptors, the local zone, and the id of the boot.

A master must stop if its journal cannot open the next file. So some descriptors are reserved, for any number of
clients.
"""

from __future__ import annotations

import os
import resource
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final

# Descriptors reserved for journals, indexes, the lock, logs and the admin server (128 places): a quarter of the limit,
# but at least this number.
RESERVE_MIN: Final = 192
RESERVE_SHARE: Final = 4
CONNECTIONS_MIN: Final = 16
# A hard limit may be a thousand million, which is more than a process needs.
LIMIT_MAX: Final = 1 << 20


# ---- memory


def memory_bytes(proc: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the minimum of the machine's memory and the limits of this process's control groups (cgroups(7), versions
    1 and 2), in bytes. In a container, the container's group is the root of the mount."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _read(proc).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(mounted, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(mounted / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def _limits(root: Path, path: str, name: str) -> list[int]:
    """Return the limits of a group and of all groups above it, which apply to it, too."""
    group = root / path.lstrip("/")
    groups = [group, *group.parents]
    texts = [_read(each / name).strip() for each in groups if each == root or root in each.parents]
    return [int(text) for text in texts if text.isdecimal()]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # not on this machine: there are no control groups, or no limit


# ---- boot


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return the id of this boot of the machine (proc(5)); "" if it is unknown."""
    return _read(path).strip()


# ---- file descriptors


def raise_limit() -> int:
    """Raise the soft limit to the hard limit, at most LIMIT_MAX, and return the limit. If this is refused, the limit
    does not change."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def connections_max(limit: int) -> int:
    """Return how many of ``limit`` descriptors the client connections of all connectors together may use."""
    return max(limit - max(RESERVE_MIN, limit // RESERVE_SHARE), CONNECTIONS_MIN)


# ---- time zone


class LocalZone(tzinfo):
    """The local zone with its rules for daylight saving time, which may begin or end while a broker runs. ``fold``
    distinguishes the two halves of a repeated hour (PEP 495).

    ``datetime.astimezone().tzinfo`` is only the offset at one moment. For each conversion, this class calls the C
    library, which has the rules from TZ or /etc/localtime.
    """

    def utcoffset(self, moment: datetime | None, /) -> timedelta | None:
        return None if moment is None else _shown(moment).utcoffset()

    def tzname(self, moment: datetime | None, /) -> str | None:
        return None if moment is None else _shown(moment).tzname()

    def dst(self, _moment: datetime | None, /) -> timedelta | None:
        """Return None (unknown), as ``tzinfo.dst`` permits: the C library returns only the whole offset."""
        return None

    def fromutc(self, moment: datetime, /) -> datetime:
        utc = moment.replace(tzinfo=UTC)
        shown = utc.astimezone().replace(tzinfo=None)
        return shown.replace(tzinfo=self, fold=int(shown.astimezone() != utc))


def _shown(moment: datetime) -> datetime:
    """Return ``moment`` with the offset of that time. A datetime without a zone is in the C library's zone."""
    return moment.replace(tzinfo=None).astimezone()
