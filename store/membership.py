"""Check that a directory does not belong to a replicated set: only a member of the set may write into it.

If another process appended to the journal, it would have a history that the other nodes do not have. So a broker
without [replication], and each command that writes to a stopped store, calls this module first.
"""

from __future__ import annotations

import os
from typing import Final

#: The promise file of a member (docs/formats/replication.md).
PROMISE_FILE: Final = "replication.promise"


class BelongsToSet(Exception):
    """The directory belongs to a member of a set. The message names the command that ends the membership."""


def demand_no_set(directory: str) -> None:
    """Raise BelongsToSet if ``directory`` belongs to a set."""
    if os.path.lexists(os.path.join(directory, PROMISE_FILE)):  # prove: directory-of-a-set-is-refused
        raise BelongsToSet(
            f"{directory} belongs to a replicated set, and only a broker with [replication] may write there. To end "
            f"its membership: tandemmq replication leave {directory}"
        )
