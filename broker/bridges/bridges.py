"""All bridges of a broker, which begin and end with each term as master; and the durable subscriptions of bridges that
were removed from the settings.

The durable subscriptions of a removed bridge continue to collect messages, although no bridge sends these messages. So
the broker reports the subscriptions, and the operator decides whether to delete them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from tandemmq import log_events
from tandemmq.broker.bridges.link import local_client_id, principal_of, user_of
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.engine.engine import Engine

if TYPE_CHECKING:
    from tandemmq.broker.bridges.bridge import Bridge  # imports aiomqtt, which a broker without bridges does not need

log = logging.getLogger(__name__)

#: Time limit for the disconnect from the other brokers.
END_SECONDS_MAX: Final = 2.0


class Bridges:
    """Begins and ends the bridges. Runs on the loop."""

    def __init__(self, bridges: Sequence[Bridge]) -> None:
        self._bridges = bridges
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: LeftSubscriptions | None = None

    def principals(self) -> list[Principal]:
        """Return the principals of the bridges. The engine needs them before the bridges begin, because scheduled
        messages of bridges may be due."""
        return [principal_of(each.plan.name) for each in self._bridges]

    def begin(self, engine: Engine, message_ids: str) -> None:
        """Begin a term with ``engine``. ``message_ids``: prefix of message ids, unique to this broker and term."""
        self._left = LeftSubscriptions(engine, [each.plan.client_id for each in self._bridges])
        for bridge in self._bridges:
            name = f"bridge {bridge.plan.name}"
            task = asyncio.create_task(bridge.run(engine, f"{message_ids}-{bridge.plan.name}"), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended with an internal error of the broker", task.get_name(), exc_info=error)

    def end(self) -> None:
        """End the term: stop all bridges. Messages that were not confirmed wait for the next master."""
        self._left = None
        for bridge in self._bridges:
            bridge.end()
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Wait until all bridges have disconnected, at most END_SECONDS_MAX."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=END_SECONDS_MAX)

    def status(self) -> list[dict[str, Any]]:
        """Return the state of each bridge (docs/bridges.md)."""
        return [bridge.status() for bridge in self._bridges]

    def left(self) -> list[dict[str, Any]]:
        """Return the durable subscriptions of removed bridges; an empty list unless this broker is master."""
        return [] if self._left is None else self._left.status()


class LeftSubscriptions:
    """Durable subscriptions of removed bridges, found once at the beginning of a term. ``client_ids``: client ids of
    the present bridges."""

    def __init__(self, engine: Engine, client_ids: Collection[str]) -> None:
        self._inventory = engine.inventory
        self._found = {
            key: durable
            for key, durable in self._inventory.destinations.durables.items()
            if _is_of_bridge(durable) and durable.client_id not in map(local_client_id, client_ids)
        }
        for each in self.status():
            log.warning("%s", left_sentence(each), extra=log_events.BRIDGE_LEFT)

    def status(self) -> list[dict[str, Any]]:
        """Return the subscriptions that still exist."""
        return [
            {
                "client_id": durable.client_id,
                "name": durable.name,
                "messages": self._inventory.gathered(durable.client_id, durable.name),
            }
            for key, durable in self._found.items()
            if self._inventory.destinations.durables.get(key) is durable
        ]


def _is_of_bridge(durable: DurableSubscriber) -> bool:
    return durable.client_id.startswith(local_client_id("")) and (durable.user or "").startswith(user_of(""))


def left_sentence(figures: dict[str, Any]) -> str:
    """Return a sentence for the operator about an entry of ``LeftSubscriptions.status``."""
    return (
        f"no bridge in the settings uses the durable subscription {figures['name']} of {figures['client_id']}. "
        f"It holds {figures['messages']} messages and collects more: restore the bridge, or delete it with "
        "`tandemmq subscriptions delete`"
    )
