"""Other brokers' indexes as witnesses: one that stands behind the journal's end proves that there was more."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from index.copy import copy
from index.disk import Disk
from index.errors import IndexTrouble
from index.index import Index
from journal.files import JournalFiles
from store.damage import Damage, examine
from store.headers import Chronicle
from store.index_trust import IndexNotOfThisJournal, judge, numbering_of, places_of_indexes
from store.scratch import scratch_directory
from store.state import State

log = logging.getLogger(__name__)


def told_by_neighbours(
    index_root: str,
    files: JournalFiles,
    ids: Sequence[int],
    chronicle: Chronicle,
    starts_whole: Callable[[int], bool],
    place: tuple[int, int],
    disk: Disk = os,
) -> list[Damage]:
    """What an index below ``index_root`` tells of batches behind ``place`` (file, offset), where the journal ends.

    Of each index only the roots are read, unless it stands behind ``place``: then a copy of it is opened, to say which
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
                    standing = judge(files, ids, chronicle, state, starts_whole)
                    if standing is not None:
                        log.warning("index %s tells of more than the journal has", path)
                        return [examine(files, state, damage) for damage in standing.damages]
        except (IndexTrouble, IndexNotOfThisJournal) as reason:
            log.info("index %s is no witness: %s", path, reason)
    return []
