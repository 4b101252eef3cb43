"""What a process may take is the least that the machine and its control groups say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandemmq.broker.process.machine_memory import memory_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


def seen(tmp_path: Path, cgroup: str, **limits: str) -> int:
    proc = tmp_path / "cgroup"
    proc.write_text(cgroup)
    for name, text in limits.items():
        path = tmp_path / "fs" / name.replace("__", "/").replace("_max", ".max").replace("_limit", ".limit")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return memory_bytes(proc, tmp_path / "fs")


@pytest.mark.parametrize("cgroup", ["0::/system/broker\n", "1:name=systemd:/x\n0::/system/broker\n"])
def test_a_group_or_one_above_it_says_less(tmp_path: Path, cgroup: str) -> None:
    assert seen(tmp_path, cgroup, system__broker__memory_max="max") == MACHINE
    assert seen(tmp_path, cgroup, system__memory_max=str(512 * MIB)) == 512 * MIB
    assert seen(tmp_path, cgroup, system__broker__memory_max=str(256 * MIB)) == 256 * MIB


def test_a_container_is_its_own_root(tmp_path: Path) -> None:
    assert seen(tmp_path, "0::/\n", memory_max=str(300 * MIB)) == 300 * MIB


def test_the_first_version_of_groups_is_read_too(tmp_path: Path) -> None:
    cgroup = "5:cpu,cpuacct:/a\n4:memory:/docker/b\n0::/docker/b\n"
    assert seen(tmp_path, cgroup, memory__docker__b__memory_limit_in_bytes=str(200 * MIB)) == 200 * MIB


def test_without_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path / "none", tmp_path) == MACHINE
    assert seen(tmp_path, "0::/../x\n", memory_max="max") == MACHINE
