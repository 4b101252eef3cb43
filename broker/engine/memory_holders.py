"""Stop deliveries to connections that hold too much of the broker's memory until they release some; list the largest
holders.

See broker.core.memory for the rule. A connection that is held back is checked every RETRY_SECONDS, and reported
after a second: in the log once, in ``status`` as long as it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from heapq import nlargest
from itertools import chain, islice
from typing import Any

from tandemmq import log_events
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.destinations import Destinations
from tandemmq.broker.core.memory import RETRY_SECONDS, Holder, Kind, Memory
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.slices import Work, pieces
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.broker.engine.advisories import name_of
from tandemmq.broker.engine.part import Timer
from tandemmq.broker.engine.ports import CallLater

log = logging.getLogger(__name__)

# Maximum number of connections, and of holders, that are named.
NAMED_MAX = 20
LARGEST_SHOWN = 10

Figures = dict[str, Any]


class MemoryHolders:
    """Holds back connections that hold too much memory, and lists the largest holders. ``clients``: clients of the
    engine. ``call_later(seconds, function)``: method of the event loop."""

    def __init__(
        self,
        memory: Memory,
        clients: Collection[Client],
        destinations: Destinations,
        call_later: CallLater,
    ) -> None:
        self._memory = memory
        self._clients = clients
        self._destinations = destinations
        self._retry = Timer(call_later, self._continue_held_back)
        self._logged: set[Holder] = set()
        self.total = 0  # number of times that a connection was held back
        memory.on_held_back = self._await

    def _await(self) -> None:
        self.total += 1
        self._retry.set(RETRY_SECONDS)

    def _continue_held_back(self) -> None:
        for holder in list(self._memory.held_back):
            holder.retry()
        if self._memory.held_back:
            self._retry.set(RETRY_SECONDS)

    def tick(self, now: int) -> None:
        """Log, once a second, connections that are newly held back."""
        held_back = self._memory.held_back
        if not held_back and not self._logged:
            return
        self._logged.intersection_update(held_back)
        for client in self._held_back():
            if client.holder not in self._logged:
                self._logged.add(client.holder)
                log.warning("%s", sentence(_figures(client), self._memory.limit), extra=log_events.MEMORY_HELD)

    def _held_back(self) -> list[Client]:
        """Return clients that are held back, at most NAMED_MAX."""
        if not self._memory.held_back:
            return []
        return list(islice((client for client in self._clients if client.holder.is_held_back), NAMED_MAX))

    def held_back(self) -> list[Figures]:
        """Return the connections that are held back, at most NAMED_MAX, as plain values."""
        return [_figures(client) for client in self._held_back()]

    @property
    def counts(self) -> dict[str, int]:
        """Totals for ``status``."""
        return {"connections_held_back": len(self._memory.held_back), "connections_held_back_total": self.total}

    def largest(self) -> Work[list[Figures]]:
        """Return the largest holders, connections and destinations, the largest first; found in steps."""
        found: list[Figures] = []
        for clients in pieces(list(self._clients)):
            largest = nlargest(LARGEST_SHOWN, clients, key=_bytes)
            found = _most(found + [_figures(client) for client in largest])
            yield
        destinations = self._destinations
        for some in pieces(chain(list(destinations.by_name.values()), destinations.parts())):
            held = [each for each in some if not isinstance(each, Topic) and each.share.used]
            found = _most(found + [_figures_of(queue) for queue in nlargest(LARGEST_SHOWN, held, key=_used)])
            yield
        return found


def _most(figures: list[Figures]) -> list[Figures]:
    return nlargest(LARGEST_SHOWN, (each for each in figures if each["bytes"]), key=lambda each: int(each["bytes"]))


def _used(queue: Queue) -> int:
    return queue.share.used


def _bytes(client: Client) -> int:
    holder = client.holder
    own = holder.by_kind
    return holder.bytes + sum(own.values()) - own[Kind.OUTPUT]


def _figures(client: Client) -> Figures:
    holder = client.holder
    own = {str(kind): count for kind, count in holder.by_kind.items() if count}
    delivered = holder.bytes - holder.by_kind[Kind.OUTPUT]
    return {
        "connection": name_of(client),
        "client_id": client.id,
        "user": client.principal.name,
        "peer": client.connection.peer,
        "bytes": _bytes(client),
        "delivered": delivered,
        **own,
        "is_held_back": holder.is_held_back,
    }


def _figures_of(queue: Queue) -> Figures:
    figures: Figures = {"destination": str(queue.destination), "bytes": queue.share.used}
    if queue.subscription_key is not None:
        figures["subscription"] = queue.subscription_key
    return figures


def sentence(figures: Figures, limit: int) -> str:
    """Return an entry of ``MemoryHolders.held_back`` as a sentence."""
    return (
        f"connection {figures['connection']} ({figures['peer']}, user {figures['user']}) receives nothing: "
        f"it holds {figures['delivered']} bytes that it has not acknowledged and {figures.get('output', 0)} that it "
        f"has not read, more than is left of broker.memory_limit ({limit} bytes)"
    )
