"""Voters and their quorum, positions in a journal, and the marks that a quorum has reached. Pure; a caller that shares
marks between threads guards them.

The number of an epoch identifies it: two journals that both have an epoch have bytes of the same master in it, so
within that epoch one of them is a prefix of the other (docs/formats/replication.md, rule 8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tandemmq.config.replication import Sync


@dataclass(frozen=True, slots=True)
class Voters:
    """The stores that count, and the display names of their nodes."""

    ids: tuple[str, ...]
    names: Mapping[str, str]  # store id -> node; a display name, it decides nothing

    def __post_init__(self) -> None:
        assert len(set(self.ids)) == len(self.ids), "a voter counts once"

    def __hash__(self) -> int:
        return hash(self.ids)

    def __contains__(self, store: object) -> bool:
        return store in self.ids

    @property
    def quorum(self) -> int:
        """More than half of the voters. Two quorums of these voters share a store, and so do a quorum of these and a
        quorum of a list with one store more or less."""
        return len(self.ids) // 2 + 1  # prove: more-than-half " + 1"

    def have_quorum(self, stores: Collection[str]) -> bool:
        """Return whether enough voters are among ``stores``; other stores do not count."""
        return sum(store in stores for store in self.ids) >= self.quorum

    def name(self, store: str) -> str:
        """Return the display name of a store: its node, or the beginning of its id."""
        return self.names.get(store, store[:8])

    def renamed(self, nodes: Mapping[str, str]) -> Voters:
        """Return these voters with the names in ``nodes``; a store that is not in it keeps its name."""
        return Voters(self.ids, {**self.names, **{store: nodes[store] for store in self.ids if store in nodes}})

    def add(self, store: str, node: str) -> Voters:
        """Return these voters and ``store``, which must not be a voter yet."""
        assert store not in self.ids, "a voter is not added again"
        return Voters((*self.ids, store), {**self.names, store: node})

    def remove(self, store: str) -> Voters:
        """Return these voters without ``store``, which must be a voter and not the only one."""
        assert store in self.ids, "only a voter is removed"
        assert len(self.ids) > 1, "at least one voter remains"
        return Voters(
            tuple(voter for voter in self.ids if voter != store),
            {voter: node for voter, node in self.names.items() if voter != store},
        )


class ChangeRefused(Exception):
    """The voters cannot be changed in this way, or not now."""


class NotMaster(ChangeRefused):
    """The node is not the master: send the request to the master."""


@dataclass(frozen=True, slots=True)
class Founding:
    """A set to be founded: its id and its first voters."""

    set: str
    voters: Voters


class Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Ordered)


def quorum_th(values: Iterable[T], quorum: int) -> T | None:
    """Return the greatest value that at least ``quorum`` of them reach. None if there are fewer values."""
    ordered = sorted(values, reverse=True)  # prove: reached-by-a-quorum ", reverse=True"
    return ordered[quorum - 1] if len(ordered) >= quorum else None


class Position(NamedTuple):
    """End of a journal; compared as in Raft (last term, last index)."""

    epoch: int  # of the last valid header
    file: int
    end: int  # of the last good batch


# End of each epoch: (epoch, file, end), ascending. The last entry is the newest epoch with its present end.
Lineage = tuple[tuple[int, int, int], ...]

BEFORE_ALL = Position(0, 0, 0)

#: A place in the journal: (file, end).
Place = tuple[int, int]
NOWHERE: Final[Place] = (0, 0)


def common_point(mine: Lineage, theirs: Lineage) -> tuple[int, int] | None:
    """Return (file, end) up to which both are the same: in the newest epoch that both have, the smaller end (KIP-101).

    None if they have no epoch in common. The caller ensures that both lineages belong to the same set; otherwise epoch
    0 of one would be taken for epoch 0 of the other.
    """
    ends = {epoch: (file, end) for epoch, file, end in theirs}
    for epoch, file, end in reversed(mine):  # prove: newest-common-epoch "reversed(mine)" -> "mine"
        if epoch in ends:
            return min((file, end), ends[epoch])  # prove: smaller-end-is-common "min" -> "max"
    return None


def is_lineage(entries: Lineage) -> bool:
    """Return whether epochs and files ascend: each epoch begins in its own file, which has its number."""
    return all(entry[0] < after[0] and entry[1] < after[1] for entry, after in pairwise(entries))


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
        """Note that ``store`` has everything up to ``place``, in the order of the stream. A mark never falls."""
        self._memory[store] = max(place, self._memory.get(store, NOWHERE))
        if on_disk:
            self._disk[store] = max(place, self._disk.get(store, NOWHERE))
        self._update()

    def has_less(self, store: str, place: Place) -> None:
        """Note that the disk of the store lost data: it has everything up to ``place``, and no more."""
        self._disk[store] = place

    def lost(self, store: str) -> None:
        """Forget the place in the memory of the store, because its link is lost. Its place on the disk stays."""
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
