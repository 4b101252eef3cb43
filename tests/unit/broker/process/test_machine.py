"""This machine: its clocks over a change to summer time and back, the memory for a process, and the id of its boot."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.broker.core.scheduling.schedule import Cron
from tandemmq.broker.process.machine import LocalZone, boot_id, memory_bytes

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(scope="module", autouse=True)
def _in_berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def times(entry: str, start: str, count: int) -> list[str]:
    """Return the times that the clocks show, with their offset."""
    cron, zone = Cron.of(entry), LocalZone()
    after = int(datetime.fromisoformat(start).timestamp() * 1000)
    found = []
    for _ in range(count):
        following = cron.next(after, zone)
        assert following is not None
        after = following
        found.append(datetime.fromtimestamp(after / 1000, BERLIN).isoformat(timespec="minutes"))
    return found


def test_a_cron_entry_keeps_its_hour_when_summer_time_begins_and_ends() -> None:
    assert times("0 9 * * *", "2024-03-30T12:00+01:00", 2) == ["2024-03-31T09:00+02:00", "2024-04-01T09:00+02:00"]
    assert times("0 9 * * *", "2024-10-26T12:00+02:00", 2) == ["2024-10-27T09:00+01:00", "2024-10-28T09:00+01:00"]


def test_skipped_and_repeated_hours_of_daylight_saving_time() -> None:
    assert times("30 2 * * *", "2024-03-31T00:00+01:00", 1) == ["2024-03-31T03:30+02:00"]
    assert times("30 2 * * *", "2024-10-27T00:00+02:00", 2) == ["2024-10-27T02:30+02:00", "2024-10-27T02:30+01:00"]


@settings(deadline=None)
@given(moment=st.datetimes(datetime(1980, 1, 1), datetime(2037, 1, 1)))
def test_it_shows_what_the_zone_of_that_name_shows(moment: datetime) -> None:
    here, there = (moment.replace(tzinfo=UTC).astimezone(zone) for zone in (LocalZone(), BERLIN))
    assert (here.isoformat(), here.fold, here.tzname()) == (there.isoformat(), there.fold, there.tzname())
    for fold in (0, 1):
        here, there = (moment.replace(tzinfo=zone, fold=fold).astimezone(UTC) for zone in (LocalZone(), BERLIN))
        assert here == there


@pytest.mark.parametrize("hour", ["00:59:59.999999", "01:00", "01:30", "00:00", "02:00"])
@pytest.mark.parametrize("day", ["2024-03-31", "2024-10-27"])
def test_it_knows_the_hours_of_a_change(day: str, hour: str) -> None:
    utc = datetime.fromisoformat(f"{day}T{hour}+00:00")
    here, there = (utc.astimezone(zone) for zone in (LocalZone(), BERLIN))
    assert (here.isoformat(), here.fold) == (there.isoformat(), there.fold)
    assert here.astimezone(UTC) == utc


# ---- a process may use the least that the machine and its control groups permit


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


def test_the_id_of_a_boot_is_empty_if_it_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "boot_id"
    assert boot_id(path) == ""
    path.write_text("0d3c\n")
    assert boot_id(path) == "0d3c"
