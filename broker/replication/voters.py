"""The voters: their promises and disks count, and a quorum of them is enough. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


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
        """Return these voters and one more, which was none."""
        assert store not in self.ids, "a voter is not added again"
        return Voters((*self.ids, store), {**self.names, store: node})

    def remove(self, store: str) -> Voters:
        """Return these voters without one, which was a voter and not the last."""
        assert store in self.ids, "only a voter is removed"
        assert len(self.ids) > 1, "at least one voter remains"
        return Voters(
            tuple(voter for voter in self.ids if voter != store),
            {voter: node for voter, node in self.names.items() if voter != store},
        )


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
