"""Table of mounts that are known to be unsafe for a pair, and the check of the volume of a directory against it.

A broker checks its volume at start (`demand_safe`); `tandemmq doctor storage` prints every objection. For mounts that
the table does not name, the doctor tests the behaviour of the volume.

A volume must provide three things:

LOCK        A POSIX record lock excludes the other host, and ends when its holder dies.
FENCE       When one host has linked a name, the next stat of the other host sees it. Otherwise a master could miss
            its successor's file, and send receipts for messages that the successor does not have.
DURABILITY  Synced data survives a power cut.

A volume without LOCK or FENCE can allow two masters, so the broker refuses to start there, unless the operator
overrides the objection by its name. A volume without DURABILITY harms only this store, so the objection is only
reported.

Pure, except for one read of /proc/self/mountinfo.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

MOUNTS: Final = "/proc/self/mountinfo"
MOUNTINFO_BYTES_MAX: Final = 4 << 20


class Mount(NamedTuple):
    """Mount of a path. ``device`` is "major:minor"; major is 0 without a block device."""

    point: str
    kind: str
    options: frozenset[str]
    source: str = ""
    device: str = ""

    def option(self, key: str) -> str | None:
        """Return the value of the option ``key=value``; "" for an option ``key`` without value; None: no such
        option."""
        for option in self.options:
            name, _, value = option.partition("=")
            if name == key:
                return value
        return None


class Concern(enum.Enum):
    """Requirement that some volumes do not meet; see the docstring of the module."""

    LOCK = "lock"
    FENCE = "look"
    DURABILITY = "durability"


@dataclass(frozen=True, slots=True)
class Objection:
    """Reason why a mount is unsafe, or needs a test. ``name`` identifies it in an override.

    ``is_grave``: the mount is known not to meet the requirement; otherwise this is only possible.
    """

    name: str
    concern: Concern
    is_grave: bool
    reason: str
    remedy: str

    @property
    def is_refused(self) -> bool:
        """True if a broker refuses to start on such a mount, unless the operator overrides the objection."""
        return self.is_grave and self.concern is not Concern.DURABILITY

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class UnsafeVolume(Exception):
    """The volume, with its mount options, can allow two masters."""


# -- the table ---------------------------------------------------------------------------------------------------------

NFS: Final = frozenset({"nfs", "nfs4"})
CIFS: Final = frozenset({"cifs", "smb3", "smbfs"})
#: File systems with a server or other hosts: calls take a network round trip, and each host has a cache.
NETWORK: Final = (
    NFS | CIFS | frozenset({"9p", "ceph", "fuse.ceph", "fuse.glusterfs", "gfs2", "lustre", "ocfs2", "afs", "beegfs"})
)

_SAFE_LOOKUP_CACHE: Final = frozenset({"none", "pos", "positive"})
_NO_LINKS: Final = frozenset({"vfat", "msdos", "exfat"})
_OBJECT_STORES: Final = frozenset(
    {"fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.goofys", "fuse.blobfuse", "fuse.blobfuse2", "fuse.mount-s3"}
)
_HYPERVISOR: Final = frozenset({"vboxsf", "prl_fs", "vmhgfs", "fuse.vmhgfs-fuse", "fuse.osxfs", "fuse.grpcfuse"})


def _is_nfs3(mount: Mount) -> bool:
    version = mount.option("vers") or mount.option("nfsvers")
    return mount.kind in NFS and not (version.startswith("4") if version else mount.kind == "nfs4")


def _has_local_locks(mount: Mount) -> bool:
    return mount.option("nolock") is not None or mount.option("local_lock") in ("all", "posix")


def _remembers_missing_names(mount: Mount) -> bool:
    return mount.option("lookupcache") not in _SAFE_LOOKUP_CACHE


def _remembers_removed_names(mount: Mount) -> bool:
    caches_nothing = mount.option("noac") is not None or mount.option("acdirmax") == "0"
    return mount.option("lookupcache") in ("pos", "positive") and not caches_nothing


def _has_far_server(mount: Mount) -> bool:
    """Return whether a hypervisor or another host serves 9p. False for a sandbox (gVisor) that serves its own
    processes."""
    return mount.option("trans") != "fd" or (mount.option("aname") or "").startswith("drvfs")


def _is_unnamed_fuse(mount: Mount) -> bool:
    is_fuse = mount.kind in ("fuse", "fuseblk") or mount.kind.startswith("fuse.")
    return is_fuse and mount.kind not in _KINDS_NAMED


class _Rule(NamedTuple):
    kinds: Collection[str] | None  # None: any
    applies: Callable[[Mount], bool]
    objection: Objection


def _any(mount: Mount) -> bool:
    return True


def _bare(*options: str) -> Callable[[Mount], bool]:
    return lambda mount: not mount.options.isdisjoint(options)


def _rule(
    name: str,
    kinds: Collection[str] | None,
    applies: Callable[[Mount], bool],
    concern: Concern,
    is_grave: bool,
    reason: str,
    remedy: str,
) -> _Rule:
    return _Rule(kinds, applies, Objection(name, concern, is_grave, reason, remedy))


_LOCK, _FENCE, _DURABILITY = Concern.LOCK, Concern.FENCE, Concern.DURABILITY
_GRAVE, _HINT = True, False
_USE_NFS4: Final = "use NFS version 4 (vers=4.1 or 4.2, hard, lookupcache=none), or a lock that is not a file"

# fmt: off
_RULES: Final = (
    _rule("nfs-lookup-cache", NFS, _remembers_missing_names, _FENCE, _GRAVE,
          "NFS without lookupcache=none (or positive): a client remembers that a name is missing, so a master could "
          "not see its successor", "remount it with lookupcache=none"),
    _rule("nfs-removed-names", NFS, _remembers_removed_names, _FENCE, _HINT,
          "NFS with lookupcache=positive: after a suspend, a master may find for up to acdirmax seconds that its file "
          "exists, although it was removed", "remount it with lookupcache=none"),
    _rule("nfs3", NFS, _is_nfs3, _LOCK, _GRAVE,
          "NFS version 3 keeps the lock of a dead host until that host is back, so the standby would wait for ever",
          _USE_NFS4),
    _rule("nfs-local-locks", NFS, _has_local_locks, _LOCK, _GRAVE,
          "NFS with nolock or local_lock: each host has locks of its own, so two hosts hold the same one",
          "remount it without nolock and local_lock"),
    _rule("nfs-nocto", NFS, _bare("nocto"), _FENCE, _GRAVE,
          "NFS with nocto: an open does not fetch changes from the server, so a successor may miss the journal's end",
          "remount it without nocto"),
    _rule("nfs-soft", NFS, _bare("soft", "softerr", "softreval"), _DURABILITY, _HINT,
          "NFS with soft: if the server is slow for longer than timeo x retrans, I/O fails and the master steps down",
          "mount it hard; the broker also detects a server that hangs"),
    _rule("cifs", CIFS, _any, _LOCK, _GRAVE,
          "CIFS/SMB: locks may be mandatory or local, names and attributes are cached, some servers have no links",
          _USE_NFS4),
    _rule("ocfs2", {"ocfs2"}, _any, _LOCK, _GRAVE,
          "OCFS2 keeps fcntl locks on one host unless it runs with a userspace cluster stack (AMQ-4378: two masters)",
          "use another volume, or a lock that is not a file; with such a stack, test it with --peer and override"),
    _rule("gfs2-local-locks", {"gfs2"}, _bare("localflocks", "lockproto=lock_nolock"), _LOCK, _GRAVE,
          "GFS2 with localflocks or lock_nolock: each host has locks of its own", "mount it with lock_dlm"),
    _rule("lustre-local-locks", {"lustre"}, _bare("localflock", "noflock"), _LOCK, _GRAVE,
          "Lustre with localflock or noflock: locks hold on one host or not at all", "mount it with flock"),
    _rule("glusterfs", {"fuse.glusterfs"}, _any, _FENCE, _HINT,
          "GlusterFS may cache attributes and missing names (performance.md-cache-timeout, performance.nl-cache)",
          "switch both off for this volume and test it with --peer"),
    _rule("ceph", {"ceph", "fuse.ceph"}, _any, _LOCK, _HINT,
          "CephFS keeps the locks of a dead host until its session is evicted (mds session_autoclose, 300 s)",
          "shorten session_timeout and session_autoclose, or use a lock that is not a file"),
    _rule("9p", {"9p"}, _has_far_server, _LOCK, _GRAVE,
          "9p: servers grant every lock, and clients may cache names", "use a disk of the guest, or NFS version 4"),
    _rule("9p-sandbox", {"9p"}, lambda mount: not _has_far_server(mount), _LOCK, _HINT,
          "9p over a descriptor, in a sandbox: locks hold only inside this sandbox",
          "run both brokers of a pair in this sandbox"),
    _rule("virtiofs", {"virtiofs"}, _any, _LOCK, _HINT,
          "virtiofs: without virtiofsd's posix_lock each guest has its own locks", "test it with --peer"),
    _rule("hypervisor-share", _HYPERVISOR, _any, _LOCK, _GRAVE,
          "a folder shared by a hypervisor: locks hold in one guest, and links are often missing",
          "use a disk of the guest, or NFS version 4"),
    _rule("sshfs", {"fuse.sshfs"}, _any, _LOCK, _GRAVE,
          "sshfs: locks hold on one host, names and attributes are cached for seconds", _USE_NFS4),
    _rule("object-store", _OBJECT_STORES, _any, _FENCE, _GRAVE,
          "an object store as a file system has no links, no locks and no syncs",
          "use a block device, or NFS version 4"),
    _rule("fuse", None, _is_unnamed_fuse, _FENCE, _HINT,
          "FUSE: the server decides how locks, caches and syncs work",
          "the tests below show it; for a pair on two hosts, test it with --peer"),
    _rule("no-links", _NO_LINKS, _any, _FENCE, _GRAVE,
          "FAT has no hard links, and a broker fences another one with link(2)", "use ext4 or XFS"),
    _rule("read-only", None, _bare("ro"), _FENCE, _GRAVE,
          "the volume is mounted read-only", "mount it rw"),
    _rule("overlay", {"overlay", "fuse.fuse-overlayfs", "aufs"}, _any, _DURABILITY, _HINT,
          "the layer of a container: it is deleted with the container, and no other container sees it",
          "mount a volume at this directory"),
    _rule("overlay-volatile", {"overlay"}, _bare("volatile", "fsync=volatile"), _DURABILITY, _GRAVE,
          "overlayfs with volatile: a sync does nothing", "mount it without volatile"),
    _rule("tmpfs", {"tmpfs", "ramfs"}, _any, _DURABILITY, _GRAVE,
          "the volume is in memory: all data is lost when the machine stops", "use a disk"),
    _rule("no-barrier", None, _bare("nobarrier", "barrier=0"), _DURABILITY, _GRAVE,
          "mounted without barriers: a sync does not flush the cache of the disk", "remount it with barrier"),
    _rule("ecryptfs", {"ecryptfs"}, _any, _DURABILITY, _HINT,
          "eCryptfs writes sizes separately from contents: after a power cut, files may be empty",
          "encrypt the device (dm-crypt) instead"),
    _rule("zfs", {"zfs"}, _any, _DURABILITY, _HINT,
          "ZFS: with sync=disabled a sync does nothing, and the mount does not show it", "run `zfs get sync`"),
)
# fmt: on
_KINDS_NAMED: Final = frozenset(kind for rule in _RULES for kind in rule.kinds or ())
NAMES: Final = tuple(rule.objection.name for rule in _RULES)


def objections(mount: Mount) -> list[Objection]:
    """Return all objections of the table to a mount, the grave ones first."""
    found = [
        rule.objection for rule in _RULES if (rule.kinds is None or mount.kind in rule.kinds) and rule.applies(mount)
    ]
    return sorted(found, key=lambda objection: not objection.is_grave)


# -- mounts ------------------------------------------------------------------------------------------------------------


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """Return the mount of ``path``, which is absolute and without links. ``mountinfo``: text of
    ``/proc/self/mountinfo`` (proc(5)). None: no mount contains it."""
    found: Mount | None = None
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue
        dash = fields.index("-", 6)
        point = _unescaped(fields[4])
        if path != point and not path.startswith(point.rstrip("/") + "/"):
            continue
        if found is None or len(point) >= len(found.point):  # of two mounts at one point, the later one is visible
            options = frozenset(fields[5].split(",")) | frozenset(fields[dash + 3].split(","))
            found = Mount(point, fields[dash + 1], options, _unescaped(fields[dash + 2]), fields[2])
    return found


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def read_mountinfo() -> str | None:
    """Return the text of /proc/self/mountinfo; None if it does not exist (no Linux, or no /proc)."""
    try:
        fd = os.open(MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        parts = []
        while part := os.read(fd, MOUNTINFO_BYTES_MAX):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "replace")


def mount_under(directory: str, mountinfo: str | None = None) -> Mount | None:
    """Return the mount of ``directory``, with links followed. ``mountinfo`` None: the present mounts."""
    text = read_mountinfo() if mountinfo is None else mountinfo
    return None if text is None else mount_of(os.path.realpath(directory), text)


def demand_safe(
    directory: str,
    ignored: Collection[str] = (),
    *,
    concerns: Collection[Concern] = frozenset(Concern),
    mountinfo: str | None = None,
) -> list[str]:
    """Raise UnsafeVolume if a broker must not start on ``directory``; otherwise return the warnings, one sentence each.

    ``ignored``: names of objections that the operator accepts; they become warnings that begin with "unsafe". Raises
    UnsafeVolume also for a name that the table does not have, because the override is probably misspelled.
    ``concerns``: the requirements to check; without LOCK if the lock is not a file in ``directory``.
    """
    if strange := sorted(set(ignored) - set(NAMES)):
        raise UnsafeVolume(f"store.ignore_unsafe_volume: {strange[0]!r} is not one of {', '.join(sorted(NAMES))}")
    mount = mount_under(directory, mountinfo)
    if mount is None:
        return []
    against = [objection for objection in objections(mount) if objection.concern in concerns]
    place = f"{directory} is on {mount.kind} mounted at {mount.point}"
    refused = [objection for objection in against if objection.is_refused and objection.name not in ignored]
    if refused:
        text = ". ".join(f"{objection.reason}; {objection.remedy}" for objection in refused)
        names = ", ".join(f'"{objection.name}"' for objection in refused)
        raise UnsafeVolume(f"{place}. {text}. To start nevertheless: store.ignore_unsafe_volume = [{names}]")
    return [
        f"unsafe: {place}: {objection.reason} (overridden by name)" if objection.is_refused else f"{place}: {objection}"
        for objection in against
    ]
