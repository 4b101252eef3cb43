"""A directory that belongs to a replicated set: only a member of the set may write into it.

Whoever else appends to its journal makes a history that the other nodes do not have, and calls it the same. So a broker
without [replication], and each command that writes to a stopped store, asks here first.
"""

from __future__ import annotations

import os
from typing import Final

#: The promise file of a member (docs/formats/replication.md).
PROMISE_FILE: Final = "replication.promise"


class BelongsToSet(Exception):
    """This directory is a member's of a set; what may be done is in the message."""


def demand_no_set(directory: str) -> None:
    """Raises BelongsToSet. Reads one name."""
    if os.path.lexists(os.path.join(directory, PROMISE_FILE)):  # prove: directory-of-a-set-is-refused
        raise BelongsToSet(
            f"{directory} belongs to a replicated set, and only a broker with [replication] may write there. To end "
            f"its membership: tandemmq replication leave {directory}"
        )
