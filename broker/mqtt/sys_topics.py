"""Figures of the broker on MQTT topics below ``$SYS/broker/``, with the names that mosquitto uses.

The figures are not stored. A subscriber to topics that begin with ``$SYS`` gets them at once, like retained messages,
and again at each interval. It needs the right to read those topics.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

from tandemmq import __version__
from tandemmq.broker.core.commands import Send
from tandemmq.broker.core.containment import ERROR_OF_BROKER
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import InProcessClient, in_turns
from tandemmq.broker.mqtt.retained_messages import BROKER
from tandemmq.broker.protocols.mqtt.topics import destination_of, matches
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.message_ids import broker_producer

log = logging.getLogger(__name__)

PREFIX: Final = "$SYS"
_BROKER: Final = f"{PREFIX}/broker/"
#: Number of intervals after which a figure expires that waits for an absent client.
_INTERVALS: Final = 2

#: Figures of the broker: topics, and keys of their values in its counts.
_COUNTED: Final = {
    "messages/received": "enqueued_total",
    "messages/sent": "dispatched_total",
    "messages/stored": "messages",
    "heap/current": "memory_used_bytes",
}
#: Figures of MQTT clients: topics, and keys of their values.
_OF_CLIENTS: Final = {
    "clients/connected": "mqtt_clients",
    "clients/expired": "mqtt_sessions_expired_total",
    "retained messages/count": "mqtt_retained_messages",
    "retained messages/bytes": "mqtt_retained_bytes",
    "wills/published": "mqtt_wills_published_total",
}
_SUBSCRIPTIONS: Final = "subscriptions/count"


class SysTopics:
    """Publishes the figures of one term. Runs on the loop. ``interval_ms`` 0: no figures are published. ``counts``
    returns the figures of MQTT clients."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        interval_ms: int,
        started: float,
        clock: Callable[[], int],
        counts: Callable[[], dict[str, int]],
    ) -> None:
        self._engine = engine
        self._name = name
        self._interval_ms = interval_ms
        self._started = started
        self._clock = clock
        self._counts = counts
        self._counted: dict[str, int] = {}
        self._is_requested = asyncio.Event()
        self._producer = broker_producer(f"ID:{name}-{engine.store.epoch}-sys")
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        if interval_ms:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="mqtt-sys")

    def end(self) -> None:
        """End the term."""
        if self._task is not None:
            self._task.cancel()

    def matching(self, topic_filter: str) -> Iterator[Message]:
        """Yield figures as retained messages (``Hooks.retained``). Figures that take long to count have their last
        known value, or are left out until they are known."""
        if not self._interval_ms or not topic_filter.startswith(PREFIX):
            return
        self._is_requested.set()
        for topic, text in self._figures().items():
            if matches(topic_filter, topic):
                yield self._message(topic, text)

    def _figures(self) -> dict[str, str]:
        """Return all known figures, by topic."""
        counts = self._counts()
        found = {
            "version": f"tandemmq {__version__}",
            "name": self._name,
            "role": "master",
            "epoch": str(self._engine.store.epoch),
            "uptime": f"{time.monotonic() - self._started:.0f} seconds",
            **{topic: str(counts[key]) for topic, key in _OF_CLIENTS.items()},
            **{topic: str(figure) for topic, figure in self._counted.items()},
        }
        return {_BROKER + topic: text for topic, text in found.items()}

    def _message(self, topic: str, text: str) -> Message:
        destination, now = destination_of(topic), self._clock()
        return Message(
            destination,
            f"{self._producer}:{next(self._numbers)}",
            text.encode(),
            BodyKind.TEXT,
            timestamp=now,
            expiration=now + _INTERVALS * self._interval_ms,
            original_destination=destination,
        )

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._is_requested.wait(), self._interval_ms / 1000)
            except TimeoutError:
                pass
            self._is_requested.clear()
            try:
                await self._publish()
            except Exception:
                log.exception("$SYS figures %s", ERROR_OF_BROKER)

    async def _publish(self) -> None:
        """Publish the figures that have subscribers."""
        subscribed = []
        topics = dict.fromkeys((*self._figures(), *(_BROKER + each for each in (*_COUNTED, _SUBSCRIPTIONS))))
        for topic in topics:
            if self._engine.is_listened_to(destination_of(topic), PREFIX):
                subscribed.append(topic)
            await asyncio.sleep(0)
        if not subscribed:
            return
        await self._count()
        figures = self._figures()
        client = InProcessClient(self._engine, BROKER, f"mqtt-sys-{next(self._numbers)}", "MQTT: $SYS")
        try:
            await client.do_all([Send(self._message(topic, figures[topic])) for topic in subscribed])
        finally:
            self._engine.closed(client)

    async def _count(self) -> None:
        """Count the figures that depend on all destinations."""
        figures = await in_turns(self._engine.statistics())
        listeners = sum(topic["consumers"] for topic in figures["topics"])
        self._counted = {
            **{topic: figures["counts"][key] for topic, key in _COUNTED.items()},
            _SUBSCRIPTIONS: listeners + len(figures["subscriptions"]),
        }
