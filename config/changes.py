"""What differs between the settings a broker runs with and those that were read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tandemmq.config.settings import Settings

_OF_BROKER: Final = frozenset(("queue_prefetch", "topic_prefetch", "durable_topic_prefetch"))
_OF_DESTINATION: Final = _OF_BROKER | {"queue_browser_prefetch"}


def changed_for_the_next_start(running: Settings, read: Settings) -> list[str]:
    """The keys whose values differ and cannot be taken over by a broker that runs: all but prefetches. Entries of
    [[destinations]] are compared with those of the same pattern, in whatever order they stand."""
    before, after = running.model_dump(), read.model_dump()
    entries = [{each.subject: each.model_dump() for each in settings.destinations} for settings in (running, read)]
    for table in (before, after):
        table["broker"] = {key: value for key, value in table["broker"].items() if key not in _OF_BROKER}
        del table["destinations"]
    keys = list(_changed("", before, after))
    for subject in sorted(entries[0].keys() | entries[1].keys()):
        name = f"destinations[{subject[0]} {subject[1]}]"
        was, now = (each.get(subject) for each in entries)
        if was is None or now is None:
            keys.append(name)
            continue
        for each in (was, now):
            for key in _OF_DESTINATION:
                del each[key]
        keys += _changed(name, was, now)
    return keys


def _changed(key: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            yield from _changed(f"{key}.{name}" if key else name, before.get(name), after.get(name))
    elif before != after:
        yield key
