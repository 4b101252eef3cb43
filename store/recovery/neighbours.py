"""Other brokers' indexes as witnesses: a position after the journal's end proves that the journal was longer."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from tandemmq.disk import Disk
from tandemmq.index.copy import copy
from tandemmq.index.errors import IndexTrouble
from tandemmq.index.index import Index
from tandemmq.journal.files import JournalFiles
from tandemmq.store.damage.report import Damage, examine
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.recovery.index_trust import IndexNotOfThisJournal, judge, numbering_of, places_of_indexes
from tandemmq.store.recovery.scratch import scratch_directory
from tandemmq.store.state.state import State

log = logging.getLogger(__name__)


def known_to_neighbours(
    index_root: str,
    files: JournalFiles,
    ids: Sequence[int],
    epoch_history: EpochHistory,
    starts_whole: Callable[[int], bool],
    place: tuple[int, int],
    disk: Disk = os,
) -> list[Damage]:
    """Return the batches after ``place`` (file, offset), the end of the journal, that an index below ``index_root``
    knows.

    Only the roots of each index are read, unless it is after ``place``: then a copy of it is opened, to find which
    messages were there. An index that cannot be read, or is of another journal, is no witness.
    """
    for path, position in places_of_indexes(index_root, disk):
        if (position.file, position.offset) <= place:
            continue
        try:
            with scratch_directory(disk, "tandemmq-witness-") as scratch:
                if not copy(path, scratch, disk):
                    continue
                with Index.open(scratch, disk) as index:
                    state = State(index, index.meta, first_owner=numbering_of(index.meta))
                    standing = judge(files, ids, epoch_history, state, starts_whole)
                    if standing is not None:
                        log.warning("index %s tells of more than the journal has", path)
                        return [examine(files, state, damage) for damage in standing.damages]
        except (IndexTrouble, IndexNotOfThisJournal) as reason:
            log.info("index %s is no witness: %s", path, reason)
    return []
