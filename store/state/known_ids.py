"""The ids that clients made, of messages in the tails: those that the index does not tell yet. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

# (owner, message id)
Place = tuple[int, str]


@dataclass(slots=True, eq=False)
class KnownIds:
    """One set for each tail: ``freeze`` and ``thaw`` go with those of the state."""

    _live: set[Place] = field(default_factory=set)
    _frozen: set[Place] = field(default_factory=set)

    def add(self, place: Place) -> None:
        self._live.add(place)

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

    def thaw(self) -> set[Place]:
        """The set that says nothing any more."""
        frozen, self._frozen = self._frozen, set()
        return frozen
