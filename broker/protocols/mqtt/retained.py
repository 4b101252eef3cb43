"""The retained messages of a broker, one for each topic (MQTT 5.0, 3.3.1.3): a tree by topic level. Pure.

    a/b = 1, a/b/c = 2, x = 3        a -- b (1) -- c (2)
                                     x (3)

A filter is looked up level by level, so that a search costs what it finds, and no more than it has to look through. A
search may take several turns of the loop, while messages come and go.

Messages are found in the order of their topics: level by level, each in the order of code points, a level before those
below it. So a topic is a position: it divides the found messages from the others, also when messages come and go.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from sortedcontainers import SortedList

from tandemmq.broker.core.slices import ITEMS
from tandemmq.store.records.message import Message

#: Memory of a topic beside its message: its levels, and its place in their dictionaries.
TOPIC_BYTES: Final = 600
#: No number is greater.
NEWEST: Final = (1 << 63) - 1
# Bits for the messages of one term, more than a broker ever retains in it.
_OF_A_TERM_BITS: Final = 40


def number_before(epoch: int) -> int:
    """Return the number below those of all retained messages of that term."""
    return epoch << _OF_A_TERM_BITS


def number_of(message: Message) -> int:
    """Return the number of a retained message: it grows with each one, over all terms. One that was stored before there
    were numbers has a number that is smaller than all of them: it counts the messages of its producer."""
    return message.broker_sequence


class Kept:
    """Retained message, and the ``tag`` of its delivery."""

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

    def each(self, start: str, *, has_dollar: bool) -> Iterator[tuple[str, _Level]]:
        """Yield the levels below that stay there meanwhile, in the order of their names, from the name ``start`` on;
        without ``has_dollar`` none whose names begin with $. Of many no more than ITEMS are noted at a time: a search
        may take long, and there may be many searches."""
        names = self._names
        some = sorted(self.below) if names is None else list(islice(names.irange(start), ITEMS))
        while some:
            for name in some:
                level = self.below.get(name)
                if level is not None and name >= start and (has_dollar or name[:1] != "$"):
                    yield name, level
            if names is None or len(some) < ITEMS:
                return
            some = list(islice(names.irange(some[-1], None, (False, True)), ITEMS))


class Retained:
    """Retained messages: ``count`` of them, with ``bytes`` bytes. Topics and filters are valid
    (broker.protocols.mqtt.topics)."""

    __slots__ = ("_expiring", "_sequence", "_top", "bytes", "count")

    def __init__(self) -> None:
        self._top = _Level()
        self._expiring: list[tuple[int, int, Kept]] = []  # by time
        self._sequence = 0
        self.count = 0
        self.bytes = 0

    def get(self, topic: str) -> Kept | None:
        """Return the retained message of the topic."""
        level: _Level | None = self._top
        for word in topic.split("/"):
            level = level.below.get(word) if level is not None else None
        return None if level is None else level.kept

    def put(self, topic: str, message: Message, tag: int) -> Kept | None:
        """Retain ``message`` for ``topic`` from now on. Return the one that it replaces."""
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
        """Forget the expiry of messages that were replaced. At most as many stay as there are messages, so that this is
        done once for so many of them."""
        self._expiring = sorted(each for each in self._expiring if self.get(each[2].topic) is each[2])

    def remove(self, topic: str) -> Kept | None:
        """Remove the retained message of the topic, and return it."""
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
        """Remove messages that had expired at ``now``, in milliseconds since 1970, ITEMS at most, and return them."""
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

    def matching(self, topic_filter: str, now: int, after: str = "", until: int = NEWEST) -> Iterator[Message | None]:
        """Yield the messages of the topics that match and come behind ``after``, in the order of topics, but for those
        that had expired at ``now``, and for those newer than ``until`` (``number_of``). None: so many levels were
        looked through that it is time for a pause; before the next one is fetched messages may come and go, and then
        those of topics that were not passed yet are found as they are then."""
        words = topic_filter.split("/")
        has_rest = words[-1] == "#"
        if has_rest:
            del words[-1]  # MQTT 5.0, 4.7.1.2: also the level above
        passed = after.split("/") if after else []
        looked_at = 0
        # Levels to be looked at, with their depth, and whether the level above is on the way to ``after``.
        waiting: list[tuple[Iterator[tuple[str, _Level]], int, bool]] = [(iter((("", self._top),)), 0, bool(passed))]
        while waiting:
            name, level = next(waiting[-1][0], ("", None))
            if level is None:
                waiting.pop()
                continue
            depth, is_on_way = waiting[-1][1:]
            if depth:
                is_on_way = is_on_way and name == passed[depth - 1]
            looked_at += 1
            if looked_at % ITEMS == 0:
                yield None
            is_passed = is_on_way
            is_on_way = is_on_way and depth < len(passed)
            start = passed[depth] if is_on_way else ""
            if depth < len(words):
                word = words[depth]
                if word != "+":
                    below = level.below.get(word)
                    if below is not None and word >= start:
                        waiting.append((iter(((word, below),)), depth + 1, is_on_way))
                    continue
            else:
                kept = level.kept
                if (
                    kept is not None
                    and not is_passed
                    and not 0 < kept.message.expiration <= now
                    and number_of(kept.message) <= until
                ):
                    yield kept.message
                if not has_rest:
                    continue
            # MQTT-4.7.2-1: a wildcard at the beginning does not match topics that begin with $.
            following = level.each(start, has_dollar=level is not self._top)
            waiting.append((following, depth + 1, is_on_way))
