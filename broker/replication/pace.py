"""Pace at which the journal is sent to a follower that is behind: slower while the catch-up makes receipts wait longer.

While no follower is behind, the time of a batch from writing to confirmation is noted. While one is behind, each look
measures for how large a part of the time batches took more than a multiple of that: about that part of the messages
wait longer. If the part exceeds a hundredth of the last seconds, the disk or the network is at its limit, and less is
sent. A single disturbance, which happens at rest, too, is not enough. After that the pace grows in small steps up to
the rate that was too much, since reaching it delays receipts each time, and in large steps beyond it: then the rate was
not the cause. Without load nothing waits, and the pace is unlimited.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from typing import Final

#: Lowest rate, in bytes a second: a node that is behind is one copy less, and must gain on the present writes.
RATE_MIN: Final = 32 << 20
LOOK_SECONDS: Final = 0.25
LATE_PART_MAX: Final = 0.01
#: The part counts over at most this many seconds.
LATE_OF_SECONDS: Final = 10.0
SLOWER: Final = 0.7
FASTER: Final = 1.15
#: Factor near the rate that was too much.
SLIGHTLY_FASTER: Final = 1.01
#: Batches under way when the pace slowed down may be late for this long.
SETTLE_SECONDS: Final = 1.0
#: A batch is late when it takes more than this many times what 99 of 100 took while no follower was behind.
LATE_TIMES: Final = 3.0
LATE_SECONDS_MIN: Final = 0.01
#: The time that 99 of 100 take is measured per block of batches, and the median of the blocks counts: an occasional
#: disturbance, such as the start of a node on the same machine, is not usual.
BLOCK_BATCHES: Final = 250
BLOCKS_MAX: Final = 32
#: Fewer batches give no measure.
BATCHES_MIN: Final = 100
#: No follower is behind any more when nothing was sent for this long.
REST_SECONDS: Final = 5.0


class Pace:
    """Pace of all streams. ``settled`` is for the storage thread, ``seconds_for`` for the threads of streams. Neither
    waits."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.rate = math.inf
        self._now = now
        self._block: list[float] = []
        self._usual: deque[float] = deque(maxlen=BLOCKS_MAX)  # of each former block
        self._sent_at = -math.inf
        self._late_after = math.inf
        self._late_seconds = 0.0
        self._may_be_late = 0.0  # late seconds still allowed
        self._looked_at = 0.0
        self._slowed_at = -math.inf
        self._too_much = math.inf
        self._sent_bytes = 0

    def settled(self, seconds: float) -> None:
        """Note that a batch took this long from its writing to its confirmation."""
        if self._now() - self._sent_at >= REST_SECONDS:
            self._block.append(seconds)
            if len(self._block) == BLOCK_BATCHES:
                self._usual.append(_most(self._block))
                self._block = []
        elif seconds > self._late_after:
            self._late_seconds += seconds - self._late_after

    def seconds_for(self, count: int) -> float:
        """Return for how many seconds to send no more from files after ``count`` bytes, which are sent now."""
        now = self._now()
        if now - self._sent_at >= REST_SECONDS:
            self._begin(now)
        elif now - self._looked_at >= LOOK_SECONDS:
            self._look(now)
        self._sent_at = now
        self._sent_bytes += count
        return count / self.rate

    def _begin(self, now: float) -> None:
        blocks = list(self._usual)
        if not blocks and len(self._block) >= BATCHES_MIN:
            blocks.append(_most(self._block))
        usual = statistics.median_low(blocks) if blocks else math.inf
        self._late_after = max(LATE_TIMES * usual, LATE_SECONDS_MIN)
        self.rate = self._too_much = math.inf
        self._slowed_at = -math.inf
        self._late_seconds, self._sent_bytes, self._looked_at = 0.0, 0, now
        self._may_be_late = 0.0

    def _look(self, now: float) -> None:
        seconds = now - self._looked_at
        may_be_late = self._may_be_late + LATE_PART_MAX * seconds - self._late_seconds
        self._may_be_late = min(max(0.0, may_be_late), LATE_PART_MAX * LATE_OF_SECONDS)
        if may_be_late < 0:
            if now - self._slowed_at >= SETTLE_SECONDS:
                self._too_much = min(self.rate, self._sent_bytes / seconds)
                self.rate = max(RATE_MIN, SLOWER * self._too_much)
                self._slowed_at = now
        elif SLOWER * self._too_much <= self.rate < self._too_much:
            self.rate *= SLIGHTLY_FASTER
        else:
            self.rate *= FASTER
        self._late_seconds, self._sent_bytes, self._looked_at = 0.0, 0, now


def _most(block: list[float]) -> float:
    """Return the most that 99 of 100 of them took."""
    found = sorted(block)
    return found[len(found) * 99 // 100]
