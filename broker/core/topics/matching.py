"""Patterns of subscriptions with wildcards. With them, each destination finds its subscribers."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any

from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import AUDIENCE_BYTES, MEMBER_BYTES, Kind, Memory
from tandemmq.broker.core.names import Pattern
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.trie import PatternTrie
from tandemmq.store.records.message import Destination

# Number of members of audiences whose examination costs as much as one item of a step.
_MEMBERS = 64
# A subscription remembers at most this number of ended audiences, plus the number of audiences that it is in.
_ENDED = 64


class Watch:
    """Pattern of a subscription. ``number``: older watches have lower numbers."""

    __slots__ = ("may_read", "number", "subscription")

    def __init__(self, subscription: Subscription, may_read: Callable[[Destination], bool]) -> None:
        self.number = next(_NUMBERS)
        self.subscription = subscription
        self.may_read = may_read


_NUMBERS = itertools.count()
_number = attrgetter("number")


class Audience:
    """Subscriptions that take part in a topic by their patterns. All topics with the same subscriptions share one
    audience. So a pair of subscription and topic takes no memory: 600 subscriptions in 6,000 topics are one tuple.
    ``topics``: number of topics that have this audience; 0: the audience is used for one message only, because there is
    no memory to keep it."""

    __slots__ = ("expensive", "members", "number", "topics")

    def __init__(self, members: tuple[Subscription, ...]) -> None:
        self.number = 0  # its number in Watching
        self.topics = 0
        self.members: tuple[Any, ...] = members  # subscriptions of topics
        self.expensive = sum(each.is_expensive for each in members)

    @property
    def bytes(self) -> int:
        return AUDIENCE_BYTES + MEMBER_BYTES * len(self.members)


NO_AUDIENCE = Audience(())


class _Places:
    """Numbers of the audiences that contain one subscription, and of some ended audiences. ``count``: number of the
    audiences that have not ended. A number takes eight bytes; a dictionary would take ten times as much."""

    __slots__ = ("count", "numbers")

    def __init__(self) -> None:
        self.count = 0
        self.numbers = array("Q")


class Watching:
    """Patterns for one kind of destination. ``version``: number of patterns added so far."""

    __slots__ = ("_audiences", "_by_members", "_memory", "_number", "_patterns", "_places", "version")

    def __init__(self, memory: Memory) -> None:
        self._patterns: PatternTrie[Watch] = PatternTrie()
        self._memory = memory
        self._audiences: dict[int, Audience] = {}
        self._number = 0  # number of the latest audience
        self._places: dict[Subscription, _Places] = {}
        # One of the audiences for each set of members; later topics with the same members share it.
        self._by_members: dict[tuple[Subscription, ...], Audience] = {}
        self.version = 0

    def add(self, pattern: Pattern, watch: Watch) -> None:
        self._patterns.add(pattern, watch)
        self.version += 1

    def remove(self, pattern: Pattern, watch: Watch) -> None:
        """Remove a pattern. KeyError when it is not there. ``forget`` follows when all patterns of its subscription are
        removed."""
        self._patterns.remove(pattern, watch)

    def of(self, name: str) -> list[Watch]:
        """Return the watches with a pattern that matches ``name``, once per pattern, the oldest first."""
        return sorted(self._patterns.matching(name), key=_number)

    # ---- audiences

    def audience(self, topic: Destination, former: Audience, named: Collection[Subscription]) -> Audience:
        """Return the subscriptions of patterns that match ``topic`` now, without those in ``named``, which take part by
        their name. ``former`` is the last result: its members may read ``topic``, and are not checked again. The topic
        leaves ``former``, unless there is no memory to keep the new result."""
        members = dict.fromkeys(each for each in former.members if each.is_open)
        stayed = len(members)
        for watch in self.of(topic.name):
            subscription = watch.subscription
            is_new = subscription.is_open and subscription not in members and subscription not in named
            if is_new and watch.may_read(topic):
                members[subscription] = None
        key = tuple(members)
        if former.topics and key == former.members:
            return former
        found = self._by_members.get(key) if key else NO_AUDIENCE
        if found is None:
            if not self._memory.has_room_for_pairs:
                return Audience(key)
            if former.topics == 1:  # no other topic has ``former``: change it in place
                self._change(former, key, key[stayed:])
                return former
            found = Audience(key)
            self._begin(found)
        if key:
            found.topics += 1
        self.leave(former)  # called last, so that subscriptions in both audiences keep their ``_Places``
        return found

    def leave(self, audience: Audience) -> None:
        """Remove one topic from the audience."""
        if audience.topics:
            audience.topics -= 1
            if not audience.topics:
                self._end(audience)

    def forget(self, subscription: Subscription) -> Work[None]:
        """Remove the closed ``subscription``, which has no pattern any more, from all audiences, in steps. Other closed
        subscriptions in these audiences are removed, too, because a client often ends many at once."""
        places = self._places.get(subscription)
        if places is None:
            return
        pace = Pace()
        for number in places.numbers:
            if not places.count:
                return
            audience = self._audiences.get(number)
            items = 1
            if audience is not None:
                items += len(audience.members) // _MEMBERS
                if subscription in audience.members:
                    self._change(audience, tuple(each for each in audience.members if each.is_open), ())
            if pace.is_full(items):
                yield

    def _change(self, audience: Audience, members: tuple[Subscription, ...], came: Sequence[Subscription]) -> None:
        """Change the members of an audience to ``members``: its open members, followed by the new members ``came``."""
        is_one_closed = len(members) - len(came) < len(audience.members)
        closed = [each for each in audience.members if not each.is_open] if is_one_closed else []
        self._take_out(audience)
        audience.members = members
        audience.expensive += sum(each.is_expensive for each in came) - sum(each.is_expensive for each in closed)
        if members:
            self._by_members.setdefault(members, audience)
            self._memory.add(Kind.STATE, audience.bytes)
        else:
            audience.topics = 0
            del self._audiences[audience.number]
        for each in came:
            self._came(each, audience.number)
        for each in closed:
            self._left(each)

    def _begin(self, audience: Audience) -> None:
        self._number = number = audience.number = self._number + 1
        self._audiences[number] = audience
        self._by_members[audience.members] = audience
        self._memory.add(Kind.STATE, audience.bytes)
        for each in audience.members:
            self._came(each, number)

    def _end(self, audience: Audience) -> None:
        del self._audiences[audience.number]
        self._take_out(audience)
        for each in audience.members:
            self._left(each)

    def _take_out(self, audience: Audience) -> None:
        """Stop counting the audience, and do not share it with more topics."""
        if self._by_members.get(audience.members) is audience:
            del self._by_members[audience.members]
        self._memory.add(Kind.STATE, -audience.bytes)

    def _came(self, subscription: Subscription, number: int) -> None:
        """Record that ``subscription`` is also in the audience of that number."""
        places = self._places.get(subscription)
        if places is None:
            places = self._places[subscription] = _Places()
        places.numbers.append(number)
        places.count += 1

    def _left(self, subscription: Subscription) -> None:
        """Record that ``subscription`` left one audience."""
        places = self._places[subscription]
        places.count -= 1
        if not places.count:
            del self._places[subscription]
        elif len(places.numbers) > 2 * places.count + _ENDED and subscription.is_open:
            places.numbers = array("Q", [each for each in places.numbers if each in self._audiences])
