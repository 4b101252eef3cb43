"""The retained messages of a broker, one for each topic (MQTT 5.0, 3.3.1.3): a tree by topic level. Pure.

    a/b = 1, a/b/c = 2, x = 3        a -- b (1) -- c (2)
                                     x (3)

What a filter matches is looked up level by level, so that it costs what it finds, and no more than it has to look
through. It may be looked through over several turns of the loop, while messages come and go.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from sortedcontainers import SortedList

from tandemmq.broker.core.slices import ITEMS
from tandemmq.store.records.message import Message

#: What a topic takes in memory beside its message: its levels, and its place in their dictionaries.
TOPIC_BYTES: Final = 600


class Kept:
    """A retained message, and the ``tag`` of its delivery."""

    __slots__ = ("message", "size", "tag", "topic")

    def __init__(self, topic: str, message: Message, tag: int) -> None:
        self.topic = topic
        self.message = message
        self.tag = tag
        self.size = message.size


class _Level:
    """``below``, by name, changes by ``add`` and ``take``."""

    __slots__ = ("_names", "below", "kept")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.kept: Kept | None = None
        self._names: SortedList[str] | None = None  # of those below, where they are many

    def add(self, name: str) -> _Level:
        level = self.below[name] = _Level()
        if self._names is not None:
            self._names.add(name)
        elif len(self.below) > ITEMS:
            self._names = SortedList(self.below)
        return level

    def take(self, name: str) -> None:
        del self.below[name]
        if self._names is not None:
            self._names.remove(name)

    def each(self, *, has_dollar: bool) -> Iterator[_Level]:
        """Those below that stay there meanwhile; without ``has_dollar`` none whose names begin with $. Of many no more
        than ITEMS are noted at a time: whoever looks may take long, and many may look."""
        names = self._names
        some = list(self.below) if names is None else list(islice(names, ITEMS))
        while some:
            for name in some:
                level = self.below.get(name)
                if level is not None and (has_dollar or name[:1] != "$"):
                    yield level
            if names is None or len(some) < ITEMS:
                return
            some = list(islice(names.irange(some[-1], None, (False, True)), ITEMS))


class Retained:
    """``count`` messages of ``bytes`` bytes. Topics and filters are valid (broker.protocols.mqtt.topics)."""

    __slots__ = ("_expiring", "_sequence", "_top", "bytes", "count")

    def __init__(self) -> None:
        self._top = _Level()
        self._expiring: list[tuple[int, int, Kept]] = []  # by time
        self._sequence = 0
        self.count = 0
        self.bytes = 0

    def get(self, topic: str) -> Kept | None:
        """What is retained for it."""
        level: _Level | None = self._top
        for word in topic.split("/"):
            level = level.below.get(word) if level is not None else None
        return None if level is None else level.kept

    def put(self, topic: str, message: Message, tag: int) -> Kept | None:
        """``message`` is the one of ``topic`` from now on. What it replaces."""
        level = self._top
        for word in topic.split("/"):
            following = level.below.get(word)
            if following is None:
                following = level.add(word)
            level = following
        former, level.kept = level.kept, Kept(topic, message, tag)
        self.bytes += level.kept.size
        if former is None:
            self.count += 1
        else:
            self.bytes -= former.size
        if message.expiration:
            self._sequence += 1
            heappush(self._expiring, (message.expiration, self._sequence, level.kept))
            if len(self._expiring) > 2 * self.count + ITEMS:
                self._forget_replaced()
        return former

    def _forget_replaced(self) -> None:
        """What was replaced need not be looked at when its time comes. As many stay at most as there are messages, so
        that this is done once for so many of them."""
        self._expiring = sorted(each for each in self._expiring if self.get(each[2].topic) is each[2])

    def remove(self, topic: str) -> Kept | None:
        """Nothing is retained for it any more. What was."""
        path = [self._top]
        words = topic.split("/")
        for word in words:
            level = path[-1].below.get(word)
            if level is None:
                return None
            path.append(level)
        former, path[-1].kept = path[-1].kept, None
        if former is None:
            return None
        self.count -= 1
        self.bytes -= former.size
        while words and path[-1].kept is None and not path[-1].below:
            path.pop()
            path[-1].take(words.pop())
        return former

    def expire(self, now: int) -> list[Kept]:
        """Take away what had expired at ``now``, in milliseconds since 1970: ITEMS at most."""
        gone: list[Kept] = []
        expiring = self._expiring
        for _ in range(ITEMS):
            if not expiring or expiring[0][0] > now:
                break
            kept = heappop(expiring)[2]
            if self.get(kept.topic) is kept:
                self.remove(kept.topic)
                gone.append(kept)
        return gone

    def matching(self, topic_filter: str, now: int) -> Iterator[Message | None]:
        """Those of the topics that match, but for what had expired at ``now``. None: so many levels were looked
        through that it is time for a pause; until the next is asked for messages may come and go, and then those of
        topics that were not passed yet are found as they are then. New topics may be missed."""
        words = topic_filter.split("/")
        has_rest = words[-1] == "#"
        if has_rest:
            del words[-1]  # MQTT 5.0, 4.7.1.2: also the level above
        looked_at = 0
        # Levels to be looked at, with the number of words that led there; one more than there are: any led there.
        waiting: list[tuple[Iterator[_Level], int]] = [(iter((self._top,)), 0)]
        while waiting:
            level = next(waiting[-1][0], None)
            if level is None:
                waiting.pop()
                continue
            depth = waiting[-1][1]
            looked_at += 1
            if looked_at % ITEMS == 0:
                yield None
            if depth < len(words):
                word = words[depth]
                if word != "+":
                    below = level.below.get(word)
                    if below is not None:
                        waiting.append((iter((below,)), depth + 1))
                    continue
            else:
                kept = level.kept
                if kept is not None and not 0 < kept.message.expiration <= now:
                    yield kept.message
                if not has_rest:
                    continue
            # MQTT-4.7.2-1: a wildcard at the beginning does not match topics that begin with $.
            following = level.each(has_dollar=level is not self._top)
            waiting.append((following, min(depth + 1, len(words))))
