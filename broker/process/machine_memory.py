"""Memory available to this process: the machine's memory, or a smaller limit of its control groups."""

from __future__ import annotations

import os
from pathlib import Path


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
        return ""  # no control groups, or no limit
