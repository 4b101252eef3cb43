"""NFS mounts that remember missing names are refused; everything else is not our business."""

from __future__ import annotations

import pytest

from store.volume import UnsafeVolume, demand_safe, mount_of

LOCAL = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
NFS = "40 22 0:50 / /mnt/mq\\040data rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2,hard{}"


def test_the_innermost_mount_counts() -> None:
    mount = mount_of("/mnt/mq data/broker", "\n".join((LOCAL, NFS.format(""))))
    assert mount is not None
    assert (mount.point, mount.kind) == ("/mnt/mq data", "nfs4")
    other = mount_of("/mnt/mq", "\n".join((LOCAL, NFS.format(""))))
    assert other is not None
    assert other.kind == "ext4"


@pytest.mark.parametrize("options", ["", ",lookupcache=all"])
def test_nfs_that_remembers_missing_names_is_refused(options: str) -> None:
    with pytest.raises(UnsafeVolume, match="lookupcache"):
        demand_safe("/mnt/mq data", "\n".join((LOCAL, NFS.format(options))))


@pytest.mark.parametrize("options", [",lookupcache=pos", ",lookupcache=positive", ",lookupcache=none"])
def test_nfs_that_does_not_is_accepted(options: str) -> None:
    demand_safe("/mnt/mq data", "\n".join((LOCAL, NFS.format(options))))


def test_a_local_directory_is_accepted(tmp_path: object) -> None:
    demand_safe(str(tmp_path))
