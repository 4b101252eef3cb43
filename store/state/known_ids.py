"""Message ids that are not in the index yet: ids that clients made, and ids of messages that were moved or replayed.
Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandemmq.store.records.message_ids import numbered

# (owner, message id)
Place = tuple[int, str]


@dataclass(slots=True, eq=False)
class KnownIds:
    """Ids of the live and the frozen tail. Call ``freeze`` and ``thaw`` together with the same methods of the
    state."""

    _live: set[Place] = field(default_factory=set)
    _frozen: set[Place] = field(default_factory=set)
    # (owner, producer) -> its highest sequence, for each tail. Maintained after ``number`` was called.
    _highest: dict[Place, int] = field(default_factory=dict)
    _highest_frozen: dict[Place, int] = field(default_factory=dict)
    _is_numbering: bool = False

    def add(self, place: Place) -> None:
        self._live.add(place)
        if self._is_numbering:
            _note(self._highest, place)

    def number(self) -> None:
        """Maintain the highest sequences from now on, which ``is_newest`` needs."""
        self._is_numbering = True
        for places, highest in ((self._live, self._highest), (self._frozen, self._highest_frozen)):
            for place in places:
                _note(highest, place)

    def is_newest(self, owner: int, producer: str, sequence: int) -> bool:
        """Return whether the tails have no higher sequence of ``producer`` for ``owner``."""
        assert self._is_numbering, "call ``number`` first"
        of = owner, producer
        return max(self._highest.get(of, -1), self._highest_frozen.get(of, -1)) <= sequence

    def discard(self, place: Place) -> None:
        if self._live or self._frozen:
            self._live.discard(place)
            self._frozen.discard(place)

    def __contains__(self, place: Place) -> bool:
        return place in self._live or place in self._frozen

    def freeze(self) -> None:
        self._live, self._frozen = set(), self._live
        self._highest, self._highest_frozen = {}, self._highest

    def thaw(self) -> set[Place]:
        """Remove the ids of the frozen tail, and return them."""
        frozen, self._frozen = self._frozen, set()
        self._highest_frozen = {}
        return frozen


def _note(highest: dict[Place, int], place: Place) -> None:
    producer, sequence = numbered(place[1])
    of = place[0], producer
    if highest.get(of, -1) < sequence:
        highest[of] = sequence
