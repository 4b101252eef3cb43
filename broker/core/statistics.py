"""The figures of an engine's queues and topics, as plain values for whoever shows them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tandemmq.broker.core.destinations import Destinations
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import Work, pieces
from tandemmq.broker.core.topics.topic import Topic

Figures = dict[str, Any]

# Of a queue that no client has named since the store was opened.
NOTHING_YET = {"unacknowledged": 0, "consumers": 0, "enqueued": 0, "dequeued": 0, "dispatched": 0}


def statistics(destinations: Destinations, memory: Memory, counts: dict[str, int]) -> Work[Figures]:
    """``queues``, ``topics`` and ``subscriptions`` (durable ones) as lists of dicts, totals in ``counts``.

    In steps; what begins or ends meanwhile may be included or not.
    """
    queues: list[Figures] = []
    topics: list[Figures] = []
    subscriptions: list[Figures] = []
    sums: Counter[str] = Counter()
    for piece in pieces(list(destinations.by_name.values())):
        for target in piece:
            if isinstance(target, Queue):
                figures = _figures(target)
                queues.append({"name": target.destination.name} | figures)
                sums.update(figures)
                sums["enqueued_total"] += target.enqueued
            else:
                topics.append(_topic_figures(target, sums))
        yield
    for sleeping in pieces(list(destinations.asleep())):
        queues += [{"name": owner.destination.name, "messages": owner.count} | NOTHING_YET for owner in sleeping]
        sums["messages"] += sum(owner.count for owner in sleeping)
        yield
    queue_sums = {"queues": len(queues), "messages": sums["messages"], "consumers": sums["consumers"]}
    for durables in pieces(destinations.parts()):
        for durable in durables:
            names = {"name": durable.name, "client_id": durable.client_id, "topic": durable.destination.name}
            figures = _figures(durable)
            subscriptions.append(names | figures)
            sums.update(figures)
        yield
    return {
        "queues": queues,
        "queue_sums": queue_sums,
        "subscriptions": subscriptions,
        "topics": topics,
        "counts": {
            **counts,
            "messages": sums["messages"],
            "unacknowledged": sums["unacknowledged"],
            "enqueued_total": sums["enqueued_total"],
            "dequeued_total": sums["dequeued"],
            "dispatched_total": sums["dispatched"] + sums["topic_dispatched"],
            "topic_messages_dropped_total": sums["topic_dropped"],
            "memory_limit_bytes": memory.limit,
            "memory_used_bytes": memory.used,
            **{f"memory_{kind}_bytes": count for kind, count in memory.by_kind.items()},
        },
    }


def _topic_figures(topic: Topic, sums: Counter[str]) -> Figures:
    dropped = topic.dropped_total
    sums["enqueued_total"] += topic.enqueued
    sums["topic_dispatched"] += topic.dispatched
    sums["topic_dropped"] += dropped
    return {
        "name": topic.destination.name,
        "consumers": len(topic.subscribers),
        "durable_subscriptions": len(topic.durables),
        "enqueued": topic.enqueued,
        "dispatched": topic.dispatched,
        "dropped": dropped,
    }


def _figures(queue: Queue) -> dict[str, int]:
    return {
        "messages": queue.count,
        "unacknowledged": queue.in_flight,
        "consumers": len(queue.consumers),
        "enqueued": queue.enqueued,
        "dequeued": queue.dequeued,
        "dispatched": queue.dispatched,
    }
