"""Retained messages: the messages of the queue ActiveMQ.MQTT.Retained, in memory as a tree of topic levels.

A PUBLISH with RETAIN also sends a copy of the message to that queue, in the same transaction. All messages of the queue
are delivered to this module, which never returns them to the queue. One message for each topic stays unacknowledged. A
message that is replaced or has expired is acknowledged. A message with an empty payload removes the retained message of
its topic, and is acknowledged after it. In this order, a crash in between does not bring the removed message back. So
retained messages are as durable as stored messages, and count in the broker's memory like unacknowledged messages of a
consumer.

A new master reads them while it serves clients. New subscribers wait until they are read (``is_loaded``).
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
#: Principal of the broker itself.
BROKER: Final = Principal("mqtt", may_everything=True)
#: A prefetch without effect: all messages of the queue must be delivered.
PREFETCH: Final = 1 << 31
#: Retained messages use at most the broker's memory divided by this number: a quarter.
MEMORY_PARTS: Final = 4
#: Interval of the checks for expired messages.
EXPIRY_SECONDS: Final = 1.0
#: Delay before a restart after the engine disconnected this client.
RETRY_SECONDS: Final = 1.0
_RETAINED: Final = "retained"
#: Memory of a topic without its message: its levels and their dictionary entries.
TOPIC_BYTES: Final = 600
# Bits of a number that count the messages of one term. A broker retains fewer messages in one term.
_OF_A_TERM_BITS: Final = 40


class Retaining(InProcessClient):
    """The retained messages of one term. Runs on the loop.

    Limits: ``messages_max``, ``bytes_max``, and a part of the broker's memory. A message above a limit is not retained.
    Messages of a former term stay, even above a limit. ``clock`` returns milliseconds since 1970. ``on_ended`` is
    called when the engine disconnected this client: then a new object must replace it, and call ``take_waiting``.
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
        self._has_former = False  # the queue had messages of a former term when this term began
        self._has_logged_full = False
        self._gone: deque[int] = deque()  # delivery tags to acknowledge
        self._callbacks: dict[Callable[[], None], None] = {}
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
        self._callbacks[then] = None
        self._loop.call_soon(self._call_loaded)

    def take_waiting(self, former: Retaining) -> None:
        """Take over the callbacks that wait for ``former``."""
        for then in former._callbacks:
            self.when_loaded(then)

    def matching(self, topic_filter: str, after: str, until: int) -> Iterator[Message | None]:
        return self.retained.matching(topic_filter, self._clock(), after, until)

    def may_retain(self, topic: str, size: int) -> bool:
        """Return whether a message of ``size`` bytes may be retained for the topic name ``topic`` (see
        ``Hooks.may_retain``)."""
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
        if not self._has_logged_full:
            self._has_logged_full = True
            log.warning(
                "the limit of retained messages is reached (%d of %d bytes, %d in memory): a message with RETAIN for a "
                "new topic is sent but not retained (mqtt.retained_messages_max, mqtt.retained_bytes_max, a quarter "
                "of broker.memory_limit)",
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
            self._set_timer()

    def fail(self, error: ClientError) -> None:
        log.error("retained messages cannot be read: %s", error.message, extra=log_events.MQTT_RETAINED_LOST)

    def close(self, after_flush: bool = True) -> None:
        """Restart this client later: an operator disconnected it, or the broker had an internal error."""
        self._is_subscribed = False
        if not self._is_over:
            self._loop.call_later(RETRY_SECONDS, self._restart)

    def _restart(self) -> None:
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
        # In this order: the replaced message is acknowledged before a message that only removes it.
        if replaced is not None:
            self._give_up(replaced.tag)
        if not is_kept:
            self._give_up(tag)
        self._count_topics()
        if self._callbacks:
            self._loop.call_soon(self._call_loaded)
        return None

    def _give_up(self, tag: int) -> None:
        """Acknowledge a message later in this turn of the loop, or in the next."""
        self._gone.append(tag)  # prove: replaced-retained-ends-first "append" -> "appendleft"
        if len(self._gone) == 1:
            self._loop.call_soon(self._acknowledge)

    def _acknowledge(self) -> None:
        """Acknowledge messages, at most ITEMS in a turn of the loop."""
        gone = self._gone
        for _ in range(min(len(gone), ITEMS)):
            self._engine.handle(self, Ack(_RETAINED, gone[0]))
            gone.popleft()
        if gone:
            self._loop.call_soon(self._acknowledge)

    def _call_loaded(self) -> None:
        if not self._callbacks or not self.is_loaded:
            return
        self._has_former = False
        callbacks, self._callbacks = self._callbacks, {}
        for then in callbacks:
            then()

    def _count_topics(self) -> None:
        """Count the topic levels in the broker's memory. The engine counts the messages, as for any consumer."""
        self.holder.add(Kind.STATE, TOPIC_BYTES * self.retained.count - self.holder.by_kind[Kind.STATE])

    # ---- time

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(EXPIRY_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        """Remove expired messages. Also check whether all messages are loaded, because an empty queue delivers none."""
        if self.is_loaded:
            self._has_former = False
        self._call_loaded()
        expired = self.retained.expire(self._clock())
        for kept in expired:
            self._give_up(kept.tag)
        self._count_topics()
        if len(expired) == ITEMS:
            self._timer = self._loop.call_soon(self._on_timer)
        else:
            self._set_timer()


def number_before(epoch: int) -> int:
    """Return a number that is less than the numbers of all retained messages of the term with this epoch."""
    return epoch << _OF_A_TERM_BITS


def number_of(message: Message) -> int:
    """Return the number of a retained message, which grows with each retained message, in all terms. A message that an
    older version stored has a smaller number."""
    return message.broker_sequence


class Kept:
    """Retained message, and the delivery ``tag`` with which it is acknowledged."""

    __slots__ = ("message", "size", "tag", "topic")

    def __init__(self, topic: str, message: Message, tag: int) -> None:
        self.topic = topic
        self.message = message
        self.tag = tag
        self.size = message.size


class _Level:
    """Level of the tree of topics. ``below``: the levels below, by name; only ``add`` and ``take`` change it."""

    __slots__ = ("_names", "below", "kept")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.kept: Kept | None = None
        self._names: SortedList[str] | None = None  # sorted names of the levels below, if they are many

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
        """Yield the levels below in the order of their names, from the name ``start``. Levels may be removed during the
        iteration; they are then left out. Without ``has_dollar``, names that begin with $ are left out. The iterator
        copies at most ITEMS names at a time, because many long searches may run at once."""
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
    """Retained messages: ``count`` messages with ``bytes`` bytes. Topics and filters must be valid
    (broker.protocols.mqtt.topics)."""

    __slots__ = ("_expiring", "_sequence", "_top", "bytes", "count")

    def __init__(self) -> None:
        self._top = _Level()
        self._expiring: list[tuple[int, int, Kept]] = []  # heap, by expiry time
        self._sequence = 0
        self.count = 0
        self.bytes = 0

    def get(self, topic: str) -> Kept | None:
        """Return the retained message of the topic; None: there is none."""
        level: _Level | None = self._top
        for word in topic.split("/"):
            level = level.below.get(word) if level is not None else None
        return None if level is None else level.kept

    def put(self, topic: str, message: Message, tag: int) -> Kept | None:
        """Retain ``message`` for ``topic``. Return the message that it replaces."""
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
        """Remove the heap entries of messages that were replaced."""
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
        """Remove and return at most ITEMS messages that have expired at ``now``, in milliseconds since 1970."""
        expired: list[Kept] = []
        expiring = self._expiring
        for _ in range(ITEMS):
            if not expiring or expiring[0][0] > now:
                break
            kept = heappop(expiring)[2]
            if self.get(kept.topic) is kept:
                self.remove(kept.topic)
                expired.append(kept)
        return expired

    def matching(self, topic_filter: str, now: int, after: str = "", until: int = NEWEST) -> Iterator[Message | None]:
        """Yield the messages of the matching topics after the topic ``after``, in the order of topics. Messages that
        have expired at ``now`` and messages with a number greater than ``until`` (``number_of``) are left out. None is
        yielded after many levels, as a pause: retained messages may change before the next call, and the search then
        finds the present messages of the topics that it has not visited yet."""
        words = topic_filter.split("/")
        has_rest = words[-1] == "#"
        if has_rest:
            del words[-1]  # MQTT 5.0, 4.7.1.2: also the level above
        passed = after.split("/") if after else []
        looked_at = 0
        # Levels to visit, with their depth, and whether the level above is part of the topic ``after``.
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
