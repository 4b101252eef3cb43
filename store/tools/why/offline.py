"""State of a data directory, read without a change: neither the journal nor an index is written or locked.

The newest index that belongs to this journal is copied into a temporary directory; without one, an empty index is used.
The journal is read from the position of the index on, as a standby does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tandemmq.index.copy import copy
from tandemmq.index.errors import IndexTrouble
from tandemmq.index.index import DATA_NAME, Index
from tandemmq.journal.files import JournalFiles
from tandemmq.store.recovery.follow import Follower
from tandemmq.store.recovery.index_directory import named_indexes
from tandemmq.store.recovery.index_trust import IndexNotOfThisJournal, numbering_of
from tandemmq.store.recovery.rebuild import RECORDS_PER_CHECKPOINT, Trial


@contextmanager
def read_state(directory: str, index_root: str | None = None, *, is_live: bool) -> Iterator[Follower]:
    """Yield a follower that has read the journal to its end; its state may be read within the block.

    ``is_live``: a master writes to the journal. Then its last batch is not read, because a successor may end the file
    before it. Damage is skipped and is in the follower's ``damages``; in a live journal, reading ends at damage
    (``has_caught_up`` is False). Raises the OSError of the volume.
    """
    files = JournalFiles(directory)
    with tempfile.TemporaryDirectory(prefix="tandemmq-why-") as scratch:
        follower = _read(files, index_root or os.path.join(directory, "index"), scratch, is_final=not is_live)
        try:
            yield follower
        finally:
            follower.index.close()


def _read(files: JournalFiles, index_root: str, scratch: str, *, is_final: bool) -> Follower:
    for number, path in enumerate(indexes_in(index_root)):
        target = os.path.join(scratch, str(number))
        try:
            if copy(path, target):
                return _advanced(files, Index.open(target), is_final)
        except (IndexNotOfThisJournal, IndexTrouble):
            continue  # the journal alone is enough
    return _advanced(files, Index.open(os.path.join(scratch, "empty")), is_final)


def _advanced(files: JournalFiles, index: Index, is_final: bool) -> Follower:
    try:
        follower = Trial(files, index, ignores_missing=True, first_owner=numbering_of(index.meta))
        follower.advance(is_final=is_final)
        while follower.state.ended:  # their entries may count dead bytes as live
            follower.state.reclaim(RECORDS_PER_CHECKPOINT)
            follower.checkpoint()
    except BaseException:
        index.close()
        raise
    return follower


def indexes_in(root: str) -> list[str]:
    """Return the directories of the indexes that may be used, the newest first."""
    found: list[tuple[float, str]] = []
    for path in named_indexes(root):
        try:
            found.append((os.stat(os.path.join(path, DATA_NAME)).st_mtime, path))
        except OSError:
            continue
    return [path for _, path in sorted(found, reverse=True)]
