"""Begin a store afresh whose journal is gone: set aside the indexes that expect that journal. Nothing is deleted.

While an index exists that expects a journal, a broker refuses to start without it (store.recovery.index_trust): a
volume that is not mounted looks like an empty store. Only an operator knows that the journal is gone forever.
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
    """Raised if there is a journal: nothing was changed."""


def begin_afresh(directory: str, index_root: str) -> list[str]:
    """Set aside each index below ``index_root`` that expects a journal, and ActiveMQ's; return their new paths. Durable
    on return. The caller holds the lock of the store.

    Raises JournalThere when a file in ``directory`` has anything in it, IndexInUse when a broker has an index open,
    and the OSError of the volume.
    """
    files = JournalFiles(directory)
    for file in files.list():
        if not is_blank(files, file):  # prove: afresh-only-without-a-journal
            raise JournalThere(f"{directory} holds a journal: db-{file}.log has records. Nothing was changed")
    moved = []
    for path, _ in [*places_of_indexes(index_root)]:
        aside = set_aside(path, "its journal is gone, and the store begins afresh")
        if aside is None:
            raise IndexInUse(f"the index in {path} is open elsewhere")
        moved.append(aside)
    if moved:
        sync_directory(os, index_root)
    for place in dict.fromkeys((directory, index_root)):
        if has_foreign_index(place):
            moved += set_index_aside(place, time.time_ns())
    return moved
