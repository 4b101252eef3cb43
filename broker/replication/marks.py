"""Marks of how far the master's writes have come: confirmed as `sync` demands, and final (docs/formats/replication.md,
rule 8).

Pure; a caller that shares it between threads guards it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemmq.broker.replication.voters import Voters, quorum_th
from tandemmq.config.replication import Sync

#: A place in the journal: (file, end).
Place = tuple[int, int]
NOWHERE: Final[Place] = (0, 0)


class Marks:
    """Marks of one epoch of one master. ``written`` and ``synced`` are its own; ``first`` is where the epoch's first
    batch ends, None before it is written."""

    __slots__ = ("_disk", "_memory", "_own", "_sync", "confirmed", "final", "first", "synced", "voters", "written")

    def __init__(self, own: str, voters: Voters, sync: Sync) -> None:
        self._own = own
        self._sync = sync
        self.voters = voters
        self.first: Place | None = None
        self.written = NOWHERE
        self.synced = NOWHERE
        self.confirmed = NOWHERE
        self.final = NOWHERE
        self._memory: dict[str, Place] = {}
        self._disk: dict[str, Place] = {}

    def wrote(self, place: Place) -> None:
        """Note that the master wrote up to there."""
        if self.first is None:
            self.first = place
        self.written = place
        self._update()

    def sync(self, place: Place) -> None:
        """Note that the master's own disk has everything up to there."""
        self.synced = place
        self._update()

    def have(self, store: str, place: Place, *, on_disk: bool) -> None:
        """Note that ``store`` has everything up to there, in the order of the stream. A mark never falls."""
        self._memory[store] = max(place, self._memory.get(store, NOWHERE))
        if on_disk:
            self._disk[store] = max(place, self._disk.get(store, NOWHERE))
        self._update()

    def has_less(self, store: str, place: Place) -> None:
        """Note that the store's disk came back with everything up to there, and no more."""
        self._disk[store] = place

    def lost(self, store: str) -> None:
        """Note that the store's link is gone: its next report counts anew. Its mark for the disk stays."""
        self._memory.pop(store, None)

    def change(self, voters: Voters) -> None:
        """Set the voters that count from now on: a header with them is in the journal."""
        self.voters = voters
        self._update()

    def places(self) -> Mapping[str, Place]:
        """Return the place of each store's disk, for the stores that reported one."""
        return dict(self._disk)

    def received(self) -> Mapping[str, Place]:
        """Return the place that each store has received, on its disk or not."""
        return dict(self._memory)

    def _update(self) -> None:
        first = self.first
        if first is None:
            return
        final = self._quorum(self._disk, self.synced)
        if final >= first:  # prove: first-batch-makes-final
            self.final = max(self.final, min(final, self.written))
        sync = self._sync
        confirmed = self.synced if sync.local_disk else self.written
        if sync.remote == "disk":
            confirmed = min(confirmed, self._quorum(self._disk, self.written))
        elif sync.remote == "memory":
            confirmed = min(confirmed, self._quorum(self._memory, self.written))
        self.confirmed = max(self.confirmed, confirmed)

    def _quorum(self, places: Mapping[str, Place], own: Place) -> Place:
        """Return the place that a quorum has reached; this store counts if it votes."""
        each = [own if store == self._own else places.get(store, NOWHERE) for store in self.voters.ids]
        return quorum_th(each, self.voters.quorum) or NOWHERE
