"""Evidence in the indexes of other brokers (neighbours): if the position of such an index is after the end of the
journal, the journal was longer.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tandemmq.disk import Disk
from tandemmq.index.copy import copy
from tandemmq.index.errors import IndexTrouble
from tandemmq.index.index import Index
from tandemmq.journal.files import JournalFiles
from tandemmq.store.damage.report import Damage, examine
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.recovery.index_trust import IndexNotOfThisJournal, judge, numbering_of, places_of_indexes
from tandemmq.store.state.state import State

log = logging.getLogger(__name__)


def scratch_directory(disk: Any, prefix: str) -> AbstractContextManager[str]:
    """Make a temporary directory, and remove it with its contents on exit. A simulated disk can provide its own
    ``scratch_directory``."""
    if disk is os:
        return tempfile.TemporaryDirectory(prefix=prefix)
    make: Callable[[str], AbstractContextManager[str]] | None = getattr(disk, "scratch_directory", None)
    return tempfile.TemporaryDirectory(prefix=prefix) if make is None else make(prefix)


def known_to_neighbours(
    index_root: str,
    files: JournalFiles,
    ids: Sequence[int],
    epoch_history: EpochHistory,
    starts_whole: Callable[[int], bool],
    place: tuple[int, int],
    disk: Disk = os,
) -> list[Damage]:
    """Return the parts of the journal after ``place`` (file, offset), its end, that are lost according to an index in
    ``index_root``.

    Only the roots of each index are read. If the position of an index is after ``place``, a copy of it is opened
    to find the messages in the lost part. An index that cannot be read, or belongs to another journal, is ignored.
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
                    loss = judge(files, ids, epoch_history, state, starts_whole)
                    if loss is not None:
                        log.warning("index %s shows that the journal has lost records", path)
                        return [examine(files, state, damage) for damage in loss.damages]
        except (IndexTrouble, IndexNotOfThisJournal) as reason:
            log.info("index %s is ignored: %s", path, reason)
    return []
