"""Reader of a data directory of ActiveMQ or TandemMQ, which writes nothing there. For the source of a transfer, and for
the proof of its target.

The journal is replayed into an index in a scratch directory, which the caller removes. So memory is bounded for any
number of messages. If ActiveMQ has left an index, the journal may lack facts that are in that index. A TandemMQ broker
would take the directory over, and write the missing records in its own epoch. The reader does the same in a *view*: a
directory with symbolic links to the journal files of the source, and real files for the new epoch.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from tandemmq.index.index import Index
from tandemmq.journal.errors import JournalCorrupt
from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.store.kahadb.minimal import has_foreign_index, is_minimal
from tandemmq.store.kahadb.page_file import DATA, FREE, REDO
from tandemmq.store.migration.contents import Contents
from tandemmq.store.migration.offline_epoch import OfflineEpoch
from tandemmq.store.recovery.index_trust import is_blank
from tandemmq.store.recovery.rebuild import Trial
from tandemmq.store.state.tail import Position
from tandemmq.store.tools.inspect import read_headers

# (name of a phase, its total bytes) -> a context with a function that is called with the number of bytes done
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
OnRead = Callable[[Position], None]


def unseen(what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Show no progress. This is the default Progress."""
    return nullcontext(lambda done: None)


def files_to_read(directory: str) -> JournalFiles:
    """Return the journal files of a directory, which can only be read."""
    return JournalFiles(directory, _ReadingDisk())


def read_contents(
    directory: str,
    scratch: str,
    *,
    is_final: bool = True,
    steps_over_damage: bool = False,
    progress: Progress = unseen,
) -> Contents:
    """Replay the journal in ``directory`` into a new index in ``scratch``, and return the contents, which the caller
    closes.

    ``is_final`` must be False if a broker uses the directory: records that may still be undone are then omitted. Raises
    JournalCorrupt, JournalLost or RecordDamaged for damage, unless ``steps_over_damage`` is set, which skips it. Raises
    OSError if the volume fails.
    """
    files = files_to_read(directory)
    sizes = {file: files.size(file) for file in files.list()}
    with progress("reading", sum(sizes.values())) as advance:

        def on_read(position: Position) -> None:
            advance(sum(size for file, size in sizes.items() if file < position.file) + position.offset)

        if is_final and _is_foreign(files):
            try:
                return _view(files, scratch, on_read)
            except JournalCorrupt:
                if not steps_over_damage:
                    raise  # otherwise only the journal is read below, which reports the damage
        return _read(files, os.path.join(scratch, "alone"), is_final, steps_over_damage, on_read)


def _read(files: JournalFiles, scratch: str, is_final: bool, steps_over_damage: bool, on_read: OnRead) -> Contents:
    index = Index.open(scratch)
    try:
        follower = Trial(
            files,
            index,
            ignores_missing=steps_over_damage,
            has_foreign_index=lambda: has_foreign_index(files.directory),
            on_read=on_read,
        )
        follower.advance(is_final=is_final)
        follower.checkpoint()  # so that messages can be found by id
    except BaseException:
        index.close()
        raise
    return Contents(follower, index, follower.damages)


def _is_foreign(files: JournalFiles) -> bool:
    """Return whether ActiveMQ wrote to this directory last, according to its index and the headers of the files."""
    if has_foreign_index(files.directory):
        return True
    if is_minimal(files.directory):
        return False
    epoch_history = read_headers(files)
    # A blank file does not count: it is the fence of a failed promotion of TandemMQ.
    return any(
        file not in epoch_history.headers and epoch_history.ends.get(file) != 0 and not is_blank(files, file)
        for file in files.list()
    )


def _view(files: JournalFiles, scratch: str, on_read: OnRead) -> Contents:
    view = os.path.join(scratch, "view")
    os.makedirs(view)
    source = os.path.abspath(files.directory)
    for name in os.listdir(source):
        if file_id(name) is not None or name in (DATA, REDO, FREE):
            os.symlink(os.path.join(source, name), os.path.join(view, name))
    epoch = OfflineEpoch(view, os.path.join(scratch, "epoch"), name="view", disk=_ViewDisk(), on_read=on_read)
    return epoch.into_contents()


class _ReadingDisk:
    """Disk for reading only: calls that write raise OSError, and syncs do nothing."""

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        assert not flags & (os.O_CREAT | os.O_TRUNC), f"{path} is only read"
        return os.open(path, flags & ~os.O_ACCMODE | os.O_RDONLY, mode)

    def fsync(self, fd: int, /) -> None:
        pass

    fdatasync = fsync

    def _refuse(self, *arguments: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    pwrite = link = unlink = _refuse


class _ViewDisk:
    """Disk for a view: its own files can be written, the targets of its symbolic links can only be read."""

    def __getattr__(self, verb: str) -> Any:
        return getattr(os, verb)

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        if os.path.islink(path):
            path, flags = os.readlink(path), flags & ~os.O_ACCMODE | os.O_RDONLY
        return os.open(path, flags, mode)
