"""The patterns of subscriptions with wildcards, by which each destination finds its subscribers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from operator import attrgetter

from tandemmq.broker.core.delivery import Subscription
from tandemmq.broker.core.names import Pattern
from tandemmq.broker.core.trie import PatternTrie
from tandemmq.store.records.message import Destination


class Watch:
    """One pattern of a subscription. Those that came first come first."""

    __slots__ = ("may_read", "number", "subscription")

    def __init__(self, subscription: Subscription, may_read: Callable[[Destination], bool]) -> None:
        self.number = next(_NUMBERS)
        self.subscription = subscription
        self.may_read = may_read


_NUMBERS = itertools.count()
_number = attrgetter("number")


class Watching:
    """The patterns for one kind of destination. ``version``: how many have come so far."""

    __slots__ = ("_patterns", "version")

    def __init__(self) -> None:
        self._patterns: PatternTrie[Watch] = PatternTrie()
        self.version = 0

    def add(self, pattern: Pattern, watch: Watch) -> None:
        self._patterns.add(pattern, watch)
        self.version += 1

    def remove(self, pattern: Pattern, watch: Watch) -> None:
        """KeyError when it is not there."""
        self._patterns.remove(pattern, watch)

    def of(self, name: str) -> list[Watch]:
        """Those with a pattern that matches ``name``, each as often as it has one, the oldest first."""
        return sorted(self._patterns.matching(name), key=_number)
