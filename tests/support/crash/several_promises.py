"""The promises of several stores in one directory, and the states that are therefore allowed after a crash.

The actions of each store take effect in the order of the requests. There is no order between stores, except that an
operation on several stores happens in all of them or in none. So the allowed states are those after any set of actions
that contains all promised ones, and with each action all earlier ones of its stores.
"""

from __future__ import annotations

from collections.abc import Iterator

from tandemmq.disk import Disk
from tandemmq.store.operations import (
    AddMessage,
    AddSubscription,
    Atomic,
    EndTransaction,
    Operation,
    PrepareTransaction,
    RemoveMessage,
    RemoveOwner,
)
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import FilteredStore
from tandemmq.store.several.layout import OWNER_BITS, STORES_MAX
from tests.support.ci.verdicts import verdict
from tests.support.crash.promises import Asked, Began, Held, Ledger, PromisingTerm, State, after, difference
from tests.support.crash.recording_disk import Event, Note
from tests.support.store.several_harness import SeveralTerm
from tests.support.store.store_harness import KIB

SETTINGS = StoreSettings(
    journal_max_file_length=4 * KIB,
    checkpoint_interval=3600.0,
    checkpoint_records=10,
    cleanup_interval=0.0,
    fence_check_interval=0.002,
)
# With the default store and the store of outcomes there are three: each further one multiplies the possible images.
ENTRIES = (FilteredStore(queue="A.>", settings=SETTINGS),)


class JointLedger(Ledger):
    """Like ``Ledger``, for several stores."""

    def __init__(self, before: frozenset[State] = frozenset([()])) -> None:
        super().__init__(before)
        self._base: State = ()
        self._open: list[Asked] = []  # not promised, or after an action that is not
        self._promised: set[int] = set()

    @verdict
    def apply(self, event: Event) -> None:
        if not isinstance(event, Note) or not isinstance(event.what, Began | Asked | Held):
            return
        what = event.what
        if isinstance(what, Began):
            assert what.state in self.allowed, f"found at a start: {difference(what.state, self.allowed)}"
            self._life, self._base, self._open, self._promised = what.life, what.state, [], set()
        elif what.life != self._life:
            assert not isinstance(what, Held), f"a deposed master promised {what}"
            return
        elif isinstance(what, Asked):
            self._open.append(what)
        else:
            self._promised.add(what.number)
            while self._open and self._open[0].number in self._promised:
                self._base = after(self._base, self._open.pop(0).effects)
        self.allowed = frozenset(self._grown(self._base, self._open, frozenset()))

    def _grown(self, state: State, actions: list[Asked], blocked: frozenset[int]) -> Iterator[State]:
        """Yield the states after some of ``actions``: if an action is left out, all later ones of its stores are
        too."""
        if not actions:
            yield state
            return
        first, rest = actions[0], actions[1:]
        is_promised = first.number in self._promised
        if not first.stores & blocked:
            yield from self._grown(after(state, first.effects), rest, blocked)
        else:
            assert not is_promised, f"{first} was promised before an earlier request to its store"
        if not is_promised:
            yield from self._grown(state, rest, blocked | first.stores)


class PromisingSeveralTerm(PromisingTerm, SeveralTerm):
    """A term with several stores whose requests and promises are recorded."""

    def _open(self, directory: str, broker: str, settings: StoreSettings, disk: Disk) -> None:
        self._prepared: dict[str, frozenset[int]] = {}
        SeveralTerm.__init__(self, directory, ENTRIES, broker, settings, disk=disk)

    def stores_of(self, operation: Operation) -> frozenset[int]:
        match operation:
            case AddMessage(owners=owners):
                return frozenset(owner >> OWNER_BITS for owner in owners)
            case RemoveMessage(owner=owner) | AddSubscription(owner=owner) | RemoveOwner(owner=owner):
                return frozenset([owner >> OWNER_BITS])
            case Atomic(operations=operations):
                return frozenset().union(*map(self.stores_of, operations))
            case PrepareTransaction(transaction=transaction, operations=operations):
                self._prepared[transaction.key] = frozenset().union(*map(self.stores_of, operations))
                return self._prepared[transaction.key]
            case EndTransaction(transaction=transaction):
                # A former master prepared it: no life makes other requests in the meantime.
                return self._prepared.pop(transaction.key, frozenset(range(STORES_MAX + 1)))
        raise AssertionError(f"unknown operation: {operation}")


def open_several(directory: str, broker: str, settings: StoreSettings) -> SeveralTerm:
    return SeveralTerm(directory, ENTRIES, broker, settings)
