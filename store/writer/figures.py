"""What a storage thread has done so far, for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Figures:
    """What the thread has done so far; written by it alone, read by anybody.

    ``last_fence_check`` is CLOCK_BOOTTIME as read before the last fence check that found no successor.
    ``confirmed`` counts operations that were reported: clients have their answers.
    ``damaged`` counts messages that were not given out, because their batch does not verify any more.
    """

    last_seen_alive: float
    last_fence_check: float = float("-inf")
    batches: int = 0
    bytes_copied: int = 0
    bytes_written: int = 0
    checkpoint_seconds: float = 0.0
    checkpoints: int = 0
    compactions: int = 0
    confirmed: int = 0
    damaged: int = 0
    duplicates: int = 0
    files_reclaimed: int = 0
    records: int = 0
    syncs: int = 0
