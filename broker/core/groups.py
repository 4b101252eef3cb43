"""Message groups: all messages of one group go to one consumer, as long as it is there (JMSXGroupID, MessageGroupMap).

A group belongs to nobody until its first message; then to the consumer with the fewest groups among those that take
the message, of several the one that got a group longest ago. It ends with a message whose sequence is negative
(Queue.assignMessageGroup), with its owner, and when its owner does not take one of its messages: a message is not kept
from those who want it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from broker.core.slices import Pace, Work
from broker.core.subscription import Entry, Subscription

GROUPS_MAX = 100_000
# So many of the groups unused for longest are looked at for one that may be forgotten.
_LOOKED_AT_MAX = 16


class _Group:
    __slots__ = ("owner", "pending")

    def __init__(self, owner: Subscription) -> None:
        self.owner = owner
        self.pending = 0


class Groups:
    """Who owns which group. Bounded: the group unused for longest, with nothing that waits or is unacknowledged, is
    forgotten; its next message finds an owner anew."""

    __slots__ = ("_chosen", "_groups", "_groups_max", "_owned", "_turn")

    def __init__(self, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._owned: dict[Subscription, set[str]] = {}
        self._turn = 0
        self._chosen: dict[Subscription, int] = {}  # the turn in which it got its latest

    def __len__(self) -> int:
        return len(self._groups)

    def names(self) -> set[str]:
        """The groups that have an owner."""
        return {name for name, group in self._groups.items() if group.owner in self._owned}

    def owner(
        self, name: str, sequence: int, takers: Sequence[Subscription], best: Sequence[Subscription]
    ) -> Subscription:
        """Who gets the next message of the group: one of ``takers``, who all take it; a new owner is one of ``best``.
        Each call is one message; ``done`` ends it."""
        assert takers, "a message that nobody takes belongs to no group"
        groups = self._groups
        group = groups.get(name)
        if group is None or group.owner not in takers:
            owner = self._choose(best)
            if group is None:
                if len(groups) >= self._groups_max:
                    self._forget_one()
                group = groups[name] = _Group(owner)
            else:
                groups.move_to_end(name)
                self._disown(name, group)
                group.owner = owner
            self._owned.setdefault(owner, set()).add(name)
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
        if self._owned:
            return self._free(owner, names, waiting)
        groups, self._groups = self._groups, OrderedDict()
        return _empty(groups, names)

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
            if group is not None and group.owner is owner:  # nobody else has it by now
                del self._groups[name]
            if pace.is_full():
                yield

    def _choose(self, takers: Sequence[Subscription]) -> Subscription:
        """Who has the fewest; of those who got one longest ago."""
        owned, chosen = self._owned, self._chosen
        self._turn += 1
        found = min(takers, key=lambda each: (len(owned.get(each, ())), chosen.get(each, 0)))
        chosen[found] = self._turn
        return found

    def _end(self, name: str) -> None:
        group = self._groups.pop(name)
        self._disown(name, group)

    def _disown(self, name: str, group: _Group) -> None:
        owned = self._owned.get(group.owner)
        if owned is not None:  # else it is gone
            owned.discard(name)

    def _forget_one(self) -> None:
        """The one unused for longest; those in use are as good as new. They are bounded by what is in memory, so the
        map is, too, if all that are looked at are in use."""
        for name in list(islice(self._groups, _LOOKED_AT_MAX)):
            if not self._groups[name].pending:
                self._end(name)
                return
            self._groups.move_to_end(name)


def _empty(groups: OrderedDict[str, _Group], names: set[str]) -> Work[None]:
    pace = Pace()
    while groups:
        name, _ = groups.popitem()
        names.discard(name)
        if pace.is_full():
            yield
