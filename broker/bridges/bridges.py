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

#: So long the other brokers may take to be told good-bye.
END_SECONDS_MAX: Final = 2.0


class Bridges:
    """On the loop."""

    def __init__(self, bridges: Sequence[Bridge]) -> None:
        self._bridges = bridges
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: LeftSubscriptions | None = None

    def principals(self) -> list[Principal]:
        """Who they are. What they received to be sent later may be due before they begin."""
        return [principal_of(each.plan.name) for each in self._bridges]

    def begin(self, engine: Engine, message_ids: str) -> None:
        """``engine`` serves clients from now on. ``message_ids`` is of this broker and this term alone."""
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
        """The term is over: nothing more is done. What was not confirmed waits for the next master."""
        self._left = None
        for bridge in self._bridges:
            bridge.end()
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Returns when the other brokers were told good-bye, or do not answer."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=END_SECONDS_MAX)

    def status(self) -> list[dict[str, Any]]:
        """Each bridge (docs/bridges.md)."""
        return [bridge.status() for bridge in self._bridges]

    def left(self) -> list[dict[str, Any]]:
        """Durable subscriptions of bridges that there were; none unless master."""
        return [] if self._left is None else self._left.status()
