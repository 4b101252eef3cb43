"""The ring of events: bounded, written to the disk while no other thread waits, and readable after a kill -9."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.admin import events
from tandemmq.broker.admin.events import (
    CAPACITY,
    FILE_BYTES_MAX,
    Clock,
    Event,
    EventRing,
    FormerRing,
    Moment,
    NameInUse,
    read_ring,
    rings_in,
)
from tandemmq.store.tools.why.inventory import inventory
from tests.support.acceptance.broker_process import wait_until
from tests.support.crash.unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk
from tests.support.ha.hanging import HangingDisk
from tests.support.tree import ROOT
from tests.support.virtual_time import VirtualTime


class ManualClock(Clock):
    """Both clocks, set by the test."""

    def __init__(self) -> None:
        self.boot_id = "boot-1"
        self.wall_ms = 1_000_000
        self.boot_seconds = 100.0

    def now(self) -> Moment:
        return Moment(self.wall_ms, self.boot_seconds, self.boot_id)

    def advance(self, seconds: float) -> None:
        self.boot_seconds += seconds
        self.wall_ms += int(seconds * 1000)


def kinds(ring: EventRing) -> list[str]:
    return [event.kind for event in ring.events()]


NewRing = Callable[..., EventRing]


def begun(path: str | None, **options: Any) -> EventRing:
    ring = EventRing("a", path, **options)
    ring.start()
    return ring


def ring_in(path: str) -> FormerRing:
    found = read_ring(path)
    assert found is not None
    return found


@pytest.fixture
def ring(virtual: VirtualTime) -> NewRing:
    """``ring(name, path, **options)``: on threads of virtual time."""
    return partial(EventRing, threads=virtual.threads)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "index" / "a.events")


def test_recorded_events_are_read_by_the_next_run(path: str) -> None:
    clock = ManualClock()
    first = begun(path, clock=clock)
    first.record("started")
    clock.advance(1.5)
    first.record("master", epoch=7, why="the lock was free")
    first.record("lost", trouble="LOCK_LOST")
    first.close()
    second = EventRing("b", path, clock=clock)  # a node of a set that has another name now
    second.start()
    wait_until(lambda: len(second.events()) == 3, "the former events are taken up")
    assert second.events() == first.events()
    assert [(e.kind, e.epoch) for e in second.events()] == [("started", 0), ("master", 7), ("lost", 7)]
    assert second.events()[1].facts == {"why": "the lock was free"}
    assert second.events()[1].at.boot_seconds == 101.5
    second.record("started")
    second.close()
    former = ring_in(path)
    assert (former.name, former.end) == ("b", None)
    assert [e.kind for e in former.events] == ["started", "master", "lost", "started"]


def test_memory_and_file_are_bounded_and_the_oldest_goes(path: str) -> None:
    for run in range(2):
        ring = EventRing("a", path)
        ring.start()
        for number in range(CAPACITY):
            ring.record("step", number=run * CAPACITY + number)
        assert len(ring.events()) == CAPACITY
        ring.close()
    former = ring_in(path)
    assert [e.facts["number"] for e in former.events] == list(range(CAPACITY, 2 * CAPACITY))
    assert os.stat(path).st_size <= FILE_BYTES_MAX


def test_the_moment_of_a_kill_is_known_and_told_by_the_next_run(path: str) -> None:
    program = f"""
import time
from tandemmq.broker.admin.events import EventRing
ring = EventRing("a", {path!r})
ring.start()
ring.record("master", epoch=3)
print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
ring.alive(1)
print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
while True:
    ring.alive(1)
    time.sleep(0.01)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        before, after = (float(process.stdout.readline()) for _ in range(2))

        def sign_at() -> float | None:
            former = read_ring(path)
            at = None if former is None or former.end is None else former.end.at.boot_seconds
            return at if at is not None and at > after else None

        seen = wait_until(sign_at, "a sign of life is in the file")
        process.send_signal(signal.SIGKILL)
    former = ring_in(path)
    assert former.end is not None
    assert (former.end.epoch, former.end.facts["pid"]) == (3, process.pid)
    assert seen <= former.end.at.boot_seconds <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert former.sign is not None
    assert former.sign.last_receipt is not None
    assert before <= former.sign.last_receipt.boot_seconds <= after
    ring = begun(path)
    wait_until(lambda: kinds(ring) == ["master", "fell-silent"], "the next run tells of the death")
    assert ring.events()[-1].at == former.end.at
    ring.close()
    again = ring_in(path)
    assert again.end is None
    assert [e.kind for e in again.events] == ["master", "fell-silent"], "and it is told once"


