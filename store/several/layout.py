"""Directories of the stores of one broker.

    DIRECTORY/lock                          one lock for all stores
    DIRECTORY/queue#3a#2f#2fORDERS.#3e/     a store: journal, and index/<broker>/
    DIRECTORY/#210/                         the store of destinations that no filter matches
    DIRECTORY/txStore/                      the store of outcomes, for transactions in several stores
    DIRECTORY/db-N.log                      the single store of an earlier configuration; now it is one of the stores

A store that has a journal is always opened, also if no filter names it, and its messages are delivered from there
(``stores``). So filters can be changed without a loss of messages. A store that has an index but no journal is opened
too, and fails to start, because its journal is lost (``recovery.index_trust``).
"""

from __future__ import annotations

import os
import zlib
from dataclasses import KW_ONLY, dataclass, field, replace

from tandemmq.disk import Disk, exists
from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.modes import NEW_FILE
from tandemmq.store.recovery.index_trust import numbering_of, places_of_indexes
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import (
    DIRECTORY_NAME_MAX,
    MATCH_ALL_DIRECTORY,
    OUTCOMES_DIRECTORY,
    Filters,
    StoresClash,
)
from tandemmq.store.standby import Standby
from tandemmq.store.threads import OS_THREADS, Threads

# Name of the store in the directory itself.
ROOT = "."
LISTING_PREFIX = ".listing-"

# An owner's id contains its store: number of the store << OWNER_BITS | number of the owner in the store. An id has 32
# bits in the index.
OWNER_BITS = 22
STORES_MAX = (1 << 32 - OWNER_BITS) - 1


class TooManyStores(StoresClash):
    """The directory has more stores than owner ids can distinguish."""


