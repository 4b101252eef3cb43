"""A broker that is killed after an operation of its store: the next one finds the operations stored until then."""

from __future__ import annotations

import random
from typing import Any

from tandemmq.store.operations import Operation, Owner, RemoveOwner
from tests.support.prove import IS_PROOF, SEED


def crashes(operations_max: int, again_max: int, sample: int) -> list[tuple[int, int, bool]]:
    """Return the operation at which the first master dies, the one at which the second dies, and whether stored
    operations were reported: all such values in a proof, otherwise ``sample`` of them."""
    every = [
        (first, second, is_told)
        for first in range(operations_max)
        for second in range(again_max)
        for is_told in (False, True)
    ]
    return every if IS_PROOF else random.Random(SEED).sample(every, sample)


class Mortal:
    """A limit for the operations that the store of a harness still takes. ``is_told``: all of them are reported;
    otherwise those of the last turn are stored, but not reported."""

    def __init__(self, harness: Any, left: int, *, is_told: bool) -> None:
        self.store = harness.store
        self.left = left
        self.is_dead = False
        self._apply_turn = self.store._apply_turn
        self._is_told = is_told
        self.store._apply_turn = self._apply

    def _apply(self) -> list[Operation]:
        operations = self.store._turn
        if self.is_dead or len(operations) > self.left:
            kept = [] if self.is_dead else operations[: self.left]
            for each in operations[len(kept) :]:
                if isinstance(each, RemoveOwner):
                    self._comes_back(self.store._owners[each.owner])
            self.is_dead = True
            self.store._turn = kept
            applied = self._apply_turn()
            return applied if self._is_told else []
        self.left -= len(operations)
        return self._apply_turn()

    def _comes_back(self, owner: Owner) -> None:
        """Restore a queue whose removal is lost. A new queue with its name, which the journal does not know, is
        dropped."""
        if owner.subscription_name is None:
            other = self.store._queues.get(owner.destination)
            if other is not None:
                del self.store._owners[other], self.store._messages[other]
            self.store._queues[owner.destination] = owner.id

    def end(self) -> None:
        self.store._apply_turn = self._apply_turn
