"""Message groups: all messages of one group go to one consumer while it is open (JMSXGroupID, MessageGroupMap).

A group gets its owner with its first message: the consumer with the fewest groups among those that take the message;
among several, the consumer whose latest group is the oldest. A group ends with a message whose sequence is negative
(Queue.assignMessageGroup), when its owner closes, and when its owner does not take one of its messages: the message
then goes to a consumer that takes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice

from tandemmq.broker.core.delivery import Entry, Subscription
from tandemmq.broker.core.memory import GROUP_BYTES, Kind, Memory
from tandemmq.broker.core.slices import Pace, Work

GROUPS_MAX = 100_000
# Maximum length of the line of candidates for a group, in places per consumer.
LINE_PER_TAKER = 4
# Number of the least recently used groups that are searched for one to forget.
_LOOKED_AT_MAX = 16


class _Group:
    __slots__ = ("owner", "pending")

    def __init__(self, owner: Subscription) -> None:
        self.owner = owner
        self.pending = 0


@dataclass(slots=True, eq=False, repr=False)
class Groups:
    """The owner of each group. If there are ``groups_max`` groups, or no memory for one more, the least recently used
    group without waiting or unacknowledged messages is forgotten; its next message gets a new owner."""

    groups_max: int = GROUPS_MAX
    memory: Memory | None = None
    bytes: int = field(default=0, init=False)  # bytes counted in ``memory``
    _groups: OrderedDict[str, _Group] = field(default_factory=OrderedDict, init=False)
    _owned: dict[Subscription, set[str]] = field(default_factory=dict, init=False)
    _turn: int = field(default=0, init=False)
    looked_at: int = field(default=0, init=False)  # number of consumers compared as candidates for a group
    _chosen: dict[Subscription, int] = field(default_factory=dict, init=False)  # consumer -> turn of its latest group
    _compared: Sequence[Subscription] = field(default=(), init=False)  # the consumers compared last
    # ``_best``: the consumers in ``_line``; ``_ranks``: their order. ``_line`` is a heap of standings (groups, turn,
    # rank): one for each change of a consumer's standing, the present one included.
    _best: Sequence[Subscription] = field(default=(), init=False)
    _ranks: dict[Subscription, int] = field(default_factory=dict, init=False)
    _line: list[tuple[int, int, int]] = field(default_factory=list, init=False)

    def __len__(self) -> int:
        return len(self._groups)

    def owner(
        self, name: str, sequence: int, takers: Collection[Subscription], best: Sequence[Subscription]
    ) -> Subscription:
        """Return the consumer for the next message of the group: one of ``takers``, which all take it. A new owner is
        one of ``best``, a list that does not change before ``forget_best``. Each call is one message; ``done`` ends
        it."""
        assert takers, "a message without takers belongs to no group"
        groups = self._groups
        group = groups.get(name)
        if group is None or group.owner not in takers:
            owner = self._choose(best)
            if group is None:
                memory = self.memory
                if len(groups) >= self.groups_max or (memory is not None and not memory.has_room_for_pairs):
                    self._forget_one()
                group = groups[name] = _Group(owner)
                self._count(_bytes_of(name))
            else:
                groups.move_to_end(name)
                self._disown(name, group)
                group.owner = owner
            self._owned.setdefault(owner, set()).add(name)
            self._enter(owner)
        else:
            groups.move_to_end(name)
            owner = group.owner
        group.pending += 1
        if sequence < 0:
            self._end(name)
        return owner

    def done(self, name: str) -> None:
        """Record that one message of the group was acknowledged or given back."""
        group = self._groups.get(name)
        if group is not None and group.pending:
            group.pending -= 1

    def leave(self, owner: Subscription, waiting: Iterable[Entry] = ()) -> Work[None]:
        """Free the groups of ``owner``, which has closed. ``waiting``: entries that waited for it. The steps of the
        returned work call ``done`` for these entries, and forget the groups."""
        names = self._owned.pop(owner, set())
        self._chosen.pop(owner, None)
        self.forget_best()
        if self._owned:
            return self._free(owner, names, waiting)
        groups, self._groups = self._groups, OrderedDict()
        self._count(-self.bytes)
        return _empty(groups, names)

    def end(self) -> None:
        """Forget all groups; no call follows."""
        self._groups = OrderedDict()
        self._owned = {}
        self._count(-self.bytes)

    def _count(self, more: int) -> None:
        self.bytes += more
        if self.memory is not None:
            self.memory.add(Kind.STATE, more)

    def _free(self, owner: Subscription, names: set[str], waiting: Iterable[Entry]) -> Work[None]:
        pace = Pace()
        for entry in waiting:
            if entry.message.group_id is not None:
                self.done(entry.message.group_id)
            if pace.is_full():
                yield
        while names:
            name = names.pop()
            group = self._groups.get(name)
            if group is not None and group.owner is owner:  # the group may have another owner by now
                del self._groups[name]
                self._count(-_bytes_of(name))
            if pace.is_full():
                yield

    def _choose(self, takers: Sequence[Subscription]) -> Subscription:
        """Return the consumer with the fewest groups; among equals the one whose latest group is the oldest."""
        if takers is not self._best and takers is not self._compared:  # a heap is faster only from the second choice on
            self._compared = takers
            self.looked_at += len(takers)
            return self._give(min(takers, key=self._standing))
        if takers is not self._best or len(self._line) > LINE_PER_TAKER * len(takers):
            self._look_at(takers)
        line = self._line
        while True:
            groups, turn, rank = line[0]
            self.looked_at += 1
            found = takers[rank]
            if (groups, turn) == self._standing(found):
                break
            heappop(line)
        return self._give(found)

    def _give(self, taker: Subscription) -> Subscription:
        self._turn += 1
        self._chosen[taker] = self._turn
        return taker

    def _look_at(self, takers: Sequence[Subscription]) -> None:
        self.looked_at += len(takers)
        self._best = takers
        self._ranks = {taker: rank for rank, taker in enumerate(takers)}
        self._line = [(*self._standing(taker), rank) for rank, taker in enumerate(takers)]
        heapify(self._line)

    def forget_best(self) -> None:
        """Forget the candidates, because the consumers change."""
        self._compared = self._best = ()
        self._ranks = {}
        self._line = []

    def _standing(self, taker: Subscription) -> tuple[int, int]:
        return len(self._owned.get(taker, ())), self._chosen.get(taker, 0)

    def _enter(self, taker: Subscription) -> None:
        """Record the changed standing of ``taker``."""
        rank = self._ranks.get(taker)
        if rank is not None:
            heappush(self._line, (*self._standing(taker), rank))

    def _end(self, name: str) -> None:
        group = self._groups.pop(name)
        self._count(-_bytes_of(name))
        self._disown(name, group)

    def _disown(self, name: str, group: _Group) -> None:
        owned = self._owned.get(group.owner)
        if owned is not None:  # else the owner has closed
            owned.discard(name)
            self._enter(group.owner)

    def _forget_one(self) -> None:
        """Forget the least recently used group; groups in use move to the end. Their number is bounded by the messages
        in memory, so the map is bounded even if all examined groups are in use."""
        for name in list(islice(self._groups, _LOOKED_AT_MAX)):
            if not self._groups[name].pending:
                self._end(name)
                return
            self._groups.move_to_end(name)


def _bytes_of(name: str) -> int:
    return GROUP_BYTES + len(name)


def _empty(groups: OrderedDict[str, _Group], names: set[str]) -> Work[None]:
    pace = Pace()
    while groups:
        name, _ = groups.popitem()
        names.discard(name)
        if pace.is_full():
            yield
