"""The expected time of a take-over, and the distance of checkpoints that its budget permits. Pure.

        lock     until the standby knows that the lock is free: a poll, and the lease where there is one
        replay   fence, the end of the journal, and the records that are not in the state yet
        load     grows with the queues and subscriptions that are handed to the engine

Parts that cannot be measured in advance are constants, taken on the machine of bench/reports.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemmq.store.settings import StoreSettings

# Replay time of a record where it was not measured: 1.5 times that of the machine of bench/reports.
REPLAY_SECONDS_PER_RECORD = 12e-6
# Records after which the measured replay speed replaces the assumed one.
REPLAY_RECORDS_ASSUMED = 20_000
PIECE_RECORDS_MIN = 1_000
# Older measurements count half from here on.
RECORDS_REMEMBERED_MAX = 1_000_000
# A speed that no machine reaches is a measuring error.
REPLAY_SECONDS_PER_RECORD_MIN = 1e-6
# Make and link a file, write its header, three syncs, the sync of the directory; open the listeners.
FENCE_SECONDS = 0.02
# The rest of the last file is read from the disk, to check that nothing is after its end.
READ_BYTES_PER_SECOND = 400e6
# A lower bound would leave no time for work: a checkpoint has fixed costs.
CHECKPOINT_RECORDS_MIN = 1_000


class Prediction(NamedTuple):
    """Seconds from a master's end to a new master that serves. ``records`` are to be read, ``owners`` (queues and
    durable subscriptions) handed over; ``budget_seconds`` is the limit for replay and load (failover_budget)."""

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
        """Return the figures for the status."""
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
    """Return the prediction for several stores under one lock: one interpreter does their work."""
    return Prediction(
        max((each.lock_seconds for each in predictions), default=0.0),
        sum(each.replay_seconds for each in predictions),
        sum(each.load_seconds for each in predictions),
        sum(each.records for each in predictions),
        sum(each.owners for each in predictions),
        max((each.budget_seconds for each in predictions), default=0.0),
    )


class ReplaySpeed:
    """Replay time of a record, measured on long pieces; a constant until enough were measured."""

    def __init__(self) -> None:
        self._records = 0
        self._seconds = 0.0

    def note(self, records: int, seconds: float) -> None:
        """Note a piece that was read; a short one is ignored, because other costs dominate it."""
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
    """Return the seconds for fence and end of the journal: the cost of each take-over, whatever is stored."""
    return FENCE_SECONDS + settings.journal_max_file_length / READ_BYTES_PER_SECOND


def records_per_checkpoint(settings: StoreSettings, seconds_per_record: float, load_seconds: float) -> int:
    """Return after how many records a checkpoint begins, so that a replay stays within recovery_budget, and fence,
    replay and load within failover_budget. Two tails may have to be replayed: the one that a checkpoint was writing
    when the master died, and the one that grew meanwhile."""
    for_replay = min(settings.recovery_budget, settings.failover_budget - end_seconds(settings) - load_seconds)
    affordable = int(for_replay / seconds_per_record / 2)
    return min(settings.checkpoint_records, max(affordable, CHECKPOINT_RECORDS_MIN))
