"""The simulated volume: what it caches, what it loses, and how it differs from a local disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.simulator.disk import SimulatedDisk
from tandemmq.simulator.host import Host
from tandemmq.simulator.kernel import Process, World
from tandemmq.simulator.link import Link
from tandemmq.simulator.server import Server
from tandemmq.simulator.steps import Steps, Traps

CREATE = os.O_RDWR | os.O_CREAT


class Site:
    """A server with two hosts, and a process on each."""

    def __init__(
        self, *, attribute_seconds: float = 0.0, keeps_open: bool = True, is_synchronous: bool = True, seed: int = 0
    ) -> None:
        self.world = World(seed)
        self.server = Server(self.world, capacity=1 << 20, keeps_open=keeps_open, is_synchronous=is_synchronous)
        self.server.makedirs("/data")
        self.server.sync_names()
        self.hosts = [
            Host(self.world, name, self.server, Link(self.world), attribute_seconds=attribute_seconds) for name in "ab"
        ]
        self.processes = [Process(self.world, name) for name in "ab"]
        self.disks = [
            SimulatedDisk(process, host, "/data", Steps(process, Traps()))
            for process, host in zip(self.processes, self.hosts, strict=True)
        ]

    def on(self, number: int, story: Callable[[SimulatedDisk], Any]) -> Any:
        """Run it on that host, now. Return its result."""
        answers: list[Any] = []
        self.processes[number].thread(lambda: answers.append(story(self.disks[number])), "story").start()
        self.world.run(self.world.now + 1.0)
        assert self.world.bugs == []
        return answers[0] if answers else None

    def content(self, path: str) -> bytes:
        return bytes(self.server.find(path).data)


def write(path: str, data: bytes = b"x", *, sync: bool = True) -> Callable[[SimulatedDisk], None]:
    def story(disk: SimulatedDisk) -> None:
        fd = disk.open(path, CREATE)
        disk.pwrite(fd, data, 0)
        if sync:
            disk.fsync(fd)
            disk.close(fd)

    return story


def take_lock(disk: SimulatedDisk) -> bool:
    return disk.lock(disk.open("/data/lock", os.O_RDWR))


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def locked(site: Site) -> Site:
    """Return a volume with a file whose lock the first process has."""
    site.on(0, write("/data/lock"))
    assert site.on(0, take_lock)
    return site


def test_what_was_not_synced_is_seen_here_and_not_there(site: Site) -> None:
    site.on(0, write("/data/f", b"new", sync=False))

    def look(disk: SimulatedDisk) -> bytes:
        return disk.pread(disk.open("/data/f", os.O_RDONLY), 10, 0)

    assert [site.on(number, look) for number in (0, 1)] == [b"new", b""]


def test_what_was_synced_survives_a_loss_of_power_and_the_rest_may_not() -> None:
    survived = set()
    for seed in range(20):
        site = Site(seed=seed)
        site.on(0, write("/data/f", b"x" * 512))

        def write_more(disk: SimulatedDisk) -> None:
            fd = disk.open("/data/f", CREATE)
            disk.pwrite(fd, b"y" * 512, 512)
            disk.close(fd)  # sent to the server, and not synced there

        site.on(0, write_more)
        for host in site.hosts:
            host.died()
        site.server.lose_power()
        content = site.content("/data/f")
        assert content[:512] == b"x" * 512
        survived.add(content[512:])
    assert survived == {b"y" * 512, bytes(512)}


def test_a_name_is_lost_with_the_power_until_its_directory_is_synced() -> None:
    is_there = set()
    for seed in range(20):
        site = Site(seed=seed, is_synchronous=False)
        site.on(0, write("/data/f"))
        site.server.lose_power()
        is_there.add("f" in site.server.listdir("/data"))
    assert is_there == {True, False}
    site = Site(is_synchronous=False)
    site.on(0, write("/data/f"))
    site.on(0, lambda disk: disk.fsync(disk.open("/data", os.O_RDONLY | os.O_DIRECTORY)))
    site.server.lose_power()
    assert site.server.listdir("/data") == ["f"]


def test_a_failed_sync_loses_what_it_should_have_written_and_the_next_succeeds(site: Site) -> None:
    site.hosts[0].failing["fsync"] = errno.EIO

    def story(disk: SimulatedDisk) -> None:
        fd = disk.open("/data/f", CREATE)
        disk.pwrite(fd, b"lost", 0)
        with pytest.raises(OSError, match="Input/output"):
            disk.fsync(fd)
        disk.fsync(fd)
        assert disk.pread(fd, 4, 0) == b"lost", "the host still believes in it"

    site.on(0, story)
    assert site.content("/data/f") == b""


def test_names_and_attributes_are_old_on_another_host_but_not_names_that_are_missing() -> None:
    site = Site(attribute_seconds=30.0)
    site.on(0, write("/data/f"))

    def look(disk: SimulatedDisk) -> tuple[list[str], int | None, int | None]:
        """The names; the inode of f and the size of g, if there is one."""

        def of(path: str, field: str) -> int | None:
            try:
                found: int = getattr(disk.stat(path), field)
            except FileNotFoundError:
                return None
            return found

        return disk.listdir("/data"), of("/data/f", "st_ino"), of("/data/g", "st_size")

    names, inode, size = site.on(1, look)
    assert size is None
    site.on(0, write("/data/g"))
    site.on(0, lambda disk: disk.unlink("/data/f"))
    assert site.on(1, look) == (names, inode, 1), "names and attributes are remembered, and g is asked for anew"
    site.world.run(site.world.now + 31.0)
    assert site.on(1, look) == (["g"], None, 1)


@pytest.mark.parametrize("keeps_open", [True, False])
def test_a_file_that_another_host_removed_is_stale_or_lives_on(keeps_open: bool) -> None:
    site = Site(keeps_open=keeps_open)
    fd = site.on(0, lambda disk: disk.open("/data/f", CREATE))
    site.on(1, lambda disk: disk.unlink("/data/f"))

    def write_on(disk: SimulatedDisk) -> None:
        disk.host.cached(disk._descriptor(fd).file).data = bytearray()
        disk.pwrite(fd, b"late", 0)
        if keeps_open:
            disk.fsync(fd)
        else:
            with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
                disk.fsync(fd)

    site.on(0, write_on)


def test_a_link_whose_answer_was_lost_says_that_it_exists(site: Site) -> None:
    site.hosts[0].link.repeat_share = 1.0
    site.on(0, write("/data/f"))

    def link(disk: SimulatedDisk) -> None:
        with pytest.raises(FileExistsError):
            disk.link("/data/f", "/data/g")

    site.on(0, link)
    assert site.server.find("/data/g") is site.server.find("/data/f")


def test_a_call_in_a_pause_completes_after_it_even_for_a_killed_process(site: Site) -> None:
    site.on(0, write("/data/f"))
    site.hosts[0].link.cut()
    site.on(0, lambda disk: disk.unlink("/data/f"))
    site.processes[0].kill()
    assert site.server.listdir("/data") == ["f"]
    site.hosts[0].link.mend()
    site.world.run(site.world.now + 1.0)
    assert site.server.listdir("/data") == []


def test_a_full_volume_and_a_quota_refuse_what_needs_room(site: Site) -> None:
    site.server.filler = 1 << 20

    def fill(disk: SimulatedDisk) -> None:
        fd = disk.open("/data/f", CREATE)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            disk.pwrite(fd, b"x", 0)
        site.server.filler = site.server.quota = 0
        with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
            disk.pwrite(fd, b"x", 0)
        assert disk.statvfs("/data").f_bavail > 0

    site.on(0, fill)


def test_a_lock_is_one_process_until_any_of_its_descriptors_is_closed(locked: Site) -> None:
    assert not locked.on(1, take_lock)
    locked.on(0, lambda disk: disk.close(disk.open("/data/lock", os.O_RDONLY)))
    assert locked.on(1, take_lock)


def test_a_lock_can_be_granted_twice_and_forgotten(locked: Site) -> None:
    locked.server.grants_next_lock = True
    assert locked.on(1, take_lock)
    locked.server.unlock_all(lambda _: True)
    assert locked.on(0, take_lock)


def test_a_process_that_dies_closes_nothing_on_its_way_out(site: Site) -> None:
    site.on(0, write("/data/lock"))
    held: list[bool] = []

    def hold(disk: SimulatedDisk) -> None:
        fd = disk.open("/data/lock", os.O_RDWR)
        held.append(disk.lock(fd))
        try:
            disk.process.sleep(100.0)
        finally:
            disk.close(fd)  # has no effect: were it noted here, the kernel would not let the lock go

    site.on(0, hold)
    site.processes[0].kill()
    site.disks[0].died()
    assert held == [True]
    assert site.server.find("/data/lock").lock is None


def test_locks_can_hang_while_the_volume_does_not(site: Site) -> None:
    site.on(0, write("/data/lock"))
    site.hosts[0].lock_link.cut()
    done: list[str] = []

    def read(disk: SimulatedDisk) -> None:
        fd = disk.open("/data/lock", os.O_RDWR)
        done.append("read")
        disk.lock(fd)
        done.append("locked")

    site.on(0, read)
    assert done == ["read"]
    site.hosts[0].mend()
    site.world.run(site.world.now + 1.0)
    assert done == ["read", "locked"]
