"""A follower's stream: read from the files while it is behind, then passed on directly; no gap, bounded buffers.

The pace of the reads: slower while batches are later than usual, faster otherwise.
"""

# proves: ended-stream-sends-nothing, live-only-at-the-end, replaced-stream-sends-nothing

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandemmq.broker.replication import stream as stream_module
from tandemmq.broker.replication.messages import Bytes, Sealed, Skipped
from tandemmq.broker.replication.stream import (
    ADJUST_SECONDS,
    BATCHES_MIN,
    BLOCK_BATCHES,
    LATE_OF_SECONDS,
    LATE_PART_MAX,
    LATE_TIMES,
    RATE_MIN,
    REST_SECONDS,
    SETTLE_SECONDS,
    SLOWER,
    WAITING_BYTES_MAX,
    Pace,
    Stream,
)
from tandemmq.journal.files import JournalFiles
from tandemmq.store.threads import OS_THREADS, Threads
from tests.support.replication.noted_link import NotedLink
from tests.support.virtual_time import VirtualTime

EPOCH = 3


class Written:
    """A journal of plain bytes. ``written`` is where its master is."""

    def __init__(self, directory: Path, threads: Threads) -> None:
        self.files = JournalFiles(str(directory), make_lock=threads.lock)
        self.epoch = EPOCH
        self.pace = Pace(threads.monotonic)
        self.threads = threads
        self.ends: dict[int, int] = {}
        self.written = (0, 0)
        self.content: dict[int, bytearray] = {}
        self.streams: list[Stream] = []

    def write(self, data: bytes) -> None:
        """A batch, as the storage thread writes it: the file, the mark, the streams."""
        file, offset = self.written
        self.content.setdefault(file, bytearray()).extend(data)
        path = Path(self.files.path(file))
        with open(path, "r+b" if path.exists() else "w+b") as out:
            out.seek(offset)
            out.write(data)
        place = self.written = (file, offset + len(data))
        for stream in self.streams:
            stream.wrote([Bytes(EPOCH, file, offset, place[1], len(data), data)], place)

    def begin_file(self, file: int, data: bytes) -> None:
        if self.written[0]:
            self.ends[self.written[0]] = self.written[1]
            for stream in self.streams:
                stream.sealed(*self.written)
        # The name is there before the mark moves.
        Path(self.files.path(file)).write_bytes(b"")
        self.content[file] = bytearray(data)
        Path(self.files.path(file)).write_bytes(data)
        self.written = (file, len(data))
        for stream in self.streams:
            stream.wrote([Bytes(EPOCH, file, 0, len(data), len(data), data)], self.written)

    def until_live(self, stream: Stream) -> None:
        deadline = self.threads.monotonic() + 60
        while not stream.is_live:
            assert self.threads.monotonic() < deadline, "it is never live"
            self.threads.sleep(0.005)

    def end_of(self, file: int) -> int | None:
        return None if file == self.written[0] else self.ends[file]

    def after(self, file: int) -> int | None:
        return next((each for each in self.files.list() if file < each <= self.written[0]), None)

    def follow(self, start: tuple[int, int] = (0, 0), lacking: Any = (), **options: Any) -> tuple[NotedLink, Stream]:
        link = options.pop("link", None) or NotedLink(threads=self.threads)
        made = Stream(link, self, start, lacking, self.threads, rate=0)
        self.streams.append(made)
        made.start()
        return link, made


@pytest.fixture
def journal(virtual: VirtualTime, tmp_path: Path) -> Written:
    made = Written(tmp_path, virtual.threads)
    made.begin_file(1, b"header 1")
    return made


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "WINDOW_BYTES", 250)


def test_a_follower_that_is_behind_gets_all_files_and_then_each_batch(journal: Written) -> None:
    journal.write(b"a" * 100)
    journal.begin_file(2, b"header 2")
    journal.begin_file(5, b"header 5")
    link, stream = journal.follow()
    journal.until_live(stream)
    assert [message for message in link.sent if isinstance(message, Sealed)] == [
        Sealed(EPOCH, 1, 108),
        Sealed(EPOCH, 2, 8),
    ]
    journal.write(b"b")
    journal.begin_file(6, b"header 6")
    assert link.received() == journal.content
    assert stream.is_live
    assert Sealed(EPOCH, 5, 9) in link.sent


