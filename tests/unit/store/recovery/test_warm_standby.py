"""A warm standby: it knows its lag, leaves little work for a promotion, and predicts the duration of a promotion."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.recovery.lag import CAUGHT_UP_SECONDS
from tandemmq.store.recovery.prediction import CHECKPOINT_RECORDS_MIN, records_per_checkpoint
from tandemmq.store.settings import StoreSettings
from tandemmq.store.threads import OsThreads
from tests.support.store.standbys import standby_of
from tests.support.store.store_harness import KIB, SMALL, Q, Term

pytestmark = pytest.mark.promise("takeover-is-independent-of-size")


class ManualThreads(OsThreads):
    """The operating system's, with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:  # type: ignore[override]
        return self.now


# ---- lag of a standby


def test_a_standby_that_reads_no_more_has_not_caught_up(directory: str) -> None:
    master = Term(directory)
    master.add_durably(20)
    threads = ManualThreads()
    follower = standby_of(directory, threads=threads)
    assert not follower.has_caught_up, "nothing was read yet"
    follower.follow()
    assert follower.has_caught_up
    threads.now += CAUGHT_UP_SECONDS + 1
    assert not follower.has_caught_up, "a master may have written much in the meantime"
    assert follower.lag.seconds == CAUGHT_UP_SECONDS + 1
    follower.follow()
    assert follower.has_caught_up
    follower.close()
    master.close()


def test_at_the_end_a_standby_is_behind_by_the_batch_that_is_not_settled(directory: str) -> None:
    master = Term(directory, settings=replace(SMALL, clock_mark_interval=math.inf))  # records are counted here
    master.add_durably(20)
    last = master.add_durably(1)[0]
    follower = standby_of(directory)
    follower.follow()
    assert follower.lag.records == 1
    assert last.size < follower.lag.bytes < last.size + 100, "the record and what frames its batch"
    master.add_durably(1)
    assert follower.lag.records == 1, "what was not seen is not known of"
    follower.follow()
    assert follower.messages == 21
    follower.close()
    master.close()


def test_a_stopped_standby_reports_the_rest(directory: str) -> None:
    settings = StoreSettings(journal_max_file_length=64 * KIB, fence_check_interval=0.05, checkpoint_interval=3600.0)
    master = Term(directory, settings=settings)
    master.add_durably(400, body=b"x" * KIB)
    follower = standby_of(directory, settings=settings)
    follower.halt()
    follower.follow()
    lag = follower.lag
    sizes = sum(path.stat().st_size for path in Path(directory).glob("db-*.log"))
    assert not follower.has_caught_up
    assert 350 * KIB < lag.bytes < sizes
    assert 200 < lag.records < 800
    follower.close()
    master.close()


# ---- work that a promotion need not do


