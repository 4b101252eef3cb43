"""A follower that only looks: it copies nothing into quarantine, repairs nothing, and logs nothing."""

from __future__ import annotations

from functools import partial
from typing import Final

from tandemmq.store.recovery.follow import Follower

# A replay holds this many operations in memory before they go to its index, which is a temporary one.
RECORDS_PER_CHECKPOINT: Final = 100_000

Trial = partial(Follower, records_per_checkpoint=RECORDS_PER_CHECKPOINT, is_trial=True)
