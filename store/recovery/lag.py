"""The lag of a standby behind the visible journal. Pure.

A standby may use a batch of the master only when a later batch exists. So a standby at the end is always behind by one
batch. Only a read to the end of a growing file shows how much of it counts: before the first read, the length of the
file is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tandemmq.store.state.tail import Position

# Assumed bytes of a record while few were read: a message of 1 KiB. RECORDS_ASSUMED is the weight of the assumption.
RECORD_BYTES = 1_300
RECORDS_ASSUMED = 100
# A standby that was at the end within this time counts as caught up: it polls ten times a second.
CAUGHT_UP_SECONDS = 2.0


class Lag(NamedTuple):
    """``bytes`` and ``records`` of the journal that are not in the state yet; ``seconds`` since there was nothing more
    to read (infinite: never yet)."""

    bytes: int
    records: int
    seconds: float

    @property
    def has_caught_up(self) -> bool:
        """True if the standby has read everything that the journal contained a moment ago and that counts."""
        return self.seconds <= CAUGHT_UP_SECONDS

    def figures(self) -> dict[str, object]:
        """Return plain values for the status; ``seconds`` is None when the end was never reached."""
        return {
            "bytes": self.bytes,
            "records": self.records,
            "seconds": None if math.isinf(self.seconds) else round(self.seconds, 3),
        }


def together(lags: Iterable[Lag]) -> Lag:
    """Return the lag of several stores: the sum of what is to be read, and the longest time. No store, no lag."""
    each = tuple(lags)
    seconds = max((lag.seconds for lag in each), default=0.0)
    return Lag(sum(lag.bytes for lag in each), sum(lag.records for lag in each), seconds)


class _Seen(NamedTuple):
    """``ends``: (file, visible bytes), in order; ``unsettled``: records of the last batch, which waits for the next."""

    ends: tuple[tuple[int, int], ...] = ()
    unsettled: int = 0
    reached_at: float | None = None


class Horizon:
    """The part of a journal that its reader saw. Written by the reader's thread; any thread may call ``lag``."""

    def __init__(self) -> None:
        self._seen = _Seen()
        self._bytes = 0
        self._records = 0

    def refresh(
        self, ids: Sequence[int], position: Position, ends: Mapping[int, int], size_of: Callable[[int], int]
    ) -> None:
        """Note, before reading, the files that are there and the ends that headers name."""
        known = dict(self._seen.ends)
        reached_at = self._seen.reached_at
        visible = []
        for file in ids:
            if file >= position.file:
                end = ends.get(file)
                if end is None:
                    end = known.get(file, 0 if reached_at is not None else size_of(file))
                visible.append((file, end))
        self._seen = _Seen(tuple(visible), 0, reached_at)

    def read(self, records: int, size: int) -> None:
        """Note that a batch was settled."""
        self._records += records
        self._bytes += size

    def reach(self, at: float, file: int, end: int, unsettled: int) -> None:
        """Note that there was nothing more to read, as of ``at``: ``file`` is visible to ``end``."""
        self._seen = _Seen(((file, end),), unsettled, at)

    def lag(self, position: Position | None, now: float) -> Lag:
        """Return how far ``position`` is behind the part that was seen."""
        seen = self._seen
        behind = sum(end for file, end in seen.ends if position is None or file > position.file)
        if position is not None:
            behind += sum(max(0, end - position.offset) for file, end in seen.ends if file == position.file)
        records = seen.unsettled
        if not records:
            records = int(behind * (self._records + RECORDS_ASSUMED) / (self._bytes + RECORDS_ASSUMED * RECORD_BYTES))
        return Lag(behind, records, math.inf if seen.reached_at is None else max(0.0, now - seen.reached_at))
