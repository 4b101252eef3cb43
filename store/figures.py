"""What a storage thread has done so far, for status and metrics."""

from __future__ import annotations


class Figures:
    """What the thread has done so far; written by it alone, read by anybody.

    ``last_look`` is CLOCK_BOOTTIME as read before the last look that found no successor.
    ``confirmed`` counts operations that were reported: clients have their answers.
    ``damaged`` counts messages that were not given out, because their batch does not verify any more.
    """

    __slots__ = (
        "batches",
        "bytes_copied",
        "bytes_written",
        "checkpoint_seconds",
        "checkpoints",
        "compactions",
        "confirmed",
        "damaged",
        "duplicates",
        "files_reclaimed",
        "last_look",
        "last_seen_alive",
        "records",
        "syncs",
    )

    def __init__(self, now: float) -> None:
        self.batches = 0
        self.bytes_copied = 0
        self.bytes_written = 0
        self.checkpoint_seconds = 0.0
        self.checkpoints = 0
        self.compactions = 0
        self.confirmed = 0
        self.damaged = 0
        self.duplicates = 0
        self.files_reclaimed = 0
        self.last_look = float("-inf")
        self.last_seen_alive = now
        self.records = 0
        self.syncs = 0
