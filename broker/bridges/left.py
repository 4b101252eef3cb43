"""Durable subscriptions of bridges that the settings do not have any more. They go on gathering, and nobody sends what
they hold: an operator is to know, and to decide."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from tandemmq import log_events
from tandemmq.broker.bridges.link import local_client_id, user_of
from tandemmq.broker.core.topics.durables import DurableSubscriber
from tandemmq.broker.engine.engine import Engine

log = logging.getLogger(__name__)


class LeftSubscriptions:
    """Of one term as master: looked for once, when it begins. ``client_ids``: of the bridges that there are."""

    def __init__(self, engine: Engine, client_ids: Collection[str]) -> None:
        self._inventory = engine.inventory
        self._found = {
            key: durable
            for key, durable in self._inventory.destinations.durables.items()
            if _is_of_bridge(durable) and durable.client_id not in map(local_client_id, client_ids)
        }
        for each in self.status():
            log.warning("%s", sentence(each), extra=log_events.BRIDGE_LEFT)

    def status(self) -> list[dict[str, Any]]:
        """Those that are still there."""
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


def sentence(figures: dict[str, Any]) -> str:
    """One of ``LeftSubscriptions.status`` for people."""
    return (
        f"no bridge of the settings has the durable subscription {figures['name']} of {figures['client_id']} any more, "
        f"which holds {figures['messages']} messages and goes on gathering: bring the bridge back, or end it by "
        "`tandemmq subscriptions delete`"
    )
