"""Follower for checks: it copies nothing into quarantine, repairs nothing, and logs no damage."""

from __future__ import annotations

from functools import partial
from typing import Final

from tandemmq.store.recovery.follow import Follower

# Number of operations in memory after which a replay writes them to its temporary index.
RECORDS_PER_CHECKPOINT: Final = 100_000

Trial = partial(Follower, records_per_checkpoint=RECORDS_PER_CHECKPOINT, is_trial=True)
