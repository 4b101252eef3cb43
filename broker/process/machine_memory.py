"""Memory available to this process: the machine's, or less if its control groups limit it."""

from __future__ import annotations

import os
from pathlib import Path


def memory_bytes(proc: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the minimum of the machine's memory and the limits of the control groups that this process is in, of
    either version (cgroups(7)). A container sees its own group as the root of the mount."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _read(proc).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(mounted, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(mounted / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def _limits(root: Path, path: str, name: str) -> list[int]:
    """Return the limits of a group and all above it: a limit also applies to the groups below."""
    group = root / path.lstrip("/")
    groups = [group, *group.parents]
    texts = [_read(each / name).strip() for each in groups if each == root or root in each.parents]
    return [int(text) for text in texts if text.isdecimal()]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # there are no groups here, or no limit
