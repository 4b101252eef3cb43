"""Figures of a storage thread, for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandemmq.store.histogram import Histogram

if TYPE_CHECKING:
    from tandemmq.journal.native import CommitQueue

# Upper bounds of the buckets of histograms
SYNC_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
CHECKPOINT_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BATCH_RECORDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass(slots=True, eq=False)
class Figures:
    """Counts and durations of a storage thread since its start. Only that thread writes them; any thread may read them.

    ``last_seen_alive``: monotonic time. ``last_fence_check``: CLOCK_BOOTTIME in seconds, read before the last fence
    check that found no successor. ``confirmed``: operations that were reported as durable. ``damaged``: messages that
    were not delivered because their batch does not verify. ``queue``: commit queue, which measures its own batches;
    ``measured`` adds both.
    """

    last_seen_alive: float
    last_fence_check: float = float("-inf")
    batches: int = 0
    bytes_copied: int = 0
    bytes_written: int = 0
    checkpoints: int = 0
    compactions: int = 0
    confirmed: int = 0
    damaged: int = 0
    duplicates: int = 0
    files_reclaimed: int = 0
    records: int = 0
    syncs: int = 0
    sync_seconds: Histogram = field(default_factory=lambda: Histogram(SYNC_SECONDS))
    batch_records: Histogram = field(default_factory=lambda: Histogram(BATCH_RECORDS))
    checkpoint_seconds: Histogram = field(default_factory=lambda: Histogram(CHECKPOINT_SECONDS))
    queue: CommitQueue | None = None

    def measured(self) -> dict[str, Histogram]:
        """Return the histograms: name of the metric -> histogram."""
        syncs, records = self.sync_seconds, self.batch_records
        if self.queue is not None:
            queued_syncs, queued_records = self.queue.measured()
            syncs, records = syncs.plus(*queued_syncs), records.plus(*queued_records)
        return {
            "journal_sync_duration_seconds": syncs,
            "journal_batch_records": records,
            "checkpoint_duration_seconds": self.checkpoint_seconds,
        }
