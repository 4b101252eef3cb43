"""Figures of an engine's queues and topics, as plain values."""

from __future__ import annotations

from typing import Any

from tandemmq.broker.core.destinations import Destinations
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.core.names import MQTT_SESSION
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import Pace, Work, pieces
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.store.records.message import Destination, DestinationKind

Figures = dict[str, Any]

# Figures of a queue that no client has named since the store was opened.
NOTHING_YET = {"unacknowledged": 0, "consumers": 0, "enqueued": 0, "dequeued": 0, "dispatched": 0}

# The figures of a topic with this number of subscribers count as one item of a step.
_SUBSCRIBERS = 64


class _Sums:
    """Sums over all queues and durable subscriptions."""

    __slots__ = ("consumers", "dequeued", "dispatched", "enqueued", "messages", "sessions", "unacknowledged")

    def __init__(self) -> None:
        self.messages = self.unacknowledged = self.consumers = 0
        self.enqueued = self.dequeued = self.dispatched = self.sessions = 0

    def add(self, figures: dict[str, int]) -> None:
        self.messages += figures["messages"]
        self.unacknowledged += figures["unacknowledged"]
        self.consumers += figures["consumers"]
        self.dequeued += figures["dequeued"]
        self.dispatched += figures["dispatched"]


def statistics(destinations: Destinations, memory: Memory, counts: dict[str, int]) -> Work[Figures]:
    """Return ``queues``, ``topics`` and ``subscriptions`` (durable ones) as lists of dicts, totals in ``counts``.

    It works in steps; destinations that begin or end meanwhile may be included or not.
    """
    queues: list[Figures] = []
    topics: list[Figures] = []
    subscriptions: list[Figures] = []
    sums = _Sums()
    topics_dropped = 0
    pace = Pace()
    for target in list(destinations.by_name.values()):
        items = 1
        sums.enqueued += target.enqueued
        if isinstance(target, Queue):
            figures = figures_of(target)
            queues.append({"name": target.destination.name, **figures})
            sums.add(figures)
            sums.sessions += _is_session(target.destination)
        else:
            figures = topic_figures(target)
            topics.append({"name": target.destination.name, **figures})
            sums.dispatched += target.dispatched
            topics_dropped += figures["dropped"]
            items += figures["consumers"] // _SUBSCRIBERS
        if pace.is_full(items):
            yield
    for sleeping in pieces(list(destinations.asleep())):
        queues += [{"name": owner.destination.name, "messages": owner.count} | NOTHING_YET for owner in sleeping]
        sums.messages += sum(owner.count for owner in sleeping)
        sums.sessions += sum(_is_session(owner.destination) for owner in sleeping)
        yield
    queue_sums = {"queues": len(queues), "messages": sums.messages, "consumers": sums.consumers}
    for durables in pieces(destinations.parts()):
        for durable in durables:
            names = {"name": durable.name, "client_id": durable.client_id, "topic": durable.destination.name}
            figures = figures_of(durable)
            subscriptions.append(names | figures)
            sums.add(figures)
        yield
    return {
        "queues": queues,
        "queue_sums": queue_sums,
        "subscriptions": subscriptions,
        "topics": topics,
        "counts": {
            **counts,
            "messages": sums.messages,
            "unacknowledged": sums.unacknowledged,
            "enqueued_total": sums.enqueued,
            "dequeued_total": sums.dequeued,
            "dispatched_total": sums.dispatched,
            "mqtt_sessions": sums.sessions,
            "topic_messages_dropped_total": topics_dropped,
            "memory_limit_bytes": memory.limit,
            "memory_used_bytes": memory.used,
            "memory_stored_bytes": memory.stored,
            **{f"memory_{kind}_bytes": count for kind, count in memory.by_kind.items()},
        },
    }


def _is_session(queue: Destination) -> bool:
    """Return whether the queue keeps the state of an MQTT session."""
    return queue.kind is DestinationKind.QUEUE and queue.name.startswith(MQTT_SESSION)


def topic_figures(topic: Topic) -> dict[str, int]:
    """Return the figures of one topic."""
    return {
        "consumers": len(topic.subscribers),
        "durable_subscriptions": len(topic.durables),
        "enqueued": topic.enqueued,
        "dispatched": topic.dispatched,
        "dropped": topic.dropped,
    }


def figures_of(queue: Queue) -> dict[str, int]:
    """Return the figures of one queue."""
    return {
        "messages": queue.count,
        "unacknowledged": queue.in_flight,
        "consumers": len(queue.users),
        "enqueued": queue.enqueued,
        "dequeued": queue.dequeued,
        "dispatched": queue.dispatched,
    }
