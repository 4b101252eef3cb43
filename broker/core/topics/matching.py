"""The patterns of subscriptions with wildcards, by which each destination finds its subscribers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any

from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.memory import AUDIENCE_BYTES, MEMBER_BYTES, Kind, Memory
from tandemmq.broker.core.names import Pattern
from tandemmq.broker.core.slices import Pace, Work
from tandemmq.broker.core.trie import PatternTrie
from tandemmq.store.records.message import Destination

# So many members of audiences are looked through in the time of an item of a step.
_MEMBERS = 64


class Watch:
    """One pattern of a subscription. Those that came first come first."""

    __slots__ = ("may_read", "number", "subscription")

    def __init__(self, subscription: Subscription, may_read: Callable[[Destination], bool]) -> None:
        self.number = next(_NUMBERS)
        self.subscription = subscription
        self.may_read = may_read


_NUMBERS = itertools.count()
_number = attrgetter("number")


class Audience:
    """The subscriptions that take part in a topic by their patterns. ``topics``: how many topics have this one: all
    that have the same subscriptions share it. So a subscription and a topic take nothing for each other: 600
    subscriptions in 6,000 topics are one tuple. 0: it is for one message, because there is no memory to keep it."""

    __slots__ = ("expensive", "members", "topics")

    def __init__(self, members: tuple[Subscription, ...]) -> None:
        self.members: tuple[Any, ...] = members  # Subscriptions, of the kind that topics have
        self.topics = 0
        self.expensive = sum(each.is_expensive for each in members)

    @property
    def bytes(self) -> int:
        return AUDIENCE_BYTES + MEMBER_BYTES * len(self.members)


NO_AUDIENCE = Audience(())


class Watching:
    """The patterns for one kind of destination. ``version``: how many have come so far."""

    __slots__ = ("_audiences", "_by_members", "_memory", "_patterns", "version")

    def __init__(self, memory: Memory) -> None:
        self._patterns: PatternTrie[Watch] = PatternTrie()
        self._memory = memory
        self._audiences: dict[Audience, None] = {}
        # Of each members one of the audiences, which topics take that come to have the same.
        self._by_members: dict[tuple[Subscription, ...], Audience] = {}
        self.version = 0

    def add(self, pattern: Pattern, watch: Watch) -> None:
        self._patterns.add(pattern, watch)
        self.version += 1

    def remove(self, pattern: Pattern, watch: Watch) -> None:
        """KeyError when it is not there. ``forget`` follows when all patterns of its subscription are removed."""
        self._patterns.remove(pattern, watch)

    def of(self, name: str) -> list[Watch]:
        """Those with a pattern that matches ``name``, each as often as it has one, the oldest first."""
        return sorted(self._patterns.matching(name), key=_number)

    # ---- audiences

    def audience(self, topic: Destination, former: Audience, named: Collection[Subscription]) -> Audience:
        """Who takes part in ``topic`` now, but for those ``named``, who do so anyway. ``former``: who did when it was
        last asked, which ``topic`` gives up."""
        members = dict.fromkeys(each for each in former.members if each.is_open)
        for watch in self.of(topic.name):
            subscription = watch.subscription
            if subscription not in members and subscription not in named and watch.may_read(topic):
                members[subscription] = None
        key = tuple(members)
        if former.topics and key == former.members:
            return former
        self.leave(former)
        if not key:
            return NO_AUDIENCE
        found = self._by_members.get(key)
        if found is None:
            found = Audience(key)
            if not self._memory.has_room_for_state:
                return found
            self._audiences[found] = None
            self._by_members[key] = found
            self._memory.add(Kind.STATE, found.bytes)
        found.topics += 1
        return found

    def leave(self, audience: Audience) -> None:
        """One of its topics has it no more."""
        if audience.topics:
            audience.topics -= 1
            if not audience.topics:
                self._end(audience)

    def forget(self, subscription: Subscription) -> Work[None]:
        """``subscription``, which is not open any more and has no pattern, leaves all audiences, in steps."""
        pace = Pace()
        for audience in list(self._audiences):
            members = audience.members
            if subscription in members and audience.topics:
                self._end(audience)
                audience.members = tuple(each for each in members if each is not subscription)
                audience.expensive = sum(each.is_expensive for each in audience.members)
                if audience.members:
                    self._audiences[audience] = None
                    self._by_members.setdefault(audience.members, audience)
                    self._memory.add(Kind.STATE, audience.bytes)
                else:
                    audience.topics = 0
            if pace.is_full(1 + len(members) // _MEMBERS):
                yield

    def _end(self, audience: Audience) -> None:
        del self._audiences[audience]
        if self._by_members.get(audience.members) is audience:
            del self._by_members[audience.members]
        self._memory.add(Kind.STATE, -audience.bytes)
