"""What kind of volume a directory is on, as far as the store's safety depends on it. Pure but for one read.

On NFS a client may remember that a name does not exist (``lookupcache=all``, the default). A master that looks whether
a successor's file has appeared would be answered from that memory, and go on sending receipts that do not
count (safety: the look). So ``lookupcache=positive`` or ``none`` is demanded there.
"""

from __future__ import annotations

import os
from typing import NamedTuple

MOUNTS = "/proc/self/mountinfo"
MOUNTINFO_BYTES_MAX = 4 << 20
_SAFE_LOOKUP_CACHE = frozenset({"positive", "pos", "none"})


class Mount(NamedTuple):
    """The mount that a path is on."""

    point: str
    kind: str
    options: frozenset[str]


class UnsafeVolume(Exception):
    """The volume, as it is mounted, can make two masters believe in themselves."""


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """The mount that holds ``path`` (absolute, without links) by the text of ``/proc/self/mountinfo`` (proc(5))."""
    found: Mount | None = None
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue
        dash = fields.index("-", 6)
        point = _unescaped(fields[4])
        if path != point and not path.startswith(point.rstrip("/") + "/"):
            continue
        if found is None or len(point) >= len(found.point):  # of two on one point the later one lies on top
            options = frozenset(fields[5].split(",")) | frozenset(fields[dash + 3].split(","))
            found = Mount(point, fields[dash + 1], options)
    return found


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def demand_safe(directory: str, mountinfo: str | None = None) -> None:
    """Raise UnsafeVolume when ``directory`` is on NFS and missing names may be remembered there."""
    if mountinfo is None:
        try:
            fd = os.open(MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # no Linux, or no /proc: nothing can be known
        try:
            parts = []
            while part := os.read(fd, MOUNTINFO_BYTES_MAX):
                parts.append(part)
        finally:
            os.close(fd)
        mountinfo = b"".join(parts).decode("utf-8", "replace")
    mount = mount_of(os.path.realpath(directory), mountinfo)
    if mount is None or mount.kind not in ("nfs", "nfs4"):
        return
    said = {option.partition("=")[2] for option in mount.options if option.startswith("lookupcache=")}
    if not said & _SAFE_LOOKUP_CACHE:
        raise UnsafeVolume(
            f"{directory} is on {mount.kind} mounted at {mount.point} without lookupcache=positive (or none): "
            "a master could not see its successor; remount it so, or set store.ignore_lookup_cache"
        )
