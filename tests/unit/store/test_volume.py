"""The table of unsafe mounts: refused mounts, mounts with a warning, and the effect of an override."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.store.volume import NAMES, Concern, UnsafeVolume, demand_safe, mount_of, objections, read_mountinfo

pytestmark = pytest.mark.promise("volume-is-examined")

LOCAL = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
POINT = "/mnt/mq data"


def line(kind: str, options: str = "", of_mount: str = "rw,relatime") -> str:
    return f"40 22 0:50 / /mnt/mq\\040data {of_mount} shared:9 - {kind} server:/export rw{options and ',' + options}"


def mounts(kind: str, options: str = "", of_mount: str = "rw,relatime") -> str:
    return "\n".join((LOCAL, line(kind, options, of_mount)))


def names(kind: str, options: str = "", of_mount: str = "rw,relatime") -> list[str]:
    mount = mount_of(POINT, mounts(kind, options, of_mount))
    assert mount is not None
    return [objection.name for objection in objections(mount)]


SAFE_NFS = "vers=4.2,hard,lookupcache=none,local_lock=none"


def test_the_innermost_mount_counts() -> None:
    mount = mount_of(f"{POINT}/broker", mounts("nfs4", "vers=4.2"))
    assert mount is not None
    assert (mount.point, mount.kind, mount.source, mount.device) == (POINT, "nfs4", "server:/export", "0:50")
    other = mount_of("/mnt/mq", mounts("nfs4"))
    assert other is not None
    assert (other.kind, other.device) == ("ext4", "254:0")


def test_of_two_mounts_on_one_point_the_later_counts() -> None:
    mount = mount_of(POINT, "\n".join((LOCAL, line("nfs4"), line("xfs"))))
    assert mount is not None
    assert mount.kind == "xfs"


@pytest.mark.parametrize(
    ("text", "overrides", "reason"),
    [
        (mounts("nfs4", "vers=4.2,hard"), [], "lookupcache=none"),
        (mounts("nfs4", "vers=4.2,hard,lookupcache=all"), [], "lookupcache=none"),
        (mounts("ext4", of_mount="ro,relatime"), [], "read-only"),
        (mounts("ext4"), ["nfs2"], r"'nfs2'.*nfs3"),
        (mounts("nfs", "vers=3"), ["nfs3"], '= \\["nfs-lookup-cache"\\]'),
    ],
    ids=["remembers missing names", "too", "read-only", "an override of no such name", "an override of another reason"],
)
def test_a_volume_that_is_not_safe_is_refused_with_the_reason(text: str, overrides: list[str], reason: str) -> None:
    with pytest.raises(UnsafeVolume, match=reason):
        demand_safe(POINT, overrides, mountinfo=text)


@pytest.mark.parametrize("cache", ["pos", "positive"])
def test_nfs_that_caches_only_existing_names_is_accepted_with_a_note(cache: str) -> None:
    warnings = demand_safe(POINT, mountinfo=mounts("nfs4", f"vers=4.2,hard,lookupcache={cache}"))
    assert len(warnings) == 1
    assert "acdirmax" in warnings[0]
    assert demand_safe(POINT, mountinfo=mounts("nfs4", f"vers=4.2,hard,lookupcache={cache},acdirmax=0")) == []


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("nfs", "vers=3,hard,lookupcache=none", "nfs3"),
        ("nfs", "hard,lookupcache=none", "nfs3"),
        ("nfs4", f"{SAFE_NFS},nolock", "nfs-local-locks"),
        ("nfs4", "vers=4.2,lookupcache=none,local_lock=all", "nfs-local-locks"),
        ("nfs4", "vers=4.2,lookupcache=none,local_lock=posix", "nfs-local-locks"),
        ("nfs4", f"{SAFE_NFS},nocto", "nfs-nocto"),
        ("cifs", "vers=3.1.1", "cifs"),
        ("smb3", "", "cifs"),
        ("ocfs2", "", "ocfs2"),
        ("gfs2", "localflocks", "gfs2-local-locks"),
        ("lustre", "localflock", "lustre-local-locks"),
        ("9p", "trans=virtio", "9p"),
        ("9p", "aname=drvfs;path=C:,trans=fd,rfd=8", "9p"),
        ("vboxsf", "", "hypervisor-share"),
        ("fuse.sshfs", "user_id=0", "sshfs"),
        ("fuse.s3fs", "", "object-store"),
        ("vfat", "", "no-links"),
    ],
)
def test_a_mount_that_can_allow_two_masters_is_refused_and_an_override_is_shown(
    kind: str, options: str, name: str
) -> None:
    text = mounts(kind, options)
    with pytest.raises(UnsafeVolume, match=f'store.ignore_unsafe_volume = .*"{name}"'):
        demand_safe(POINT, mountinfo=text)
    (warning,) = (each for each in demand_safe(POINT, [name], mountinfo=text) if each.startswith("unsafe: "))
    assert POINT in warning


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("tmpfs", "", "tmpfs"),
        ("overlay", "lowerdir=/a", "overlay"),
        ("overlay", "volatile", "overlay-volatile"),
        ("ext4", "nobarrier", "no-barrier"),
        ("xfs", "barrier=0", "no-barrier"),
        ("fuse.bindfs", "", "fuse"),
        ("fuseblk", "", "fuse"),
        ("fuse.glusterfs", "", "glusterfs"),
        ("nfs4", f"{SAFE_NFS},soft", "nfs-soft"),
        ("zfs", "", "zfs"),
        ("9p", "trans=fd,rfdno=4,wfdno=4", "9p-sandbox"),
    ],
)
def test_a_mount_that_may_only_harm_this_store_is_reported_and_not_refused(kind: str, options: str, name: str) -> None:
    assert name in names(kind, options)
    assert demand_safe(POINT, mountinfo=mounts(kind, options)) != []


@pytest.mark.parametrize(
    ("kind", "options"),
    [("ext4", ""), ("xfs", ""), ("btrfs", ""), ("nfs4", SAFE_NFS), ("nfs", SAFE_NFS), ("gfs2", "lockproto=lock_dlm")],
)
def test_a_safe_mount_has_no_objections(kind: str, options: str) -> None:
    assert names(kind, options) == []


def test_a_volume_of_an_unknown_kind_is_left_to_the_tests() -> None:
    assert names("panfs") == []


def test_a_named_kind_of_fuse_is_not_called_unnamed() -> None:
    assert names("fuse.sshfs") == ["sshfs"]


def test_without_a_lock_file_the_volume_need_not_support_locks() -> None:
    text = mounts("nfs", "vers=3,hard,lookupcache=none")
    assert demand_safe(POINT, concerns={Concern.FENCE, Concern.DURABILITY}, mountinfo=text) == []


def test_each_objection_has_a_name_of_its_own() -> None:
    assert len(NAMES) == len(set(NAMES))


def test_the_directory_of_this_test_is_on_a_mount(tmp_path: Path) -> None:
    text = read_mountinfo()
    assert text is not None
    assert mount_of(str(tmp_path.resolve()), text) is not None
    demand_safe(str(tmp_path))
