"""Damage that a reader of the journal found: it raises an error, or is skipped if the operator accepted the loss."""

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

# Limit of the torn tails that are kept in memory
TORN_REPORTED_MAX = 100


@dataclass(eq=False, repr=False)
class DamageLedger:
    """Damage of one journal, and the live messages that it removed from one state.

    ``later_files`` returns {file: its end} for the files after a given file. ``ignores_missing``: the operator accepts
    damage. ``is_trial``: nothing is copied into quarantine, and nothing is logged. ``has_foreign_index``: ActiveMQ was
    the last broker of this directory.

    ``damages``: the damage that was skipped, in the order of reading. ``dropped``: the live messages that were lost.
    ``torn``: the torn tails, which are ignored because no client got a receipt for them.
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
        """Handle a trace record that was read in ``file``. If it marks a range as lost, drop the messages in the
        range."""
        lost = decode_lost(payload)
        if lost is not None:
            self._losses.note(*lost)
            self._state.drop_range(*lost)
            self._state.pin(file, lost[0])  # the mark is needed as long as the file with the range exists

    def is_declared(self, file: int, start: int, stop: int) -> bool:
        """Return whether a record in the journal marks the range as lost."""
        return self._losses.covers(file, start, stop, self._later_files(file))

    def handle(self, damages: Sequence[Damage]) -> None:
        """Handle damage that is not marked as lost yet. With ``ignores_missing`` skip it; otherwise raise StoreCorrupt,
        or JournalLost if a file is missing."""
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
            damage.known = list(dict.fromkeys((*damage.known, *doubts)))  # the index of another broker may know more
        if self.has_foreign_index():
            # ActiveMQ removes files without a record. Its index shows which files are needed (store.takeover).
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
        # Subscriptions and transactions remain: their records are written again (store.damage.reconciliation).
        dropped = state.drop_range(damage.file, damage.start, damage.stop)
        if damage.is_lost:
            state.forget_files((damage.file,))
        self.dropped += [(names[owner], entry) for owner, _, entry in dropped]
        self.damages.append(damage)
        if not self.is_trial:
            log.error("damage is skipped: %s; the report is %s", damage, report, extra=log_events.DAMAGE_STEPPED_OVER)

    def forget(self, file: int, start: int, reason: str) -> None:
        """Note a torn tail. Its bytes remain in the file, after the end."""
        size = self._files.size(file)
        torn = Damage(file, start, size, reason, shown=shown_in(self._files, self._state, file, start, size))
        if len(self.torn) < TORN_REPORTED_MAX:
            self.torn.append(torn)
        if not self.is_trial:
            ids = listed(torn.message_ids) or "no message"
            log.warning("db-%d.log is torn at offset %d: %s; its bytes contain %s", file, start, reason, ids)
