"""Differences between the settings of a running broker and those of a new read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tandemmq.config.settings import Settings

_OF_BROKER: Final = frozenset(("queue_prefetch", "topic_prefetch", "durable_topic_prefetch"))
_OF_DESTINATION: Final = _OF_BROKER | {"queue_browser_prefetch"}
#: Table that a broker takes over as a whole.
_LOGGING: Final = "logging"


class _Change(NamedTuple):
    """A key whose values differ. ``name``: its last part, for a key in a table of its own."""

    key: str
    name: str
    before: Any
    after: Any


def changed_for_the_next_start(running: Settings, read: Settings) -> list[str]:
    """Return the keys whose values differ and that a running broker cannot take over: all but prefetches and [logging].
    Entries of [[destinations]] are compared by their pattern, in any order."""
    return [change.key for change in _changes(running, read) if not _holds_at_once(change)]


def changed_at_once(former: Settings, read: Settings) -> list[str]:
    """Return the changes that a running broker takes over, a sentence each with both values; none of them is secret."""
    return [
        f"{change.key} is {change.after!r} now, and was {change.before!r}"
        for change in _changes(former, read)
        if _holds_at_once(change)
    ]


def _holds_at_once(change: _Change) -> bool:
    table = change.key.partition(".")[0]
    if change.key.startswith("destinations["):
        return change.name in _OF_DESTINATION
    return table == _LOGGING or (table == "broker" and change.name in _OF_BROKER)


def _changes(former: Settings, read: Settings) -> Iterator[_Change]:
    before, after = former.model_dump(), read.model_dump()
    entries = [{each.subject: each.model_dump() for each in settings.destinations} for settings in (former, read)]
    for table in (before, after):
        del table["destinations"]
    yield from _changed("", "", before, after)
    for subject in sorted(entries[0].keys() | entries[1].keys()):
        name = f"destinations[{subject[0]} {subject[1]}]"
        was, now = (each.get(subject) for each in entries)
        if was is None or now is None:
            yield _Change(name, "", was, now)
        else:
            yield from _changed(name, "", was, now)


def _changed(key: str, last: str, before: Any, after: Any) -> Iterator[_Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            yield from _changed(f"{key}.{name}" if key else name, name, before.get(name), after.get(name))
    elif before != after:
        yield _Change(key, last, before, after)
