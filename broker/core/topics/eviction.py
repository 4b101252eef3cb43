"""Choice of the message that a slow topic consumer loses, if it is not simply the oldest: ActiveMQ's
messageEvictionStrategy. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final

from tandemmq.broker.core.delivery import Entry

#: Maximum number of waiting messages that are examined, the oldest first.
LOOKED_AT_MAX: Final = 1_000


class EvictionKind(Enum):
    """Message to evict: the oldest of the lowest priority; or the oldest that a younger one with the same property
    replaces."""

    LOWEST_PRIORITY = "oldest_message_with_lowest_priority"
    UNIQUE_PROPERTY = "unique_property"


@dataclass(frozen=True, slots=True)
class Eviction:
    """``property_name`` is for UNIQUE_PROPERTY."""

    kind: EvictionKind
    property_name: str = ""

    def choose(self, pending: Sequence[Entry]) -> int:
        """Return the place of the message that is lost: never that of the newest."""
        older = [entry.message for entry in islice(pending, min(LOOKED_AT_MAX, len(pending) - 1))]
        if self.kind is EvictionKind.LOWEST_PRIORITY:
            return min(range(len(older)), key=lambda place: older[place].priority)
        values = [(message.properties or {}).get(self.property_name) for message in (*older, pending[-1].message)]
        last = {value: place for place, value in enumerate(values)}
        replaced = (place for place, value in enumerate(values) if value is not None and last[value] != place)
        return next(replaced, 0)
