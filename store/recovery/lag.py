"""Lag of a standby behind the visible journal. Pure.

A standby applies a batch of the master only when a later batch exists. So a standby that has read everything is still
behind by one batch. The end of a live file is known only after it was read; before, the length of the file is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tandemmq.store.state.tail import Position

# Assumed bytes of a record, until many were read: a message of 1 KiB. RECORDS_ASSUMED is the weight of the assumption.
RECORD_BYTES = 1_300
RECORDS_ASSUMED = 100
# A standby counts as caught up if it reached the end of the journal within this time. It polls ten times a second.
CAUGHT_UP_SECONDS = 2.0


class Lag(NamedTuple):
    """Lag of a standby. ``bytes`` and ``records`` of the journal are not in the state yet. ``seconds``: time since it
    last reached the end of the journal; infinite: never."""

    bytes: int
    records: int
    seconds: float

    @property
    def has_caught_up(self) -> bool:
        """True if the standby has recently read all settled batches of the journal."""
        return self.seconds <= CAUGHT_UP_SECONDS

    def figures(self) -> dict[str, object]:
        """Return the values for the status. ``seconds`` is None if the end was never reached."""
        return {
            "bytes": self.bytes,
            "records": self.records,
            "seconds": None if math.isinf(self.seconds) else round(self.seconds, 3),
        }


def together(lags: Iterable[Lag]) -> Lag:
    """Return the lag of several stores: the sums of bytes and records, and the longest time. Without stores, all
    are 0."""
    each = tuple(lags)
    seconds = max((lag.seconds for lag in each), default=0.0)
    return Lag(sum(lag.bytes for lag in each), sum(lag.records for lag in each), seconds)


class _Snapshot(NamedTuple):
    """Visible part of a journal. ``ends``: (file, visible bytes), ascending. ``unsettled``: records of the last batch,
    which is not settled. ``reached_at``: time at which the end was reached, or None."""

    ends: tuple[tuple[int, int], ...] = ()
    unsettled: int = 0
    reached_at: float | None = None


class ReadProgress:
    """Progress of a reader of a journal. The reader's thread updates it; any thread may call ``lag``."""

    def __init__(self) -> None:
        self._snapshot = _Snapshot()
        self._bytes = 0
        self._records = 0

    def refresh(
        self, ids: Sequence[int], position: Position, ends: Mapping[int, int], size_of: Callable[[int], int]
    ) -> None:
        """Note the existing files and the ends that headers state, before reading."""
        known = dict(self._snapshot.ends)
        reached_at = self._snapshot.reached_at
        visible = []
        for file in ids:
            if file >= position.file:
                end = ends.get(file)
                if end is None:
                    end = known.get(file, 0 if reached_at is not None else size_of(file))
                visible.append((file, end))
        self._snapshot = _Snapshot(tuple(visible), 0, reached_at)

    def read(self, records: int, size: int) -> None:
        """Note a settled batch with this number of records and bytes."""
        self._records += records
        self._bytes += size

    def reach(self, at: float, file: int, end: int, unsettled: int) -> None:
        """Note that the reader reached the end of the journal, offset ``end`` of ``file``. It began to read at ``at``,
        so the result is valid for this time."""
        self._snapshot = _Snapshot(((file, end),), unsettled, at)

    def lag(self, position: Position | None, now: float) -> Lag:
        """Return the lag of ``position`` behind the visible journal, at the time ``now``."""
        snapshot = self._snapshot
        behind = sum(end for file, end in snapshot.ends if position is None or file > position.file)
        if position is not None:
            behind += sum(max(0, end - position.offset) for file, end in snapshot.ends if file == position.file)
        records = snapshot.unsettled
        if not records:
            records = int(behind * (self._records + RECORDS_ASSUMED) / (self._bytes + RECORDS_ASSUMED * RECORD_BYTES))
        return Lag(behind, records, math.inf if snapshot.reached_at is None else max(0.0, now - snapshot.reached_at))
