"""The figures of an engine's queues and topics, as plain values for whoever shows them."""

from __future__ import annotations

from typing import Any

from broker.core.destinations import Destinations
from broker.core.queue import Queue
from broker.core.subscription import Memory

# Of a queue that nobody has named since the store was opened.
NOTHING_YET = {"unacknowledged": 0, "consumers": 0, "enqueued": 0, "dequeued": 0, "dispatched": 0}


def statistics(destinations: Destinations, memory: Memory, counts: dict[str, int]) -> dict[str, Any]:
    """``queues``, ``topics`` and ``subscriptions`` (durable ones) as lists of dicts, totals in ``counts``."""
    queues = destinations.queues()
    topics = destinations.topics()
    durables = destinations.parts()
    asleep = destinations.asleep()
    everything = [*queues, *durables]
    return {
        "queues": [{"name": queue.destination.name} | _figures(queue) for queue in queues]
        + [{"name": owner.destination.name, "messages": owner.count} | NOTHING_YET for owner in asleep],
        "subscriptions": [
            {"name": durable.name, "client_id": durable.client_id, "topic": durable.destination.name}
            | _figures(durable)
            for durable in durables
        ],
        "topics": [
            {
                "name": topic.destination.name,
                "consumers": len(topic.subscribers),
                "durable_subscriptions": len(topic.durables),
                "enqueued": topic.enqueued,
                "dispatched": topic.dispatched,
                "dropped": topic.dropped_total,
            }
            for topic in topics
        ],
        "counts": {
            **counts,
            "messages": sum(queue.count for queue in everything) + sum(owner.count for owner in asleep),
            "unacknowledged": sum(queue.in_flight for queue in everything),
            "enqueued_total": sum(queue.enqueued for queue in queues) + sum(topic.enqueued for topic in topics),
            "dequeued_total": sum(queue.dequeued for queue in everything),
            "dispatched_total": sum(queue.dispatched for queue in everything)
            + sum(topic.dispatched for topic in topics),
            "topic_messages_dropped_total": sum(topic.dropped_total for topic in topics),
            "memory_stored_bytes": memory.stored,
            "memory_non_persistent_bytes": memory.volatile,
            "memory_transactions_bytes": memory.transactions,
        },
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
