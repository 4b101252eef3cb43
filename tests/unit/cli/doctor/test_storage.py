"""`tandemmq doctor storage`: results for a good volume, and for a volume that is not shared."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandemmq.cli.doctor import pair_checks
from tandemmq.cli.doctor.local_probe import LocalProbe
from tandemmq.cli.doctor.remote_probe import NoRemoteProbe, ProbePair, RemoteProbe, connect, fork_remote_probe, listen
from tandemmq.cli.doctor.report import Check, Finding, Report, Verdict, fail, ok, warn
from tandemmq.cli.doctor.storage import Device, as_text, device_under, examine, judge_room, judge_syncs, mount_checks
from tandemmq.store.volume import Mount, mount_of

pytestmark = pytest.mark.promise("volume-is-examined")

SCRATCH = ".doctor-" + "0" * 32


@contextmanager
def ground_over(mine: Path, theirs: Path) -> Iterator[ProbePair]:
    """Two hands, each in a scratch directory below a separate directory, or below a common one."""
    for directory in {mine, theirs}:
        (directory / SCRATCH).mkdir(parents=True)
    remote_probe = fork_remote_probe(str(theirs))
    local = LocalProbe(str(mine / SCRATCH))
    try:
        assert remote_probe.enter(SCRATCH)
        yield ProbePair(local, remote_probe, "the second process")
    finally:
        local.close()
        remote_probe.close()


# -- a volume that is shared, and two that are not -----------------------------------------------------------------


def test_a_local_disk_has_no_objections_and_no_files_are_left(tmp_path: Path) -> None:
    begun: list[str] = []
    report = examine(str(tmp_path), progress=begun.append)
    bad = [check for check in report.checks if check.finding.verdict is Verdict.FAIL and check.name != "mount: tmpfs"]
    assert bad == []
    assert {"link is atomic", "new names are seen", "lock excludes"} <= set(begun)
    assert {check.name for check in report.checks} >= set(begun)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "check"), [pair_checks.CHECKS[0], *pair_checks.CHECKS[4:6]], ids=["lock", "link", "create"]
)
def test_two_hosts_that_share_nothing_are_found_out(
    tmp_path: Path, name: str, check: Callable[[ProbePair], Finding]
) -> None:
    """Each process sees a different directory: the worst behaviour of a volume for a pair."""
    with ground_over(tmp_path / "a", tmp_path / "b") as pair:
        # The file of the lock is made by one; the other one has it too, and it is another file.
        for number in range(2):
            (tmp_path / "b" / SCRATCH / f"lock-{number}").write_bytes(b"lock")
        finding = check(pair)
    assert finding.verdict is Verdict.FAIL, f"{name}: {finding.sentence}"
    assert "both won" in finding.sentence or "two brokers would be masters" in finding.sentence


def test_a_check_that_sees_a_name_too_late_fails_with_the_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_checks, "LATE_SECONDS_MAX", 0.3)
    with ground_over(tmp_path / "a", tmp_path / "b") as pair:
        finding = pair_checks.appearance(pair)
    assert finding.verdict is Verdict.FAIL
    assert "could not see its successor" in finding.sentence
    assert finding.figures["late_ms"] >= 300


def test_a_lock_that_outlives_its_holder_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_checks, "RELEASE_SECONDS_MAX", 0.2)
    with ground_over(tmp_path, tmp_path) as pair:
        (tmp_path / SCRATCH / "released-0").write_bytes(b"lock")
        keeper = LocalProbe(str(tmp_path / SCRATCH))
        try:
            assert keeper.hold("released-0")  # a server that does not let go: the kill hits another process
            finding = pair_checks.release(pair)
        finally:
            keeper.close()
    assert finding.verdict is Verdict.FAIL
    assert "no standby would take over" in finding.sentence


# -- the second ------------------------------------------------------------------------------------------------------


def test_a_listening_process_serves_one_examination_and_removes_its_files(tmp_path: Path) -> None:
    ports: list[int] = []
    is_listening = threading.Event()

    def tell(port: int) -> None:
        ports.append(port)
        is_listening.set()

    thread = threading.Thread(target=listen, args=(str(tmp_path), "127.0.0.1", 0, tell), daemon=True)
    thread.start()
    assert is_listening.wait(10)
    (tmp_path / SCRATCH).mkdir()
    remote_probe = connect("127.0.0.1", ports[0])
    assert socket.gethostname() in remote_probe.name
    assert remote_probe.enter(SCRATCH)
    remote_probe.write("a", "text")
    assert (tmp_path / SCRATCH / "a").read_text() == "text"
    with pytest.raises(FileNotFoundError):
        remote_probe.read("b")
    remote_probe.close()  # as when the examiner was killed
    thread.join(10)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("write", {"name": "../lock", "text": "x"}),
        ("write", {"name": "/etc/x", "text": "x"}),
        ("close", {}),
        ("__init__", {"directory": "/"}),
        ("enter", {"scratch": ".."}),
        ("enter", {"scratch": "data"}),
    ],
)
def test_a_second_does_nothing_outside_its_scratch_directory(
    tmp_path: Path, verb: str, arguments: dict[str, str]
) -> None:
    with ground_over(tmp_path, tmp_path) as pair, pytest.raises(OSError, match=r"scratch directory|no such verb"):
        pair.remote.call(verb, **arguments)
    assert os.listdir(tmp_path) == []


def test_a_peer_that_is_no_doctor_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        threading.Thread(target=lambda: stranger.accept()[0].sendall(b"SSH-2.0\n"), daemon=True).start()
        with pytest.raises(NoRemoteProbe, match=r"127.0.0.1"):
            connect("127.0.0.1", stranger.getsockname()[1])


def test_a_missing_peer_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(NoRemoteProbe, match=f"no process listens at 127.0.0.1:{port}"):
        connect("127.0.0.1", port)


def test_a_wire_that_breaks_is_no_second() -> None:
    ours, theirs = socket.socketpair()
    remote_probe = RemoteProbe(ours, "the other host")
    theirs.close()
    with pytest.raises(NoRemoteProbe, match="the other host"):
        remote_probe.read("a")


def test_two_hands_of_one_process_number_do_not_meet(tmp_path: Path) -> None:
    """The case occurs in two containers, where both processes have the id 1."""
    one, other = LocalProbe(str(tmp_path)), LocalProbe(str(tmp_path))
    assert one.race_links("link-", 3) == [0, 1, 2]
    assert other.race_links("link-", 3) == []


# -- judgements that need no disk ----------------------------------------------------------------------------------

SPINNING = Device("sda", is_rotational=True, has_write_cache=True)
FLASH = Device("nvme0n1", is_rotational=False, has_write_cache=True)
WITH_BATTERY = Device("nvme0n1", is_rotational=False, has_write_cache=False)


@pytest.mark.parametrize(
    ("milliseconds", "kind", "device", "verdict", "word"),
    [
        (8.0, "ext4", SPINNING, Verdict.OK, "8.00 ms"),
        (0.1, "ext4", SPINNING, Verdict.WARN, "can rotate"),
        (0.1, "ext4", FLASH, Verdict.OK, ""),
        (0.01, "ext4", FLASH, Verdict.WARN, "may not have happened"),
        (0.01, "ext4", WITH_BATTERY, Verdict.OK, ""),
        (0.03, "nfs4", None, Verdict.WARN, "server"),
        (0.4, "nfs4", None, Verdict.OK, ""),
        (0.005, "tmpfs", None, Verdict.WARN, ""),
        (80.0, "nfs4", None, Verdict.WARN, "slow"),
    ],
)
def test_a_sync_that_is_too_quick_or_too_slow_is_a_warning(
    milliseconds: float, kind: str, device: Device | None, verdict: Verdict, word: str
) -> None:
    finding = judge_syncs([milliseconds / 1000] * 9 + [1.0], kind, device)
    assert finding.verdict is verdict
    assert word in finding.sentence
    assert finding.figures["sync_max_us"] == 1_000_000


@pytest.mark.parametrize(
    ("free_mib", "inodes", "verdict"),
    [(100, 10_000, Verdict.FAIL), (500, 10_000, Verdict.WARN), (5000, 10_000, Verdict.OK), (5000, 5, Verdict.WARN)],
)
def test_room(free_mib: int, inodes: int, verdict: Verdict) -> None:
    blocks = free_mib * 256
    volume = os.statvfs_result((4096, 4096, blocks, blocks, blocks, 1 << 20, inodes, inodes, 0, 255))
    assert judge_room(volume).verdict is verdict


def test_the_device_under_a_partition_of_a_mirror_is_found(tmp_path: Path) -> None:
    """A logical volume over two partitions, as sysfs shows them: one spinning disk makes it spin."""

    def queue(place: Path, rotational: str, cache: str) -> None:
        (place / "queue").mkdir(parents=True)
        (place / "queue/rotational").write_text(rotational + "\n")
        (place / "queue/write_cache").write_text(cache + "\n")

    devices = tmp_path / "devices"
    queue(devices / "dm-0", "0", "write through")
    queue(devices / "sda", "1", "write back")
    queue(devices / "sdb", "0", "write through")
    (devices / "dm-0/slaves").mkdir()
    for disk in ("sda", "sdb"):
        (devices / disk / f"{disk}1").mkdir()
        (devices / f"dm-0/slaves/{disk}1").symlink_to(devices / disk / f"{disk}1")
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block/253:0").symlink_to(devices / "dm-0")
    (tmp_path / "dev/block/8:17").symlink_to(devices / "sdb/sdb1")

    def under(number: str) -> Device | None:
        return device_under(Mount("/", "ext4", frozenset(), "x", number), str(tmp_path))

    assert under("253:0") == Device("dm-0", is_rotational=True, has_write_cache=True)
    assert under("8:17") == Device("sdb", is_rotational=False, has_write_cache=False)
    assert under("0:50") is None


def test_each_objection_to_a_mount_is_a_check_of_its_own() -> None:
    mount = mount_of("/mnt", "40 22 0:50 / /mnt rw - nfs server:/x rw,vers=3,soft,lookupcache=none,local_lock=none")
    found = {check.name: check.finding for check in mount_checks(mount)}
    assert set(found) == {"mount", "mount: nfs3", "mount: nfs-soft"}
    assert found["mount: nfs3"].verdict is Verdict.FAIL
    assert "version 4" in found["mount: nfs3"].sentence
    assert found["mount: nfs-soft"].verdict is Verdict.WARN
    assert [check.finding.verdict for check in mount_checks(None)] == [Verdict.WARN]


@pytest.mark.parametrize(
    ("findings", "conclusion"),
    [
        ([ok("good")], "no problem was found on this volume"),
        ([ok("good"), warn("so so")], "usable; read the warnings"),
        ([fail("bad"), warn("so so")], "a pair must not have its store here"),
    ],
)
def test_the_worst_check_decides_and_each_has_its_line(findings: list[Finding], conclusion: str) -> None:
    report = Report("/srv", "two", [Check(f"check {number}", each) for number, each in enumerate(findings)])
    lines = as_text(report).splitlines()
    assert lines[0] == "/srv, together with two"
    assert [re.split(" {2,}", line) for line in lines[2:-3]] == [
        [each.verdict.word, f"check {number}", each.sentence] for number, each in enumerate(findings)
    ]
    assert conclusion in lines
    assert report.as_json()["verdict"] == max(each.verdict for each in findings).word