def test_a_loop_that_was_silent_is_an_event_of_the_moment_it_fell_silent() -> None:
    clock = ManualClock()
    ring = EventRing("a", None, clock=clock)
    ring.alive(1)
    clock.advance(0.05)
    ring.alive(2)
    silent_since = clock.now()
    clock.advance(7.25)
    ring.alive(3)  # written by a master that does not know yet that it is deposed
    assert (kinds(ring), ring.events()[0].at) == (["stalled"], silent_since)
    assert ring.events()[0].facts == {"seconds": 7.25, "last_receipt_boot_seconds": silent_since.boot_seconds}


def test_an_end_of_a_term_carries_the_time_of_the_last_receipt() -> None:
    clock = ManualClock()
    ring = EventRing("a", None, clock=clock)
    ring.alive(5)
    clock.advance(0.2)
    ring.alive(5)
    ring.record("lost", trouble="DEPOSED")
    assert ring.events()[0].facts == {"trouble": "DEPOSED", "last_receipt_boot_seconds": 100.0}


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (10, None),  # in the header
        (events.SIGN_OFFSET + 10, [0, 1, 2, 3, 4]),
        (events.SLOTS_OFFSET + 10, [1, 2, 3, 4]),
        (events.SLOTS_OFFSET + 2 * events.SLOT_BYTES + 10, [0, 1, 3, 4]),
        (events.SLOTS_OFFSET + events.SLOT_BYTES - 10, [0, 1, 2, 3, 4]),  # behind an event
    ],
)
def test_a_torn_slot_is_omitted_and_the_rest_is_read(path: str, offset: int, left: list[int] | None) -> None:
    ring = begun(path)
    for number in range(5):
        ring.record("step", number=number)
    ring.close()
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xa5" * 8)
    former = read_ring(path)
    assert (None if former is None else [e.facts["number"] for e in former.events]) == left
    again = begun(path)
    again.record("step", number=5)
    again.close()
    former = ring_in(path)
    assert [e.facts["number"] for e in former.events if e.kind == "step"] == [*(left or []), 5]


def test_a_long_or_strange_fact_does_not_spoil_the_slot(path: str) -> None:
    ring = begun(path)
    ring.record("lost", reason="ä" * 10_000, where=Path("/x"), epoch=2, count=5)
    ring.record("ended")
    ring.close()
    former = ring_in(path)
    assert [e.kind for e in former.events] == ["lost", "ended"]
    assert (former.events[0].facts["count"], former.events[0].facts["where"]) == (5, "/x")


def test_the_second_living_broker_of_a_name_is_refused_and_leaves_the_file_to_the_first(
    virtual: VirtualTime, ring: NewRing, path: str
) -> None:
    first, second = ring("a", path), ring("a", path)
    is_over = virtual.threads.event()

    def live() -> None:
        while not is_over.wait(0.01):
            first.alive()

    first.start()
    virtual.threads.thread(live, "loop").start()
    first.record("started")
    with pytest.raises(NameInUse) as refused:
        second.start()
    second.record("master", epoch=9)
    is_over.set()
    first.close()
    assert f"pid {os.getpid()} on {socket.gethostname()}" in str(refused.value)
    assert "--name" in str(refused.value)
    second.close()
    assert [e.kind for e in ring_in(path).events] == ["started"]


