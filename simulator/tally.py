"""Numbers of events: faults that took effect, by kind, by step, by phase. Tallies of several seeds can be added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class Tally:
    """Counts by group and name, as ``tandemmq simulate`` reports them."""

    def __init__(self) -> None:
        self._groups: dict[str, Counter[str]] = {}

    def add(self, group: str, name: str, count: int = 1) -> None:
        self._groups.setdefault(group, Counter())[name] += count

    def take(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Add the counts of another tally."""
        for group, names in counts.items():
            self._groups.setdefault(group, Counter()).update(names)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return plain values, ordered by name."""
        return {group: dict(sorted(names.items())) for group, names in sorted(self._groups.items())}
