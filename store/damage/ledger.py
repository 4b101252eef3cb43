"""Damage and loss that a reader of the journal met: refused, or stepped over where that was declared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from tandemmq import log_events
from tandemmq.journal.files import JournalFiles
from tandemmq.store.damage.reconciliation import Name, name_of
from tandemmq.store.damage.report import (
    Damage,
    DeclaredLosses,
    JournalLost,
    StoreCorrupt,
    decode_lost,
    examine,
    listed,
    quarantine,
    shown_in,
)
from tandemmq.store.state.keys import Entry
from tandemmq.store.state.state import State

log = logging.getLogger(__name__)

# Maximum of remembered torn tails, and of damage in files that were written without syncs
TORN_REPORTED_MAX = 100


@dataclass(eq=False, repr=False)
class DamageLedger:
    """Damage of one journal and one state; ``later_files`` returns the files after a file, with their ends.

    ``damages``: the damage that was stepped over, in the order of reading; ``dropped``: the live messages lost with it;
    ``torn``: the tails without a receipt, which are dropped. ``is_trial``: nothing is copied into quarantine, and
    nothing is logged.
    """

    _files: JournalFiles
    _state: State
    _later_files: Callable[[int], Mapping[int, int | None]]
    _: KW_ONLY
    ignores_missing: bool
    is_trial: bool
    has_foreign_index: Callable[[], bool]
    damages: list[Damage] = field(default_factory=list, init=False)
    torn: list[Damage] = field(default_factory=list, init=False)
    dropped: list[tuple[Name, Entry]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._losses = DeclaredLosses(self._files)

    def note_mark(self, file: int, payload: bytes) -> None:
        """Note a trace that was read in ``file``: it may be the mark of a range that was declared lost."""
        lost = decode_lost(payload)
        if lost is not None:
            self._losses.note(*lost)
            self._state.drop_range(*lost)
            self._state.pin(file, lost[0])  # the mark is needed as long as that file is there

    def is_declared(self, file: int, start: int, stop: int) -> bool:
        """Return whether a mark declares the range lost."""
        return self._losses.covers(file, start, stop, self._later_files(file))

    def meet(self, damages: Sequence[Damage]) -> None:
        """Refuse with StoreCorrupt or JournalLost, or step over damage that was not declared before."""
        met = {(damage.file, damage.start, damage.stop) for damage in self.damages}
        new = [
            damage
            for damage in damages
            if (damage.file, damage.start, damage.stop) not in met
            and (damage.is_lost or not self.is_declared(damage.file, damage.start, damage.stop))
        ]
        for damage in new:
            doubts = damage.known
            examine(self._files, self._state, damage)
            damage.known = list(dict.fromkeys((*damage.known, *doubts)))  # a neighbour's index may know more
        if self.has_foreign_index():
            # ActiveMQ collects files without a record of it; its index tells whether they are needed (store.takeover).
            collected = [damage for damage in new if damage.is_lost and damage.may_be_collected]
            for damage in collected:
                self._state.lose_file(damage.file, is_damage=True)
            new = [damage for damage in new if damage not in collected]
        if new and not self.ignores_missing:
            raise (JournalLost if any(damage.is_lost for damage in new) else StoreCorrupt)(new)
        for damage in new:
            self._step_over(damage)

    def _step_over(self, damage: Damage) -> None:
        state = self._state
        report = "" if self.is_trial else quarantine(self._files, damage)
        names = {owner.id: name_of(owner) for owner in state.owners.values()}
        # Subscriptions and transactions stay: their records are written again (store.damage.reconciliation).
        dropped = state.drop_range(damage.file, damage.start, damage.stop)
        if damage.is_lost:
            state.forget_files((damage.file,))
        self.dropped += [(names[owner], entry) for owner, _, entry in dropped]
        self.damages.append(damage)
        if not self.is_trial:
            log.error("stepped over: %s; the report is %s", damage, report, extra=log_events.DAMAGE_STEPPED_OVER)

    def forget(self, file: int, start: int, reason: str) -> None:
        """Drop a tail without a receipt: its bytes stay, after the end."""
        size = self._files.size(file)
        torn = Damage(file, start, size, reason, shown=shown_in(self._files, self._state, file, start, size))
        if len(self.torn) < TORN_REPORTED_MAX:
            self.torn.append(torn)
        if not self.is_trial:
            ids = listed(torn.message_ids) or "no message"
            log.warning("db-%d.log is torn at offset %d: %s; its bytes show %s", file, start, reason, ids)