def test_it_begins_at_the_common_point(journal: Written) -> None:
    journal.write(b"abc")
    journal.begin_file(2, b"header 2")
    link, stream = journal.follow((1, 9))
    journal.until_live(stream)
    assert [(message.file, message.offset, message.data) for message in link.sent if isinstance(message, Bytes)] == [
        (1, 9, b"bc"),
        (2, 0, b"header 2"),
    ]


def test_a_file_is_read_in_pieces_and_the_last_one_has_the_end(journal: Written) -> None:
    data = bytes(2 * stream_module.CHUNK_BYTES + 7)
    journal.write(data)
    link, _ = journal.follow((1, 8))
    ends = [message.end for message in link.wait(Bytes, 3) if isinstance(message, Bytes)]
    assert ends == [0, 0, 8 + len(data)]


def test_bytes_read_from_files_are_sent_at_the_pace(journal: Written) -> None:
    for _ in range(BATCHES_MIN):
        journal.pace.settled(0.001)
    journal.pace.seconds_for(1)
    journal.pace.settled(10.0)
    journal.threads.sleep(ADJUST_SECONDS)
    assert journal.pace.seconds_for(1) > 0
    journal.write(bytes(4 * stream_module.CHUNK_BYTES))
    started = journal.threads.monotonic()
    _, stream = journal.follow((1, 8))
    journal.until_live(stream)
    least = 4 * stream_module.CHUNK_BYTES / (2 * RATE_MIN)
    assert journal.threads.monotonic() - started > least


def test_lacking_files_come_first(journal: Written) -> None:
    journal.begin_file(2, b"header 2")
    journal.begin_file(3, b"header 3")
    link, stream = journal.follow((3, 8), (1, 2))
    journal.until_live(stream)
    assert [type(message) for message in link.sent] == [Bytes, Sealed, Bytes, Sealed]
    journal.write(b"x")
    assert [message.data for message in link.sent if isinstance(message, Bytes)] == [b"header 1", b"header 2", b"x"]
    assert stream.sent == (3, 9)


def test_a_file_that_goes_meanwhile_is_skipped(journal: Written) -> None:
    journal.begin_file(2, b"header 2")
    journal.begin_file(3, b"header 3")
    Path(journal.files.path(1)).unlink()
    link, stream = journal.follow((1, 4), (2,))
    journal.until_live(stream)
    assert Skipped(EPOCH, 1) in link.sent
    Path(journal.files.path(2)).unlink()
    other, stream = journal.follow((3, 8), (2,))
    journal.until_live(stream)
    assert other.sent == [Skipped(EPOCH, 2)]


def test_each_intermediate_file_that_was_given_up_is_reported(journal: Written) -> None:
    """A former stream may have sent a part of it (seed 9479 of the simulator)."""
    for number in (2, 3, 4):
        journal.begin_file(number, b"header %d" % number)
    for number in (1, 2, 3):
        Path(journal.files.path(number)).unlink()
    link, stream = journal.follow((1, 4))
    journal.until_live(stream)
    assert [each for each in link.sent if isinstance(each, Skipped)] == [Skipped(EPOCH, file) for file in (1, 2, 3)]


def test_a_file_that_is_shorter_than_its_end_ends_the_link(journal: Written) -> None:
    journal.begin_file(2, b"header 2")
    journal.ends[1] = 50
    link, _ = journal.follow()
    link.until(lambda: "shorter than its end" in link.closed)


def test_a_follower_for_which_too_much_waits_is_behind_and_catches_up(journal: Written) -> None:
    link, stream = journal.follow()
    journal.until_live(stream)
    link.unsent_bytes = WAITING_BYTES_MAX + 1
    link.may_send.clear()
    journal.write(b"a")
    assert not stream.is_live
    assert link.received() == {1: b"header 1"}
    journal.write(b"b")
    link.unsent_bytes = 0
    link.may_send.set()
    journal.until_live(stream)
    journal.write(b"c")
    assert link.received() == journal.content


