"""All bridges of a broker: they begin and end with each term as master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tandemmq.broker.bridges.left import LeftSubscriptions
from tandemmq.broker.bridges.link import principal_of
from tandemmq.broker.core.principal import Principal
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
