"""New start of a store whose journal is lost: sets aside the indexes that expect the journal. Deletes nothing.

While an index expects a journal, a broker refuses to start without the journal (store.recovery.index_trust): the volume
may not be mounted. Only the operator knows that the journal is lost for ever.
"""

from __future__ import annotations

import os
import time

from tandemmq.disk import sync_directory
from tandemmq.index.errors import IndexInUse
from tandemmq.journal.files import JournalFiles
from tandemmq.store.kahadb.minimal import has_foreign_index, set_index_aside
from tandemmq.store.recovery.index_directory import set_aside
from tandemmq.store.recovery.index_trust import is_blank, places_of_indexes


class JournalThere(Exception):
    """The directory has a journal. Nothing was changed."""


def begin_afresh(directory: str, index_root: str) -> list[str]:
    """Set aside each index below ``index_root`` that expects a journal, and ActiveMQ's index; return their new paths.

    Durable on return. The caller must hold the lock of the store. Raises JournalThere if a journal file in
    ``directory`` is not empty, IndexInUse if a broker has an index open, and the OSError of the volume.
    """
    files = JournalFiles(directory)
    for file in files.list():
        if not is_blank(files, file):  # prove: afresh-only-without-a-journal
            raise JournalThere(f"{directory} holds a journal: db-{file}.log has records. Nothing was changed")
    moved = []
    for path, _ in [*places_of_indexes(index_root)]:
        aside = set_aside(path, "its journal is lost, and the store starts anew")
        if aside is None:
            raise IndexInUse(f"another process has the index in {path} open")
        moved.append(aside)
    if moved:
        sync_directory(os, index_root)
    for place in dict.fromkeys((directory, index_root)):
        if has_foreign_index(place):
            moved += set_index_aside(place, time.time_ns())
    return moved
