"""Prediction of the time of a take-over, and of the number of records between checkpoints that keeps it in its budget.
Pure.

        lock     until the standby knows that the lock is free: a poll, and the length of a lease
        replay   fence, end of the journal, and records that are not in the state yet
        load     grows with the number of queues and subscriptions

Times that cannot be measured in advance are constants, measured on the machine of bench/reports.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemmq.store.settings import StoreSettings

# Assumed replay time of a record: 1.5 times that on the machine of bench/reports.
REPLAY_SECONDS_PER_RECORD = 12e-6
# After this number of records, the measured replay speed replaces the assumed one.
REPLAY_RECORDS_ASSUMED = 20_000
PIECE_RECORDS_MIN = 1_000
# When this number of records was measured, the sums are halved, so that older measurements count less.
RECORDS_REMEMBERED_MAX = 1_000_000
# Lower bound of the measured time, against measuring errors.
REPLAY_SECONDS_PER_RECORD_MIN = 1e-6
# Time to make and link a file, write its header, do four syncs, and open the listeners.
FENCE_SECONDS = 0.02
# Read speed of the last file, which is read to its end from the disk.
READ_BYTES_PER_SECOND = 400e6
# Least number of records between checkpoints, because a checkpoint has fixed costs.
CHECKPOINT_RECORDS_MIN = 1_000


class Prediction(NamedTuple):
    """Predicted seconds from the end of a master until the next master serves clients. ``records``: number to be
    replayed. ``owners``: number of queues and durable subscriptions to be loaded. ``budget_seconds``: limit for replay
    and load (failover_budget)."""

    lock_seconds: float
    replay_seconds: float
    load_seconds: float
    records: int
    owners: int
    budget_seconds: float

    @property
    def total_seconds(self) -> float:
        return self.lock_seconds + self.replay_seconds + self.load_seconds

    @property
    def is_within_budget(self) -> bool:
        return self.replay_seconds + self.load_seconds <= self.budget_seconds

    def figures(self) -> dict[str, object]:
        """Return the values for the status."""
        return {
            "total_seconds": round(self.total_seconds, 4),
            "lock_seconds": round(self.lock_seconds, 4),
            "replay_seconds": round(self.replay_seconds, 4),
            "load_seconds": round(self.load_seconds, 4),
            "records": self.records,
            "owners": self.owners,
            "budget_seconds": self.budget_seconds,
            "is_within_budget": self.is_within_budget,
        }


def together(predictions: list[Prediction]) -> Prediction:
    """Return the prediction for several stores under one lock. Times of replay and load add up, because one interpreter
    does the work."""
    return Prediction(
        max((each.lock_seconds for each in predictions), default=0.0),
        sum(each.replay_seconds for each in predictions),
        sum(each.load_seconds for each in predictions),
        sum(each.records for each in predictions),
        sum(each.owners for each in predictions),
        max((each.budget_seconds for each in predictions), default=0.0),
    )


class ReplaySpeed:
    """Measured replay time of a record; a constant until enough records were measured."""

    def __init__(self) -> None:
        self._records = 0
        self._seconds = 0.0

    def note(self, records: int, seconds: float) -> None:
        """Note the time to replay some records. Few records are ignored, because other costs dominate their time."""
        if records < PIECE_RECORDS_MIN:
            return
        if self._records > RECORDS_REMEMBERED_MAX:
            self._records //= 2
            self._seconds /= 2
        self._records += records
        self._seconds += seconds

    @property
    def seconds_per_record(self) -> float:
        if self._records < REPLAY_RECORDS_ASSUMED:
            return REPLAY_SECONDS_PER_RECORD
        return max(self._seconds / self._records, REPLAY_SECONDS_PER_RECORD_MIN)


def end_seconds(settings: StoreSettings) -> float:
    """Return the seconds for the fence and the end of the journal, which each take-over needs."""
    return FENCE_SECONDS + settings.journal_max_file_length / READ_BYTES_PER_SECOND


def records_per_checkpoint(settings: StoreSettings, seconds_per_record: float, load_seconds: float) -> int:
    """Return the number of records after which a checkpoint begins, so that a replay stays within recovery_budget, and
    fence, replay and load within failover_budget.

    A replay may have to read this number twice: the records of the checkpoint that was in progress when the master
    died, and the records that were written meanwhile.
    """
    for_replay = min(settings.recovery_budget, settings.failover_budget - end_seconds(settings) - load_seconds)
    affordable = int(for_replay / seconds_per_record / 2)
    return min(settings.checkpoint_records, max(affordable, CHECKPOINT_RECORDS_MIN))
