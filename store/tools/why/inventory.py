"""Inventory of a data directory: the purpose of each file and directory, so that every byte is explained. Reads
only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tandemmq.journal.files import NEXT_PREFIX, file_id
from tandemmq.store.several.layout import LISTING_PREFIX

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Thing:
    """A file, or a directory with its contents. ``kind``: a word for programs. ``says``: the purpose in words.

    ``bytes`` is the length, not the allocated space. ``files`` is the number of files.
    """

    name: str
    kind: str
    bytes: int
    files: int
    says: str


# (pattern, kind, purpose) of names beside the journal files. The first pattern that matches the whole name applies.
_FILES: Final[tuple[tuple[str, str, str], ...]] = (
    (r"lock", "lock", "the lock file, with the name of the holder"),
    (r"known-logins(\.new)?", "logins", "users and the addresses of their logins, as digests; it may be removed"),
    (r"replication\.promise", "promise", "the place of this store in its set, and the master it must follow; keep it"),
    (re.escape(NEXT_PREFIX) + r".+", "next", "the next journal file of that broker, made in advance"),
    (
        re.escape(LISTING_PREFIX) + r".+",
        "listing",
        "left by a failed promotion; the next promotion of that broker removes it",
    ),
    (r"db\.(data|redo|free)", "activemq", "ActiveMQ's index; ActiveMQ rebuilds it from the journal at its next start"),
    (r"(db\.(data|redo|free)|scheduleDB\..+)[.-].+", "aside", "set aside when the directory was taken over; not read"),
    (r"tx-.+\.tmp", "activemq", "ActiveMQ's spilled index pages, left by a crash; not read"),
    (r"db-log\.template", "activemq", "ActiveMQ's template for new journal files; not read"),
    (r"db-\d+\.log.+", "aside", "a journal file that was set aside; not read"),
    (r"\.nfs.+", "nfs", "deleted, but a process has it open: the NFS client removes it"),
    (r"tandemmq.*\.toml", "settings", "settings"),
)
_DIRECTORIES: Final[tuple[tuple[str, str, str], ...]] = (
    (r"index", "index", "the indexes of the brokers; each is rebuilt from the journal when it is missing"),
    (r"data-archive", "archive", "journal files that are no longer needed, kept because archive_data_logs is set"),
    (r"quarantine.*", "quarantine", "damaged or lost pieces that were set aside; not read"),
    (r"txStore", "transactions", "outcomes of transactions over several stores"),
    (r"scheduler", "activemq", "ActiveMQ's scheduled messages; not read"),
    (r".+[.-]aside.*|.+\.aside-.+", "aside", "set aside; not read"),
    (r"\.doctor-.+", "doctor", "left by a `doctor storage` that was killed; not read, and safe to remove"),
    (r"lost\+found", "volume", "belongs to the file system"),
)

NAMED_CHARACTERS_MAX: Final = 64


def file_named(text: str) -> int | None:
    """Return the number in a name that an operator gave for a journal file: db-87.log, db-87 or 87. None: no such
    name."""
    if len(text) > NAMED_CHARACTERS_MAX:
        return None  # int() raises for thousands of digits
    return next((id for name in (text, f"{text}.log", f"db-{text}.log") if (id := file_id(name)) is not None), None)


def inventory(directory: str, index_root: str | None = None, archive: str | None = None) -> list[Thing]:
    """Return the contents of ``directory``, with all journal files as one thing; then the indexes and the archive, if
    they are in other directories.

    Files that are removed meanwhile are not counted. Raises the OSError of the volume for the directory itself.
    """
    things: list[Thing] = []
    journal_bytes = journal_files = 0
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                things += _directory(entry.path, entry.name)
            elif file_id(entry.name) is not None:
                journal_files += 1
                journal_bytes += _size(entry.path)
            else:
                kind, says = _what(entry.name, _FILES)
                things.append(Thing(entry.name, kind, _size(entry.path), 1, says))
    things.insert(0, Thing("db-*.log", "journal", journal_bytes, journal_files, "the journal: all messages"))
    for path, kind, says in (
        (index_root, "index", "the indexes of the brokers"),
        (archive, "archive", "journal files that are no longer needed, kept because archive_data_logs is set"),
    ):
        if path is not None and os.path.isdir(path) and not _is_within(path, directory):
            things.append(Thing(path, kind, *_tree(path), says))
    return things


def unexplained(things: list[Thing]) -> list[Thing]:
    """Return the things of which the purpose is not known."""
    return [thing for thing in things if thing.kind == UNKNOWN]


def _directory(path: str, name: str) -> Iterator[Thing]:
    kind, says = _what(name, _DIRECTORIES)
    if kind == "index":
        yield from _indexes(path, name)
        return
    if kind == UNKNOWN and _has_journal(path):
        kind, says = "store", f"another store: `tandemmq store why {path}`"
    yield Thing(f"{name}/", kind, *_tree(path), says)


def _indexes(path: str, name: str) -> Iterator[Thing]:
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            is_directory = entry.is_dir(follow_symlinks=False)
            size, files = _tree(entry.path) if is_directory else (_size(entry.path), 1)
            if ".aside-" in entry.name:
                kind, says = "aside", "an index that was set aside: of another journal, damaged or rebuilt; not read"
            elif entry.name.startswith("."):
                kind, says = "index", "an index that is being built"
            elif not is_directory and entry.name.endswith(".events"):
                owner = entry.name.removesuffix(".events")
                kind, says = "events", f"events of {owner}, for `tandemmq failover explain`"
            elif not is_directory and entry.name.endswith((".admin-token", ".admin-token.new")):
                kind, says = "token", "a secret: a process that reads it can send commands to the broker"
            else:
                kind, says = "index", f"the index of {entry.name}"
            yield Thing(f"{name}/{entry.name}{'/' if is_directory else ''}", kind, size, files, says)


def _what(name: str, table: tuple[tuple[str, str, str], ...]) -> tuple[str, str]:
    for pattern, kind, says in table:
        if re.fullmatch(pattern, name):
            return kind, says
    return UNKNOWN, "not a file of a store"


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


def _tree(path: str) -> tuple[int, int]:
    """Return the bytes and the number of files below a directory."""
    size = files = 0
    for folder, _, names in os.walk(path):
        size += sum(_size(os.path.join(folder, name)) for name in names)
        files += len(names)
    return size, files


def _has_journal(path: str) -> bool:
    try:
        return any(file_id(name) is not None for name in os.listdir(path))
    except OSError:
        return False


def _is_within(path: str, directory: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(directory) + os.sep)
