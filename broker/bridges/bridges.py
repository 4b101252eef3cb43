"""All bridges of a broker, which begin and end with each term as master, and the durable subscriptions that removed
bridges left.

Bridges that are not in the settings any more leave subscriptions that gather messages, and no bridge sends them: the
operator must know, and decide.
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
    from tandemmq.broker.bridges.bridge import Bridge  # which needs aiomqtt, and a broker without bridges does not

log = logging.getLogger(__name__)

#: Time limit for the disconnect from the other brokers.
END_SECONDS_MAX: Final = 2.0


class Bridges:
    """Begins and ends the bridges. On the loop."""

    def __init__(self, bridges: Sequence[Bridge]) -> None:
        self._bridges = bridges
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: LeftSubscriptions | None = None

    def principals(self) -> list[Principal]:
        """Return the principals of the bridges. Scheduled messages that they received may be due before they begin."""
        return [principal_of(each.plan.name) for each in self._bridges]

    def begin(self, engine: Engine, message_ids: str) -> None:
        """Begin a term: ``engine`` serves clients from now on. ``message_ids`` is unique to this broker and term."""
        self._left = LeftSubscriptions(engine, [each.plan.client_id for each in self._bridges])
        for bridge in self._bridges:
            name = f"bridge {bridge.plan.name}"
            task = asyncio.create_task(bridge.run(engine, f"{message_ids}-{bridge.plan.name}"), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended by an error of the broker", task.get_name(), exc_info=error)

    def end(self) -> None:
        """End the term: nothing more is done. Messages that were not confirmed wait for the next master."""
        self._left = None
        for bridge in self._bridges:
            bridge.end()
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Return when all bridges have disconnected, or the other brokers do not answer."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=END_SECONDS_MAX)

    def status(self) -> list[dict[str, Any]]:
        """Return the state of each bridge (docs/bridges.md)."""
        return [bridge.status() for bridge in self._bridges]

    def left(self) -> list[dict[str, Any]]:
        """Return durable subscriptions of bridges that were removed; none unless master."""
        return [] if self._left is None else self._left.status()


class LeftSubscriptions:
    """Finds such subscriptions once, at the beginning of a term. ``client_ids``: of the present bridges."""

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
        """Return those that still exist."""
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
    """Return an entry of ``LeftSubscriptions.status`` as a left_sentence."""
    return (
        f"no bridge of the settings has the durable subscription {figures['name']} of {figures['client_id']} any more, "
        f"which holds {figures['messages']} messages and goes on gathering: bring the bridge back, or end it by "
        "`tandemmq subscriptions delete`"
    )
