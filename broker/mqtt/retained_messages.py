"""Retained messages: the messages of the queue ActiveMQ.MQTT.Retained, as a tree for the look-up of topics.

A client that has a message retained sends a copy of it to that queue, in one transaction with the message itself. All
messages of the queue are delivered to this module and never given back: one for each topic stays unacknowledged; one
that is replaced or has expired is acknowledged, and so is one with an empty payload, which ends the topic's message.
The old one is acknowledged first, so that it does not come back alone after a crash in between. So retained messages
survive and fail over like stored messages, and count in the broker's memory like those of a consumer.

A new master reads them while it serves already. Until they are read a subscriber waits for them (``is_loaded``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from sortedcontainers import SortedList

from tandemmq import log_events
from tandemmq.broker.core.commands import Ack, AckMode, ClientError, Subscribe
from tandemmq.broker.core.memory import Kind
from tandemmq.broker.core.names import MQTT_RETAINED
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.slices import ITEMS
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import InProcessClient
from tandemmq.broker.protocols.mqtt.conversation import NEWEST
from tandemmq.broker.protocols.mqtt.topics import topic_of
from tandemmq.store.records.message import Message

log = logging.getLogger(__name__)
#: User that acts for the broker itself.
BROKER: Final = Principal("mqtt", may_everything=True)
#: The prefetch is no limit: only the limits of retained messages are.
PREFETCH: Final = 1 << 31
#: Retained messages use at most this part of the broker's memory: a quarter.
MEMORY_PARTS: Final = 4
#: Interval of the checks for expired messages.
EXPIRY_SECONDS: Final = 1.0
#: Delay after the engine disconnected.
AGAIN_SECONDS: Final = 1.0
_RETAINED: Final = "retained"
#: Memory of a topic beside its message: its levels, and its place in their dictionaries.
TOPIC_BYTES: Final = 600
# Bits for the messages of one term, more than a broker ever retains in it.
_OF_A_TERM_BITS: Final = 40


class Retaining(InProcessClient):
    """The retained messages of one term. On the loop.

    ``messages_max`` and ``bytes_max`` limit them, and a part of the broker's memory: one more is not kept. Messages
    that a former term kept stay, even above the limit. ``clock`` returns milliseconds since 1970. ``on_ended`` is
    called when the engine disconnected: a new object must then take its place, and call ``take_waiting``.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], int],
        messages_max: int,
        bytes_max: int,
        on_ended: Callable[[Retaining], None],
    ) -> None:
        self.retained = Retained()
        self._clock = clock
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._on_ended = on_ended
        self._is_subscribed = self._has_begun = False
        self._has_former = False  # messages of a former term are being read
        self._has_told_full = False
        self._gone: deque[int] = deque()  # tags of messages to be acknowledged
        self._are_told: dict[Callable[[], None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._is_over = False
        super().__init__(engine, BROKER, "mqtt-retained", "MQTT: retained messages", is_bounded=True)
        if engine.waiting_in(MQTT_RETAINED) is not None:
            self._has_former = True
            self._subscribe()

    def end(self) -> None:
        """End the term."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    # ---- requests of sessions

    @property
    def is_loaded(self) -> bool:
        if not self._has_begun:
            return True
        return self._is_subscribed and not self._engine.waiting_in(MQTT_RETAINED)

    def when_loaded(self, then: Callable[[], None]) -> None:
        self._are_told[then] = None
        self._loop.call_soon(self._tell_loaded)

    def take_waiting(self, former: Retaining) -> None:
        """Take over the callers that wait for ``former``."""
        for then in former._are_told:
            self.when_loaded(then)

    def matching(self, topic_filter: str, after: str, until: int) -> Iterator[Message | None]:
        return self.retained.matching(topic_filter, self._clock(), after, until)

    def may_retain(self, topic: str, size: int) -> bool:
        """See Hooks; ``topic`` is a topic name."""
        if not self._has_begun:
            self._subscribe()
        return not size or self._has_room(topic, size)

    def _has_room(self, topic: str, size: int) -> bool:
        retained = self.retained
        former = retained.get(topic)
        more = size - (0 if former is None else former.size)
        held = self.holder.bytes + TOPIC_BYTES * retained.count
        if (
            retained.count + (former is None) <= self._messages_max
            and retained.bytes + more <= self._bytes_max
            and (more <= 0 or held + more <= self._engine.memory.limit // MEMORY_PARTS)
        ):
            return True
        if not self._has_told_full:
            self._has_told_full = True
            log.warning(
                "retained messages fill their room (%d of %d bytes, %d in memory): what is published with RETAIN for a "
                "new topic is sent, and not kept (mqtt.retained_messages_max, mqtt.retained_bytes_max, a quarter of "
                "broker.memory_limit)",
                retained.count,
                retained.bytes,
                held,
                extra=log_events.MQTT_RETAINED_FULL,
            )
        return False

    # ---- the queue

    def _subscribe(self) -> None:
        self._has_begun = True
        subscribe = Subscribe(_RETAINED, MQTT_RETAINED, AckMode.INDIVIDUAL, prefetch=PREFETCH, receipt=_RETAINED)
        self._engine.handle(self, subscribe)

    def receipt(self, receipt: object) -> None:
        if receipt == _RETAINED:
            self._is_subscribed = True
            self._look_later()

    def fail(self, error: ClientError) -> None:
        log.error("retained messages cannot be read: %s", error.message, extra=log_events.MQTT_RETAINED_LOST)

    def close(self, after_flush: bool = True) -> None:
        """End the session and restart it later: an operator disconnected it, or the broker had an internal error."""
        self._is_subscribed = False
        if not self._is_over:
            self._loop.call_later(AGAIN_SECONDS, self._end_unasked)

    def _end_unasked(self) -> None:
        if not self._is_over:
            self.end()
            self._on_ended(self)

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        of = message.original_destination
        topic = "" if of is None else topic_of(of.name)
        if message.body and topic and (self._has_former or self._has_room(topic, message.size)):
            replaced = self.retained.put(topic, message, tag)
            is_kept = True
        else:
            replaced = self.retained.remove(topic)
            is_kept = False
        # In this order: a message that ends another one is acknowledged after it.
        if replaced is not None:
            self._give_up(replaced.tag)
        if not is_kept:
            self._give_up(tag)
        self._count_topics()
        if self._are_told:
            self._loop.call_soon(self._tell_loaded)
        return None

    def _give_up(self, tag: int) -> None:
        """Acknowledge a message soon."""
        self._gone.append(tag)  # prove: replaced-retained-ends-first "append" -> "appendleft"
        if len(self._gone) == 1:
            self._loop.call_soon(self._acknowledge)

    def _acknowledge(self) -> None:
        """Acknowledge messages, at most ITEMS in a turn."""
        gone = self._gone
        for _ in range(min(len(gone), ITEMS)):
            self._engine.handle(self, Ack(_RETAINED, gone[0]))
            gone.popleft()
        if gone:
            self._loop.call_soon(self._acknowledge)

    def _tell_loaded(self) -> None:
        if not self._are_told or not self.is_loaded:
            return
        self._has_former = False
        told, self._are_told = self._are_told, {}
        for then in told:
            then()

    def _count_topics(self) -> None:
        """Count the topic levels in the broker's memory; messages count like those of any consumer."""
        self.holder.add(Kind.STATE, TOPIC_BYTES * self.retained.count - self.holder.by_kind[Kind.STATE])

    # ---- time

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(EXPIRY_SECONDS, self._look)

    def _look(self) -> None:
        """Remove expired messages, and check whether all are loaded, in case no delivery does so."""
        if self.is_loaded:
            self._has_former = False
        self._tell_loaded()
        gone = self.retained.expire(self._clock())
        for kept in gone:
            self._give_up(kept.tag)
        self._count_topics()
        if len(gone) == ITEMS:
            self._timer = self._loop.call_soon(self._look)
        else:
            self._look_later()


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
        """Yield the messages of the matching topics after ``after``, in the order of topics, except for those that had
        expired at ``now``, and for those newer than ``until`` (``number_of``). None: so many levels were looked through
        that it is time for a pause; before the next one is fetched messages may come and go, and then those of topics
        that were not passed yet are found as they are then."""
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
