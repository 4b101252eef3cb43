"""A follower for checks: it copies nothing into quarantine, repairs nothing, and logs nothing."""

from __future__ import annotations

from functools import partial
from typing import Final

from tandemmq.store.recovery.follow import Follower

# Operations that a replay holds in memory before it writes them to its index, which is temporary.
RECORDS_PER_CHECKPOINT: Final = 100_000

Trial = partial(Follower, records_per_checkpoint=RECORDS_PER_CHECKPOINT, is_trial=True)