def test_a_follower_is_sent_no_more_than_its_window(journal: Written, small_window: None) -> None:
    for number in range(5):
        journal.begin_file(2 + number, bytes(100))
    link, stream = journal.follow((1, 8))
    first = link.wait(Bytes, 3)
    assert not stream.is_live, "300 bytes are under way"
    stream.had((2, 100))
    link.wait(Bytes, 4)
    stream.had((6, 100))
    link.wait(Bytes, 5)
    journal.until_live(stream)
    assert len(first) >= 3


def test_a_live_follower_without_reports_is_behind(journal: Written, small_window: None) -> None:
    link, stream = journal.follow((1, 8))
    journal.until_live(stream)
    sent = 0
    while stream.is_live:
        journal.write(bytes(100))
        sent += 100
    assert sent <= 500
    stream.had(journal.written)
    link.wait(Bytes, sent // 100)
    journal.until_live(stream)
    assert stream.sent == journal.written


def test_files_that_were_lacking_open_the_window_again(journal: Written, small_window: None) -> None:
    for number in range(6):
        journal.begin_file(2 + number, bytes(100))
    link, stream = journal.follow((7, 100), (2, 3, 4, 5, 6))
    for count in (3, 4, 5):
        link.wait(Bytes, count)
        stream.had((0, 0))
    journal.until_live(stream)


def test_an_ended_stream_sends_nothing_more(journal: Written) -> None:
    """Another stream begins on the same link, at another place."""
    link, stream = journal.follow()
    journal.until_live(stream)
    stream.end()
    before = list(link.sent)
    journal.write(b"late")
    stream.sealed(*journal.written)
    assert link.sent == before
    assert not stream.is_live


def test_a_stream_that_is_ended_while_it_waits_sends_nothing_more(journal: Written, virtual: VirtualTime) -> None:
    link = NotedLink(threads=virtual.threads)
    link.may_send.clear()
    _, stream = journal.follow(link=link)
    virtual.sleep(0.01)
    stream.end()
    link.may_send.set()
    virtual.sleep(60)
    assert link.sent == []


class EndedLink(NotedLink):
    looks = 0

    def wait_sent(self, below: int, timeout: float) -> bool:
        self.looks += 1
        assert self.looks < 1_000, "it spins"
        return False


def test_a_stream_whose_link_ended_waits_until_it_is_ended(journal: Written, virtual: VirtualTime) -> None:
    """Without this wait, the thread would use a whole processor while a disk delays the replica."""
    link = EndedLink(threads=virtual.threads)
    _, stream = journal.follow(link=link)
    virtual.sleep(10)
    assert 1 < link.looks < 1_000
    stream.end()
    virtual.sleep(10)
    looks = link.looks
    virtual.sleep(10)
    assert link.looks == looks


def test_it_is_live_only_where_the_master_is(tmp_path: Path) -> None:
    """A batch is written and marked while the stream finds out where it is: it comes from the file, or is handed. On
    real threads: they meet anywhere."""
    journal = Written(tmp_path, OS_THREADS)
    journal.begin_file(1, b"header 1")
    link, stream = journal.follow()
    for _ in range(300):
        journal.write(b"z" * 10)
    link.until(lambda: len(link.received().get(1, b"")) >= journal.written[1])
    assert link.received() == journal.content
    stream.end()


# ---- the pace

PIECE = 1 << 20
USUAL = 0.02


class Timed:
    """A pace, and a clock that the test controls."""

    def __init__(self, batches: int = BATCHES_MIN) -> None:
        self.now = 1_000.0
        self.pace = Pace(lambda: self.now)
        for _ in range(batches):
            self.pace.settled(USUAL)

    def send(self, rate: float, *, batch: float = USUAL) -> None:
        """Send the bytes of one interval at this rate, or at the rate of the pace, together with one batch that takes
        so long."""
        self.pace.settled(batch)
        until = self.now + ADJUST_SECONDS
        while self.now < until:
            self.now += max(PIECE / rate, self.pace.seconds_for(PIECE))

    @property
    def rate(self) -> float:
        seconds = self.pace.seconds_for(PIECE)
        return PIECE / seconds if seconds else float("inf")


@pytest.fixture
def timed() -> Timed:
    made = Timed()
    made.pace.seconds_for(PIECE)
    return made


RATE = 400 << 20
LATE = LATE_TIMES * USUAL + 2 * LATE_PART_MAX * ADJUST_SECONDS


@pytest.mark.parametrize(
    ("before", "batch", "times"),
    [
        (BATCHES_MIN, LATE_TIMES * USUAL, 10),  # it takes as long as before
        (BATCHES_MIN, LATE_TIMES * USUAL + LATE_PART_MAX * ADJUST_SECONDS / 2, 1),  # a late batch now and then
        (BATCHES_MIN - 1, 10.0, 1),  # with few batches before nothing is known
    ],
)
def test_harmless_delays_do_not_slow_the_pace(before: int, batch: float, times: int) -> None:
    timed = Timed(before)
    timed.pace.seconds_for(PIECE)
    for _ in range(times):
        timed.send(RATE, batch=batch)
    assert timed.rate == float("inf")


def test_late_batches_make_it_slower_than_it_was(timed: Timed) -> None:
    timed.send(RATE, batch=LATE)
    first = timed.rate
    assert RATE / 2 < first < RATE
    for _ in range(int(SETTLE_SECONDS / ADJUST_SECONDS) - 2):
        timed.send(RATE, batch=LATE)
    assert timed.rate == pytest.approx(first, rel=0.05), "what was under way when it slowed down slows it no more"
    timed.now += SETTLE_SECONDS
    timed.send(RATE, batch=10.0)
    assert timed.rate < 0.8 * first


def test_a_rate_that_was_too_much_is_approached_in_small_steps(timed: Timed) -> None:
    timed.send(RATE, batch=LATE)
    assert timed.rate < RATE
    for _ in range(20):
        timed.send(RATE)
    assert SLOWER * RATE * 0.9 < timed.rate < 0.9 * RATE


def test_beyond_what_was_too_much_it_is_as_fast_as_it_can(timed: Timed) -> None:
    """In that case the rate was not the cause; the rate never falls below its minimum."""
    for _ in range(60):
        timed.send(RATE, batch=10.0)
    assert RATE_MIN <= timed.rate < 1.2 * RATE_MIN
    for _ in range(250):
        timed.send(RATE)
    assert timed.rate > RATE


def test_a_disturbance_before_is_not_what_is_usual() -> None:
    timed = Timed(batches=3 * BLOCK_BATCHES)
    for _ in range(2 * BLOCK_BATCHES):
        timed.pace.settled(10.0)
    timed.pace.seconds_for(PIECE)
    timed.send(RATE, batch=LATE)
    assert timed.rate < RATE


def test_batches_during_a_catch_up_do_not_count_as_usual(timed: Timed) -> None:
    for _ in range(BATCHES_MIN):
        timed.send(RATE, batch=1.0)
    timed.now += REST_SECONDS
    assert timed.rate == float("inf"), "another catch-up begins"
    timed.send(RATE, batch=LATE)
    assert timed.rate < RATE


def test_a_single_disturbance_after_quiet_seconds_is_no_reason(timed: Timed) -> None:
    for _ in range(int(LATE_OF_SECONDS / ADJUST_SECONDS)):
        timed.send(RATE)
    once = LATE_TIMES * USUAL + 0.9 * LATE_PART_MAX * LATE_OF_SECONDS
    timed.send(RATE, batch=once)
    timed.send(RATE)
    assert timed.rate == float("inf")
    for _ in range(3):  # but what goes on is
        timed.send(RATE, batch=once)
    assert timed.rate < RATE
