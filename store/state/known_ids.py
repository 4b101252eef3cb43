"""Ids of messages in the tails that the index does not have yet: ids made by clients, and ids that moved or that a
replay met. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.store.records.message_ids import numbered

# (owner, message id)
Place = tuple[int, str]


@dataclass(slots=True, eq=False)
class KnownIds:
    """One set for each tail: call ``freeze`` and ``thaw`` with those of the state."""

    _live: set[Place] = field(default_factory=set)
    _frozen: set[Place] = field(default_factory=set)
    # The highest sequence that came, by owner and producer; for each tail.
    _highest: dict[Place, int] = field(default_factory=dict)
    _highest_frozen: dict[Place, int] = field(default_factory=dict)

    def add(self, place: Place) -> None:
        self._live.add(place)
        producer, sequence = numbered(place[1])
        of = place[0], producer
        if self._highest.get(of, -1) < sequence:
            self._highest[of] = sequence

    def is_newest(self, owner: int, producer: str, sequence: int) -> bool:
        """Return whether no higher sequence came from ``producer`` to ``owner``."""
        of = owner, producer
        return max(self._highest.get(of, -1), self._highest_frozen.get(of, -1)) <= sequence

    def discard(self, place: Place) -> None:
        if self._live or self._frozen:
            self._live.discard(place)
            self._frozen.discard(place)

    def is_live(self, place: Place) -> bool:
        return place in self._live

    def is_frozen(self, place: Place) -> bool:
        return place in self._frozen

    def freeze(self) -> None:
        self._live, self._frozen = set(), self._live
        self._highest, self._highest_frozen = {}, self._highest

    def thaw(self) -> set[Place]:
        """Drop the frozen set, and return it."""
        frozen, self._frozen = self._frozen, set()
        self._highest_frozen = {}
        return frozen