@dataclass(eq=False, repr=False)
class Layout:
    """Directory of several stores, for one broker. ``_index_directory``: directory of the indexes; None: each index is
    in the directory of its journal."""

    directory: str
    _index_directory: str | None
    broker: str
    _settings: StoreSettings
    filters: Filters
    _: KW_ONLY
    disk: Disk = os
    threads: Threads = OS_THREADS
    _numbers: dict[str, int] = field(default_factory=dict, init=False)

    # ---- all stores

    @property
    def rest(self) -> str:
        """Name of the store of the destinations that no filter matches."""
        return MATCH_ALL_DIRECTORY if self.filters.entries else ROOT

    def wanted(self) -> set[str]:
        """Return the names of the stores that must exist from the start according to the settings."""
        return {self.rest, *self.filters.directories()}

    def found(self) -> set[str]:
        """Return the names of the stores that have a journal, or had one according to an index, without txStore."""
        there = {*stores_in(self.directory, self.disk)}
        missing = {
            name for name in self._named() - there if self._had_journal(name)
        }  # prove: store-without-its-journal
        return (there | missing) - {OUTCOMES_DIRECTORY}

    def _named(self) -> set[str]:
        names = {*self.disk.listdir(self.directory)}
        if self._index_directory is not None and exists(self.disk, self._index_directory):
            names.update(self.disk.listdir(self._index_directory))
        return {ROOT, *filter(is_store_name, names)}

    def _had_journal(self, name: str) -> bool:
        return any(True for _ in places_of_indexes(self._index_root(name), self.disk))

    def _index_root(self, name: str) -> str:
        if self._index_directory is not None:
            return path_of(self._index_directory, name)
        return os.path.join(self.path(name), "index")

    @property
    def has_outcomes(self) -> bool:
        """True if there is a store of outcomes, or was one according to an index."""
        return holds_journal(self.path(OUTCOMES_DIRECTORY), self.disk) or self._had_journal(OUTCOMES_DIRECTORY)

    def path(self, name: str) -> str:
        return path_of(self.directory, name)

    def make(self, name: str) -> None:
        """Make the directory of a store; durable on return. Only a master may call this."""
        self.disk.makedirs(self.path(name), exist_ok=True)
        JournalFiles(self.directory, self.disk).sync_directory()

    def refresh(self) -> None:
        """Make and remove a file, so that the next listing is up to date: on NFS, a host reads its cache unless it has
        changed the directory."""
        path = os.path.join(self.directory, LISTING_PREFIX + self.broker)
        try:
            self.disk.close(self.disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE))
        except FileExistsError:
            pass  # left by a crash, or made by another process; it is only removed
        self.disk.unlink(path)

    # ---- one store

    def settings(self, name: str) -> StoreSettings:
        """Return the settings of one store. The strategy for prepared transactions is "never", because their outcome is
        decided for all stores together."""
        entry = self.filters.directories().get(name)
        if entry is None and name not in (ROOT, OUTCOMES_DIRECTORY):
            entry = self.filters.match_all
        settings = self._settings if entry is None else entry.settings
        archive = settings.directory_archive
        if archive is not None and name != ROOT:
            archive = os.path.join(archive, name)  # each journal has a db-1.log
        settings = replace(settings, directory_archive=archive, purge_recovered_xa_transaction_strategy="never")
        if name == OUTCOMES_DIRECTORY:
            settings = replace(settings, journal_disk_sync_strategy="always")
        return settings

    def open(self, name: str) -> Standby:
        """Open a store as a standby. The store gets the number in its index if this number is free: only then
        the index is valid."""

        def number_owners(meta: bytes) -> int:
            return self._number(name, numbering_of(meta) >> OWNER_BITS) << OWNER_BITS

        return Standby(
            self.path(name),
            self._index_root(name),
            self.broker,
            self.settings(name),
            disk=self.disk,
            threads=self.threads,
            number_owners=number_owners,
        )

    def number(self, name: str) -> int:
        """Return the number of a store in its owners' ids. A store without a number gets a new one. Raises
        TooManyStores."""
        return self._number(name, 0)

    def _number(self, name: str, preferred: int) -> int:
        number = self._numbers.get(name)
        if number is not None:
            return number
        if name == ROOT:
            number = 0  # the same as for a single store
        else:
            # Without an index, the number is derived from the name, so it rarely equals the number in an index that is
            # opened later.
            first = preferred or zlib.crc32(name.encode()) % STORES_MAX + 1
            taken = set(self._numbers.values())
            free = (n for n in (*range(first, STORES_MAX + 1), *range(1, first)) if n not in taken)
            number = next(free, 0)
            if not number:
                raise TooManyStores(f"{self.directory} has more than {STORES_MAX} stores")
        self._numbers[name] = number
        return number

    @property
    def has_space(self) -> bool:
        """True if another store is possible."""
        return len(self._numbers) < STORES_MAX


def path_of(directory: str, name: str) -> str:
    """Return the path of a store in ``directory``."""
    return directory if name == ROOT else os.path.join(directory, name)


def stores_in(directory: str, disk: Disk = os) -> list[str]:
    """Return the names of all stores in ``directory`` that have a journal, txStore included, sorted. ROOT is the store
    in the directory itself. Raises FileNotFoundError if the directory does not exist."""
    names = disk.listdir(directory)
    found = [ROOT] if any(file_id(name) is not None for name in names) else []
    below = (name for name in sorted(names) if is_store_name(name))
    return [*found, *(name for name in below if holds_journal(os.path.join(directory, name), disk))]


def has_several(directory: str) -> bool:
    """Return whether ``directory`` has stores in subdirectories. Then it must be opened as several stores, with any
    settings."""
    try:
        return any(name != ROOT for name in stores_in(directory))
    except FileNotFoundError:
        return False


def is_store_name(name: str) -> bool:
    """Return whether a directory with this name may be a store. An archive, for example, has journal files but is no
    store."""
    return name in (MATCH_ALL_DIRECTORY, OUTCOMES_DIRECTORY) or (
        name.startswith(("queue#", "topic#")) or len(name) == DIRECTORY_NAME_MAX
    )


def holds_journal(path: str, disk: Disk = os) -> bool:
    try:
        return any(file_id(name) is not None for name in disk.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
