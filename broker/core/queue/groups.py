"""Message groups: all messages of one group go to one consumer, as long as it is there (JMSXGroupID, MessageGroupMap).

A group has no owner until its first message; then to the consumer with the fewest groups among those that take
the message, of several the one that got a group longest ago. It ends with a message whose sequence is negative
(Queue.assignMessageGroup), with its owner, and when its owner does not take one of its messages: a message is not kept
from those who want it.
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
# The line of those who may get a group has no more than so many places for each.
LINE_PER_TAKER = 4
# How many of the groups unused for longest are examined for one that may be forgotten.
_LOOKED_AT_MAX = 16


class _Group:
    __slots__ = ("owner", "pending")

    def __init__(self, owner: Subscription) -> None:
        self.owner = owner
        self.pending = 0


@dataclass(slots=True, eq=False, repr=False)
class Groups:
    """The owner of each group. Bounded: the group unused for longest, with nothing that waits or is unacknowledged, is
    forgotten; its next message finds an owner anew. So it is where there is no memory for one more."""

    groups_max: int = GROUPS_MAX
    memory: Memory | None = None
    bytes: int = field(default=0, init=False)  # so much counts there
    _groups: OrderedDict[str, _Group] = field(default_factory=OrderedDict, init=False)
    _owned: dict[Subscription, set[str]] = field(default_factory=dict, init=False)
    _turn: int = field(default=0, init=False)
    looked_at: int = field(default=0, init=False)  # so many consumers, of all those who might have got a group
    _chosen: dict[Subscription, int] = field(default_factory=dict, init=False)  # the turn in which it got its latest
    _asked: Sequence[Subscription] = field(default=(), init=False)  # those who were looked through last
    # Those for whom there is a line, and their order among themselves. The line is a heap of what each of them
    # had whenever that changed (groups, turn, order); what it has by now is there too.
    _best: Sequence[Subscription] = field(default=(), init=False)
    _ranks: dict[Subscription, int] = field(default_factory=dict, init=False)
    _line: list[tuple[int, int, int]] = field(default_factory=list, init=False)

    def __len__(self) -> int:
        return len(self._groups)

    def owner(
        self, name: str, sequence: int, takers: Collection[Subscription], best: Sequence[Subscription]
    ) -> Subscription:
        """The consumer for the next message of the group: one of ``takers``, which all take it; a new owner is one of
        ``best``, a list that does not change before ``forget_best``. Each call is one message; ``done`` ends it."""
        assert takers, "a message that nobody takes belongs to no group"
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
        """One of the group's messages does not wait for its owner any more: acknowledged, or given back."""
        group = self._groups.get(name)
        if group is not None and group.pending:
            group.pending -= 1

    def leave(self, owner: Subscription, waiting: Iterable[Entry] = ()) -> Work[None]:
        """``owner`` is gone: its groups are free, and ``waiting`` are no more for it. The steps of what is returned do
        ``done`` for those, and forget the groups."""
        names = self._owned.pop(owner, set())
        self._chosen.pop(owner, None)
        self.forget_best()
        if self._owned:
            return self._free(owner, names, waiting)
        groups, self._groups = self._groups, OrderedDict()
        self._count(-self.bytes)
        return _empty(groups, names)

    def end(self) -> None:
        """Nothing is asked of it any more."""
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
            if group is not None and group.owner is owner:  # it has no other owner by now
                del self._groups[name]
                self._count(-_bytes_of(name))
            if pace.is_full():
                yield

    def _choose(self, takers: Sequence[Subscription]) -> Subscription:
        """The one with the fewest groups; among equals the one that got a group longest ago."""
        if takers is not self._best and takers is not self._asked:  # a line pays from the second time on
            self._asked = takers
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
        """The consumers change."""
        self._asked = self._best = ()
        self._ranks = {}
        self._line = []

    def _standing(self, taker: Subscription) -> tuple[int, int]:
        return len(self._owned.get(taker, ())), self._chosen.get(taker, 0)

    def _enter(self, taker: Subscription) -> None:
        """What ``taker`` has did change."""
        rank = self._ranks.get(taker)
        if rank is not None:
            heappush(self._line, (*self._standing(taker), rank))

    def _end(self, name: str) -> None:
        group = self._groups.pop(name)
        self._count(-_bytes_of(name))
        self._disown(name, group)

    def _disown(self, name: str, group: _Group) -> None:
        owned = self._owned.get(group.owner)
        if owned is not None:  # else it is gone
            owned.discard(name)
            self._enter(group.owner)

    def _forget_one(self) -> None:
        """The one unused for longest; those in use are as good as new. They are bounded by what is in memory, so the
        map is, too, if all that are examined are in use."""
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
