"""How fast a follower that is behind is sent the journal: slower while receipts wait longer for it than they did.

What a batch takes from its writing to its confirmation is noted while nobody is behind. While somebody is, it is looked
at again and again for how large a part of the time batches took more than a multiple of that: about so many of the
messages that come meanwhile wait for longer. If it is more than a hundredth of the last seconds, the disk or the
network has no more to give: less is sent. What disturbs once, as it does at rest, too, is no such sign. From there on
the pace grows in small steps up to the rate that was too much, since each time that it is reached costs receipts their
time, and in large ones beyond it: then it was not the rate. Without a load nothing waits, and it goes as fast as it
can.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from typing import Final

#: Never slower, in bytes a second: who is behind is one copy less, and has to gain on what is written meanwhile.
RATE_MIN: Final = 32 << 20
LOOK_SECONDS: Final = 0.25
LATE_PART_MAX: Final = 0.01
#: Of so many seconds at most.
LATE_OF_SECONDS: Final = 10.0
SLOWER: Final = 0.7
FASTER: Final = 1.15
#: Near what was too much.
SLIGHTLY_FASTER: Final = 1.01
#: What was under way when it slowed down is late for so long.
SETTLE_SECONDS: Final = 1.0
#: A batch is late when it takes more than so many times what 99 of 100 took while nobody was behind.
LATE_TIMES: Final = 3.0
LATE_SECONDS_MIN: Final = 0.01
#: What 99 of 100 take is asked of so many at a time, and of so many times the one in the middle counts: what disturbs
#: now and then, as the start of a node does on the same machine, is not what is usual.
BLOCK_BATCHES: Final = 250
BLOCKS_MAX: Final = 32
#: With fewer batches nothing is known of them.
BATCHES_MIN: Final = 100
#: Nobody is behind any more when so long nothing was sent.
REST_SECONDS: Final = 5.0


class Pace:
    """``settled`` is for the storage thread, ``seconds_for`` for the threads of streams. Neither waits."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.rate = math.inf
        self._now = now
        self._block: list[float] = []
        self._usual: deque[float] = deque(maxlen=BLOCKS_MAX)  # of each block before
        self._sent_at = -math.inf
        self._late_after = math.inf
        self._late_seconds = 0.0
        self._may_be_late = 0.0  # so many seconds, before it is too much
        self._looked_at = 0.0
        self._slowed_at = -math.inf
        self._too_much = math.inf
        self._sent_bytes = 0

    def settled(self, seconds: float) -> None:
        """A batch took so long from its writing to its confirmation."""
        if self._now() - self._sent_at >= REST_SECONDS:
            self._block.append(seconds)
            if len(self._block) == BLOCK_BATCHES:
                self._usual.append(_most(self._block))
                self._block = []
        elif seconds > self._late_after:
            self._late_seconds += seconds - self._late_after

    def seconds_for(self, count: int) -> float:
        """So many bytes are sent now, from files: no more for so long."""
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
    """What 99 of 100 of them took, at most."""
    found = sorted(block)
    return found[len(found) * 99 // 100]