def test_a_lock_whose_holder_shows_no_life_keeps_nobody_from_starting(
    ring: NewRing, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that died may hold it for a while, on NFS."""
    first, second = ring("a", path), ring("a", path)
    first.start()  # and never alive again
    second.start()
    assert "silent for" in caplog.text
    second.record("started")
    assert kinds(second) == ["started"]
    second.close()
    first.close()
    assert not ring_in(path).events


def test_one_who_is_ending_is_waited_for(virtual: VirtualTime, ring: NewRing, path: str) -> None:
    first, second = ring("a", path), ring("a", path)
    first.start()
    virtual.until(lambda: (former := read_ring(path)) is not None and former.sign is not None, "the first has the file")

    def end() -> None:
        virtual.sleep(1.0)
        first.close()

    virtual.threads.thread(end, "ending").start()
    second.start()
    second.record("started")
    second.close()
    assert [e.kind for e in ring_in(path).events] == ["started"]


def test_a_disk_that_hangs_holds_up_nobody(ring: NewRing, path: str, disk: HangingDisk) -> None:
    disk.gate.close("pwrite")
    made = ring("a", path, disk=disk)
    made.start()
    for number in range(3 * CAPACITY):
        made.record("step", number=number)
        made.alive(number)
    assert len(made.events()) == CAPACITY
    made.close()  # gives up waiting
    disk.gate.open()


def test_a_file_that_cannot_be_had_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "index").write_text("no directory")
    ring = EventRing("a", str(tmp_path / "index" / "a.events"))
    ring.start()
    ring.record("started")
    wait_until(lambda: "events are kept in memory only" in caplog.text, "it is said")
    ring.record("master", epoch=1)
    assert kinds(ring) == ["started", "master"]
    ring.close()
    assert caplog.text.count("in memory only") == 1


def test_rings_are_found_below_a_data_directory_and_in_an_index_directory(tmp_path: Path) -> None:
    (tmp_path / "index" / "a").mkdir(parents=True)
    for name in ("b.events", "a.events"):
        (tmp_path / "index" / name).write_bytes(b"")
    expected = [str(tmp_path / "index" / "a.events"), str(tmp_path / "index" / "b.events")]
    assert (rings_in(str(tmp_path)), rings_in(str(tmp_path / "index"))) == (expected, expected)
    assert rings_in(str(tmp_path / "nowhere")) == []
    assert read_ring(expected[0]) is None


def test_store_why_explains_the_file(tmp_path: Path) -> None:
    path = tmp_path / "index" / "a.events"
    ring = EventRing("a", str(path))
    ring.start()
    ring.record("started")
    ring.close()
    (thing,) = (thing for thing in inventory(str(tmp_path)) if thing.kind != "journal")
    assert (thing.name, thing.kind, thing.bytes) == ("index/a.events", "events", path.stat().st_size)
    assert "events of a" in thing.says


def test_the_latest_take_over_is_measured_from_the_last_refusal() -> None:
    clock = ManualClock()
    ring = EventRing("a", None, clock=clock)
    assert events.last_takeover_seconds(ring.events()) is None
    for refused_at in (None, 101.0):
        clock.advance(2.0)
        ring.record("lock-taken", refused_at_boot=refused_at)
        clock.advance(0.25)
        ring.record("listening")
    assert events.last_takeover_seconds(ring.events()[:2]) == 0.25
    assert events.last_takeover_seconds(ring.events()) == pytest.approx(104.5 - 101.0)


def test_an_event_survives_its_json() -> None:
    event = Event(Moment(5, 1.25, "boot"), "fenced", 4, {"file": 7})
    assert events.event_of(event.as_json()) == event
    assert events.event_of({"kind": "fenced"}) is None


@pytest.mark.parametrize("mood", MOODS)
def test_events_are_written_whole_or_it_is_said(path: str, mood: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = UnwillingDisk(mood)
    ring = begun(path, disk=disk)
    for number in range(20):
        ring.record("told", number=number)
    if mood in ENDS_WITH:
        wait_until(lambda: "events are kept in memory only" in caplog.text, "the failure is told")
        assert f"errno {ENDS_WITH[mood]}" in caplog.text
        calls = disk.calls
    ring.close()
    assert [event.facts["number"] for event in ring.events()] == list(range(20))
    if mood in ENDS_WITH:
        assert disk.calls == calls, "nothing is tried again"
    else:
        former = ring_in(path)
        assert [event.facts["number"] for event in former.events] == list(range(20))
        assert former.end is None
