"""Several stores of a standby, with the interface of one (``store.standby.Standby``).

The stores are followed one after the other. At a promotion every journal is fenced before any is read. Then each
transaction that several stores have prepared is ended in all of them, with the outcome in txStore.

txStore is fenced first, then the directories are listed, for two reasons:

- Before a master uses a new store, it makes the store's journal, writes to txStore, and checks the fence. If this check
  found no fence of this promotion, this promotion's listing was later, and has found the new store.
- A transaction is decided only in txStore. A decision after our fence does not count. If a master decided before our
  fence, it had prepared the transaction in all stores before, and so before our other fences.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from tandemmq.disk import Disk
from tandemmq.store.records.message import Destination
from tandemmq.store.records.transactions import TransactionId, transaction_of_key
from tandemmq.store.recovery.lag import Lag
from tandemmq.store.recovery.lag import together as together_behind
from tandemmq.store.recovery.prediction import Prediction, together
from tandemmq.store.recovery.promotion import OnStep, Outcome, ignore_step
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import OUTCOMES_DIRECTORY, Filters, StoresClash
from tandemmq.store.several.joint import is_joint
from tandemmq.store.several.layout import Layout
from tandemmq.store.several.stores import SeveralStores, Term
from tandemmq.store.standby import Standby, outcome_by
from tandemmq.store.state.state import State
from tandemmq.store.store import Store
from tandemmq.store.threads import OS_THREADS, Threads
from tandemmq.store.writer.background import Pulses

log = logging.getLogger(__name__)

PROMOTING_THREADS = 8

T = TypeVar("T")


class DestinationInTwoStores(StoresClash):
    """Two stores have messages or subscriptions of the same destination, so their order is unknown."""


class SeveralStandbys:
    """Standby of several stores: call ``follow`` repeatedly, and ``promote`` or ``close`` at the end. Methods block;
    one thread at a time, unless stated otherwise.

    ``settings`` apply to stores without an entry in ``filters``. ``index_directory`` has the indexes, each in a
    directory with the name of its store; None: each index is in the directory of its journal. Raises OSError,
    TooManyStores.
    """

    def __init__(
        self,
        directory: str,
        index_directory: str | None,
        broker: str,
        settings: StoreSettings,
        filters: Filters,
        *,
        disk: Disk = os,
        threads: Threads = OS_THREADS,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.broker = broker
        self._layout = Layout(directory, index_directory, broker, settings, filters, disk=disk, threads=threads)
        self._threads = threads
        self._standbys: dict[str, Standby] = {}
        self._is_halted = False
        self._pulses = Pulses(threads)
        try:
            self._open_found()
        except BaseException:
            self.close()
            raise

    def _open_found(self) -> None:
        """Open the stores that were not found before."""
        found = self._layout.found()
        if self._layout.has_outcomes:
            found.add(OUTCOMES_DIRECTORY)
        for name in sorted(found - self._standbys.keys()):
            self._standbys[name] = standby = self._layout.open(name)
            if self._is_halted:
                standby.halt()

    # ---- standing by

    def follow(self) -> None:
        """Apply the records that the master has written since the last call, also in new stores. Returns soon after
        ``halt``."""
        self._open_found()
        for standby in self._standbys.values():
            if self._is_halted:
                return
            standby.follow()

    @property
    def has_caught_up(self) -> bool:
        """True if all settled batches of all journals have recently been read."""
        return self.lag.has_caught_up

    @property
    def lag(self) -> Lag:
        """Lag of all stores together behind their visible journals. Any thread."""
        return together_behind(standby.lag for standby in list(self._standbys.values()))

    def prediction(self, lock_seconds: float = 0.0) -> Prediction:
        """Return the prediction of a promotion for all stores together."""
        return together([standby.prediction(lock_seconds) for standby in list(self._standbys.values())])

    @property
    def messages(self) -> int:
        """Number of stored messages, as far as the journals were read. Any thread."""
        return sum(standby.messages for standby in list(self._standbys.values()))

    def seen_busy(self) -> float:
        """Return the monotonic time at which a thread of the promotion was last seen working. Any thread."""
        return self._pulses.seen_busy()

    def halt(self) -> None:
        """Make a running ``follow`` return soon. Any thread."""
        self._is_halted = True
        for standby in list(self._standbys.values()):
            standby.halt()

    def close(self) -> None:
        """Close all indexes without a checkpoint."""
        standbys, self._standbys = self._standbys, {}
        for standby in standbys.values():
            standby.close()

    # ---- becoming master

    def promote(
        self,
        *,
        has_proof: Callable[[], bool],
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        on_lost: Callable[[BaseException], None],
        on_step: OnStep = ignore_step,
    ) -> SeveralStores:
        """Fence all stores, read the rest of their journals, and begin the same epoch in all. The caller holds the
        lock. The returned SeveralStores owns all files and indexes.

        The arguments are those of ``Standby.promote``. Raises the errors of ``store.recovery.promotion.Promotion``, and
        DestinationInTwoStores; after an error this object can only be closed.
        """
        started = self._threads.monotonic()
        stores: dict[str, Store] = {}
        is_reported = False

        def lost(error: BaseException) -> None:
            """End all stores if one is lost, and report the first error only."""
            nonlocal is_reported
            for store in list(stores.values()):
                store.halt()
            if not is_reported:
                is_reported = True
                on_lost(error)

        def begin(name: str, standby: Standby, epoch: int, outcome_of: Outcome) -> Store:
            store = standby.begin(
                has_proof=has_proof,
                call_soon=call_soon,
                call_later=call_later,
                on_lost=lost,
                epoch=epoch,
                outcome_of=outcome_of,
            )
            stores[name] = store
            return store

        outcomes = self._fence_all(has_proof)  # prove: all-fenced-before-any-is-read order all-read
        on_step("fenced")
        fenced = self._threads.monotonic()
        self._each(Standby.read, self._standbys.values())  # prove: all-read
        records = sum(standby.records_read for standby in self._standbys.values())
        on_step("replayed", records=records, seconds=self._threads.monotonic() - fenced)
        epoch = max(standby.next_epoch for standby in self._standbys.values())
        outcome_of = _outcomes(outcomes.state, outcome_by(self.settings))
        states = {name: standby.state for name, standby in self._standbys.items() if standby is not outcomes}
        try:
            self._each(lambda name: begin(name, self._standbys[name], epoch, outcome_of), states)
            homes = _homes(states)
            # Only after every store has ended the decided transactions.
            begin(OUTCOMES_DIRECTORY, outcomes, epoch, lambda transaction: True)
            on_step("header")
        except BaseException:
            for name, store in stores.items():
                store.drop()
                del self._standbys[name]  # the store has closed its index
            raise
        self._standbys = {}

        def make_store(name: str) -> Store:
            self._layout.make(name)
            standby = self._layout.open(name)
            try:
                standby.fence(has_proof)
                standby.read()
                return begin(name, standby, max(epoch, standby.next_epoch), outcome_of)
            except BaseException:
                standby.close()
                raise

        term = Term(
            epoch,
            self._threads.monotonic() - started,
            {name: stores[name] for name in sorted(states)},
            stores[OUTCOMES_DIRECTORY],
            homes,
            _prepared(states),
        )
        return SeveralStores(self._layout, term, make_store=make_store, call_soon=call_soon, on_lost=lost)

    def _fence_all(self, has_proof: Callable[[], bool]) -> Standby:
        """Fence every journal. Return the standby of txStore."""
        layout = self._layout
        if OUTCOMES_DIRECTORY not in self._standbys:
            layout.make(OUTCOMES_DIRECTORY)
            self._standbys[OUTCOMES_DIRECTORY] = layout.open(OUTCOMES_DIRECTORY)
        outcomes = self._standbys[OUTCOMES_DIRECTORY]
        outcomes.fence(has_proof)
        layout.refresh()
        for name in sorted(layout.wanted() - layout.found()):
            layout.make(name)
            self._standbys[name] = layout.open(name)
        self._open_found()
        others = [standby for standby in self._standbys.values() if standby is not outcomes]
        self._each(lambda standby: standby.fence(has_proof), others)
        return outcomes

    def _each(self, step: Callable[[T], object], items: Iterable[T]) -> None:
        """Do one step of the promotion for each store, in several threads, because a step mostly waits for the disk. On
        return no thread works any more. Raises the first error."""

        def take(item: T) -> None:
            with self._pulses.beating():
                step(item)

        with self._threads.executor(PROMOTING_THREADS, "tandemmq-promoting") as pool:
            done = [pool.submit(take, item) for item in items]
        for each in done:
            each.result()


def _outcomes(decided: State, otherwise: Outcome) -> Outcome:
    """Return the function that determines the outcome of a prepared transaction: commit, if txStore has a decision;
    otherwise roll back, if it belongs to a joint operation; otherwise the result of ``otherwise``."""
    decisions = {key for key, transaction in decided.transactions.items() if transaction.is_prepared}

    def outcome(transaction: TransactionId) -> bool | None:
        if transaction.key in decisions:
            return True
        return False if is_joint(transaction) else otherwise(transaction)

    return outcome


def _homes(states: dict[str, State]) -> dict[Destination, str]:
    """Return destination -> its store, for destinations with messages, subscriptions, or operations of prepared
    transactions. Raises DestinationInTwoStores."""
    homes: dict[Destination, str] = {}
    for name, state in states.items():
        held = {o.destination for o in state.owners.values() if o.count or o.subscription_name is not None}
        for transaction in state.transactions.values():
            held.update(operation.destination for operation in transaction.operations)
        for destination in held:
            if destination in homes:
                raise DestinationInTwoStores(
                    f"{destination} is in two stores, {homes[destination]} and {name}: "
                    "export one store, then import it again"
                )
            homes[destination] = name
    return homes


def _prepared(states: dict[str, State]) -> dict[str, tuple[str, ...]]:
    """Return key of a prepared transaction -> names of the stores that have it."""
    found: dict[str, tuple[str, ...]] = {}
    for name, state in states.items():
        for key in state.transactions:
            assert not is_joint(transaction_of_key(key)), "all joint transactions were ended"
            found[key] = (*found.get(key, ()), name)
    return found