def test_a_promotion_passes_a_checkpoint_in_progress_to_the_new_master(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It never gets further than its beginning.
    monkeypatch.setattr("tandemmq.store.standby.CHECKPOINT_SLICE_SECONDS", 0.0)
    settings = StoreSettings(
        journal_max_file_length=64 * KIB, checkpoint_records=100, checkpoint_interval=0.0, fence_check_interval=0.05
    )
    master = Term(directory, settings=settings)
    follower = standby_of(directory, settings=settings)  # before: its index may begin as a copy of the master's
    kept = [*master.add_durably(60), *master.add_durably(1)]  # the second batch settles the first
    follower.follow()
    generation = follower.follower.index.generation
    assert follower.follower._checkpoint.is_under_way
    # These change what is being written, before it is written.
    master.take(kept[:30])
    more = master.add_durably(5)
    follower.follow()
    assert follower.follower.index.generation == generation
    expected = master.bodies()
    assert expected == [operation.message.body for operation in (*kept[30:], *more)]
    master.crash()
    with Term.of(follower) as successor:
        assert successor.store.records_replayed <= 5 + len(kept), "what was read by the standby is not read again"
        assert successor.bodies() == expected
        successor.wait(lambda: successor.store.figures.checkpoints >= 2)  # the one that was begun, and a new one
    with Term(directory, "b", settings) as again:
        assert again.bodies() == expected


@pytest.mark.parametrize("ends", ["close", "crash"])
def test_a_new_master_may_end_before_it_wrote_that_checkpoint(
    directory: str, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr("tandemmq.store.standby.CHECKPOINT_SLICE_SECONDS", 0.0)
    settings = StoreSettings(journal_max_file_length=64 * KIB, checkpoint_interval=0.0, fence_check_interval=0.05)
    master = Term(directory, settings=settings)
    follower = standby_of(directory, settings=settings)
    kept = [*master.add_durably(60), *master.add_durably(1)]
    follower.follow()
    master.take(kept[:30])
    expected = master.bodies()
    master.crash()
    successor = Term.of(follower)
    assert successor.store._state.frozen is not None
    (successor.close if ends == "close" else successor.crash)()
    with Term(directory, "b", settings) as again:
        assert again.bodies() == expected == [operation.message.body for operation in kept[30:]]


def test_the_memory_of_a_standby_does_not_grow_with_removed_messages(directory: str) -> None:
    settings = StoreSettings(
        journal_max_file_length=64 * KIB, checkpoint_records=50, cleanup_interval=0.0, fence_check_interval=0.01
    )
    master = Term(directory, settings=settings)
    owner = master.store.queue(Q)
    follower = standby_of(directory, settings=settings)
    for _ in range(60):
        for operation in master.add_durably(10, body=b"x" * 4000):
            master.remove(operation, owner)
        master.wait(lambda: not master.store.has_pending)
        follower.follow()
    assert master.store.figures.files_reclaimed > 20
    one = follower.follower
    files = len(list(Path(directory).glob("db-*.log")))
    assert one.state.tail.operations <= 3 * settings.checkpoint_records
    assert len(one.replay._places) + len(one.replay._frozen_places) <= 5 * settings.checkpoint_records
    for kept in (one._headers._first, one._sealed._sound, one.state.given_up, one._ends_seen, one.state.files):
        assert len(kept) <= files + 10
    follower.close()
    master.close()


def test_stale_indexes_are_removed_after_the_promotion(directory: str, caplog: pytest.LogCaptureFixture) -> None:
    first = Term(directory, "old")
    first.close()
    stale = Path(directory, "index", "old")
    long_ago = time.time() - 30 * 24 * 3600
    os.utime(stale / "db.data", (long_ago, long_ago))
    with caplog.at_level(logging.INFO, "tandemmq.store.standby"):
        successor = Term.of(standby_of(directory))
        successor.wait(lambda: not stale.exists() and "removed the stale index" in caplog.text)
    successor.close()


# ---- prediction of the duration


def test_the_prediction_is_of_the_size_of_what_comes_true(directory: str) -> None:
    """The prediction need not be exact to a second, but it must distinguish a short take-over from a long one."""
    settings = StoreSettings(
        clock_mark_interval=math.inf,  # records are counted here
        fence_check_interval=0.05,
        checkpoint_records=1_000_000,
        failover_budget=3600,
        recovery_budget=3600,
    )
    master = Term(directory, settings=settings)
    for number in range(20):
        master.add_durably(1500, Destination(DestinationKind.QUEUE, f"Q.{number}"))
    cold = master.store.prediction()
    assert 25_000 <= cold.records <= 30_000, "all but what the first checkpoint of an epoch has"
    warm_one = standby_of(directory, settings=settings)
    warm_one.follow()
    warm = warm_one.prediction(lock_seconds=0.2)
    assert warm.lock_seconds == 0.2
    assert warm.records <= 1500, "a small part of what a cold start reads, however fast this machine is"
    assert warm.owners >= 19, "the last queue may be in the batch that is not settled"
    warm_one.close()
    master.crash()
    Path(directory, "index").rename(Path(directory, "away"))
    alone = standby_of(directory, settings=settings)
    started = time.monotonic()
    successor = Term.of(alone)
    seconds = time.monotonic() - started
    assert successor.store.records_replayed >= 30_000
    print(f"cold: {cold.total_seconds:.3f} s predicted, {seconds:.3f} s came true; warm: {warm.total_seconds:.3f} s")
    assert cold.total_seconds / 5 < seconds < cold.total_seconds * 20, "20: a machine that others use, too"
    successor.close()


@pytest.mark.parametrize(
    ("budgets", "load_seconds", "expected"),
    [
        ({"failover_budget": 1.0, "recovery_budget": 100.0}, 0.0, 9_000),
        ({"failover_budget": 100.0, "recovery_budget": 1.0}, 0.0, 10_000),
        ({"failover_budget": 1.0, "recovery_budget": 100.0}, 0.4, 5_000),
        ({"failover_budget": 0.05, "recovery_budget": 100.0}, 0.0, CHECKPOINT_RECORDS_MIN),
        ({"failover_budget": 100.0, "recovery_budget": 100.0}, 0.0, 50_000),
    ],
)
def test_checkpoints_come_as_often_as_the_budgets_ask(
    budgets: dict[str, float], load_seconds: float, expected: int
) -> None:
    settings = StoreSettings(journal_max_file_length=32_000_000, **budgets)  # type: ignore[arg-type]
    assert records_per_checkpoint(settings, 50e-6, load_seconds) == expected


def test_a_budget_makes_a_masters_and_a_standbys_checkpoints_come_early(directory: str) -> None:
    """Reading the records after a cold start never takes longer than the budget."""
    settings = StoreSettings(failover_budget=0.13, checkpoint_interval=3600.0, fence_check_interval=0.05)
    limit = records_per_checkpoint(settings, 12e-6, 0.0)
    most = 2 * (limit + 500)  # two tails, each of which may get one batch too many
    assert most < 4_000, "else this would show nothing"
    master = Term(directory, settings=settings)
    follower = standby_of(directory, settings=settings)

    def is_within_on_the_standby() -> bool:
        follower.follow()
        state = follower.state
        return state.tail.operations + (0 if state.frozen is None else state.frozen.operations) <= most

    for _ in range(20):
        master.add_durably(500)
        # On a busy disk the frozen tail stays for a moment longer; without a checkpoint, it stays for ever.
        master.wait(lambda: master.store.prediction().records <= most)
        master.wait(is_within_on_the_standby)
    assert master.store.figures.checkpoints >= 10_000 // most
    follower.follow()
    assert follower.follower.index.generation >= 10_000 // most
    follower.close()
    master.close()
