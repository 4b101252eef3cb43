"""End of a journal, and the point where two journals part. Pure; knows no files.

The number of an epoch identifies it: two journals that both have an epoch have bytes of the same master in it, so
within that epoch one of them is a prefix of the other.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple


class Position(NamedTuple):
    """End of a journal; compared as in Raft (last term, last index)."""

    epoch: int  # of the last valid header
    file: int
    end: int  # of the last good batch


# End of each epoch: (epoch, file, end), ascending. The last entry is the newest epoch with its present end.
Lineage = tuple[tuple[int, int, int], ...]

BEFORE_ALL = Position(0, 0, 0)


def common_point(mine: Lineage, theirs: Lineage) -> tuple[int, int] | None:
    """Return (file, end) up to which both are the same: in the newest epoch that both have, the smaller end (KIP-101).

    None if they have no epoch in common. The caller ensures that both lineages belong to the same set; otherwise epoch
    0 of one would be taken for epoch 0 of the other.
    """
    ends = {epoch: (file, end) for epoch, file, end in theirs}
    for epoch, file, end in reversed(mine):  # prove: newest-common-epoch "reversed(mine)" -> "mine"
        if epoch in ends:
            return min((file, end), ends[epoch])  # prove: smaller-end-is-common "min" -> "max"
    return None


def is_lineage(entries: Lineage) -> bool:
    """Return whether epochs and files ascend: each epoch begins in its own file, which has its number."""
    return all(entry[0] < after[0] and entry[1] < after[1] for entry, after in pairwise(entries))
