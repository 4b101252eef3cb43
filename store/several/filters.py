"""Choose the store of a destination among several, and name the directory of a store (mKahaDB). Pure.

A filter is one of ActiveMQ's wildcard patterns for queues or for topics: words are split by ``.``, ``*`` stands for
one word, and ``>`` at the end for any number of words that follow. If several filters match, the more specific one
wins, whatever the order of the entries: word by word from the left a word is more specific than ``*``, and ``*`` than
``>``.

Directories are named as ActiveMQ names them, so that a directory of several stores can be moved here and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.settings import StoreSettings

# ActiveMQ keeps the end of a longer name (IOHelper.MaximumFileNameLength): two names may become one.
DIRECTORY_NAME_MAX = 64
# ActiveMQ's names of the store of an entry without a filter ("!0", encoded), and of the store of outcomes.
MATCH_ALL_DIRECTORY = "#210"
OUTCOMES_DIRECTORY = "txStore"

_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.#")


class StoresClash(Exception):
    """Raised if several stores cannot be distinguished, or contradict each other; the operator must repair this."""


class FiltersClash(StoresClash):
    """Raised if the filtered stores cannot be distinguished; the text names the entries."""


@dataclass(frozen=True, slots=True)
class FilteredStore:
    """Entry of ``[[store.filtered_persistence_adapters]]``: destinations that get a store of their own.

    At most one of ``queue`` and ``topic`` is set, a pattern; with neither the entry matches all that no other entry
    matches. With ``is_per_destination`` it makes a store for each destination. ``settings`` are for its store or
    stores.
    """

    queue: str | None = None
    topic: str | None = None
    is_per_destination: bool = False
    settings: StoreSettings = field(default_factory=StoreSettings)

    @property
    def matches_all(self) -> bool:
        return self.queue is None and self.topic is None

    @property
    def directory(self) -> str:
        """Directory name of its store. Of an entry for each destination: the store of destinations without their
        own."""
        if self.queue is not None:
            return directory_name(f"queue://{self.queue}")
        if self.topic is not None:
            return directory_name(f"topic://{self.topic}")
        return MATCH_ALL_DIRECTORY

    def __str__(self) -> str:
        if self.queue is not None:
            return f"queue {self.queue}"
        if self.topic is not None:
            return f"topic {self.topic}"
        return "the entry that matches all"


def directory_name(qualified_name: str) -> str:
    """Return ActiveMQ's file name for ``queue://NAME`` or ``topic://NAME``: its last 64 characters."""
    units = qualified_name.encode("utf-16-be", "surrogatepass")
    encoded = []
    for n in range(0, len(units), 2):
        unit = units[n] << 8 | units[n + 1]
        character = chr(unit)
        encoded.append(character if character in _SAFE else f"#{unit:x}")
    return "".join(encoded)[-DIRECTORY_NAME_MAX:]


def matches(pattern: str, name: str) -> bool:
    """Return whether a destination's name matches a pattern, as in ActiveMQ's DestinationFilter."""
    wanted = pattern.split(".")
    words = name.split(".")
    if wanted[-1] == ">":
        del wanted[-1]
        if len(words) < len(wanted):
            return False
    elif len(words) != len(wanted):
        return False
    return all(each in ("*", word) and each != ">" for each, word in zip(wanted, words, strict=False))


class Filters:
    """The entries, in order of specificity. Raises FiltersClash when two of them have the same directory."""

    def __init__(self, entries: Iterable[FilteredStore]) -> None:
        self.entries: Sequence[FilteredStore] = tuple(sorted(entries, key=_specificity))
        _check(self.entries)
        self.match_all = next((entry for entry in self.entries if entry.matches_all), None)

    def choose(self, destination: Destination) -> FilteredStore | None:
        """Return the most specific entry that matches, or None."""
        for entry in self.entries:
            pattern = entry.topic if destination.kind is DestinationKind.TOPIC else entry.queue
            if pattern is not None and matches(pattern, destination.name):
                return entry
        return self.match_all

    def directories(self) -> dict[str, FilteredStore]:
        """Return the entries of the stores that exist from the start, by directory name."""
        return {entry.directory: entry for entry in self.entries}


def _specificity(entry: FilteredStore) -> tuple[tuple[int, ...], str]:
    pattern = entry.queue if entry.queue is not None else entry.topic
    if pattern is None:
        return (3,), ""
    # 2 at the end: a longer pattern is more specific than its beginning, except for ">"
    return (*({"*": 1, ">": 3}.get(word, 0) for word in pattern.split(".")), 2), pattern


def _check(entries: Sequence[FilteredStore]) -> None:
    seen: dict[str, FilteredStore] = {}
    for entry in entries:
        if entry.queue is not None and entry.topic is not None:
            raise FiltersClash(f"one entry has queue {entry.queue} and topic {entry.topic}: make it two")
        if entry.is_per_destination and not entry.matches_all:
            raise FiltersClash(f"{entry}: a store for each destination is for the entry that matches all")
        name = entry.directory
        if name in seen:
            raise FiltersClash(
                f"{seen[name]} and {entry} would have one directory, {name}: "
                f"a name keeps its last {DIRECTORY_NAME_MAX} characters"
            )
        seen[name] = entry
