"""Choice of the store of a destination, and names of the stores' directories (mKahaDB). Pure.

A filter is one of ActiveMQ's wildcard patterns for queues or topics: words are separated by ``.``, ``*`` stands for one
word, ``>`` at the end for any number of further words. If several filters match, the most specific one applies; the
order of the entries does not matter. Patterns are compared word by word from the left: a word is more specific than
``*``, and ``*`` is more specific than ``>``.

Directories have the same names as in ActiveMQ, so both products can open a directory of several stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.settings import StoreSettings

# ActiveMQ keeps only the end of a longer name (IOHelper.MaximumFileNameLength). So two names can become equal.
DIRECTORY_NAME_MAX = 64
# ActiveMQ's names of the store for an entry without a filter ("!0", encoded), and of the store of outcomes.
MATCH_ALL_DIRECTORY = "#210"
OUTCOMES_DIRECTORY = "txStore"

_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.#")


class StoresClash(Exception):
    """Several stores cannot be distinguished, or contradict each other. The operator must correct this."""


class FiltersClash(StoresClash):
    """Two entries would have the same directory, or an entry is invalid. The text names the entries."""


@dataclass(frozen=True, slots=True)
class FilteredStore:
    """Entry of ``[[store.filtered_persistence_adapters]]``: destinations that have their own store.

    At most one of ``queue`` and ``topic`` is set; both are patterns. An entry without a pattern matches all
    destinations that no other entry matches. ``is_per_destination``: each destination has its own store. ``settings``
    apply to the store or stores of the entry.
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
        """Name of the directory of its store. With ``is_per_destination``: of the store for destinations that have no
        separate store."""
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
    """Return ActiveMQ's directory name for ``queue://NAME`` or ``topic://NAME``, at most 64 characters."""
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
    """Entries, the most specific first. Raises FiltersClash if two of them have the same directory, or one is
    invalid."""

    def __init__(self, entries: Iterable[FilteredStore]) -> None:
        self.entries: Sequence[FilteredStore] = tuple(sorted(entries, key=_specificity))
        _check(self.entries)
        self.match_all = next((entry for entry in self.entries if entry.matches_all), None)

    def choose(self, destination: Destination) -> FilteredStore | None:
        """Return the most specific entry that matches the destination, or None."""
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
    # The final 2 makes a longer pattern more specific than its beginning, unless it continues with ">".
    return (*({"*": 1, ">": 3}.get(word, 0) for word in pattern.split(".")), 2), pattern


def _check(entries: Sequence[FilteredStore]) -> None:
    seen: dict[str, FilteredStore] = {}
    for entry in entries:
        if entry.queue is not None and entry.topic is not None:
            raise FiltersClash(f"one entry has queue {entry.queue} and topic {entry.topic}: use two entries")
        if entry.is_per_destination and not entry.matches_all:
            raise FiltersClash(f"{entry}: per_destination is only for the entry without queue and topic")
        name = entry.directory
        if name in seen:
            raise FiltersClash(
                f"{seen[name]} and {entry} would have one directory, {name}: "
                f"a name keeps its last {DIRECTORY_NAME_MAX} characters"
            )
        seen[name] = entry
