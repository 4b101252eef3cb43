"""Durable subscriptions of bridges that are not in the settings any more. They gather messages, and no bridge sends
them: the operator must know, and decide."""

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
    """Finds such subscriptions once, at the beginning of a term. ``client_ids``: of the present bridges."""

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


def sentence(figures: dict[str, Any]) -> str:
    """Return an entry of ``LeftSubscriptions.status`` as a sentence."""
    return (
        f"no bridge of the settings has the durable subscription {figures['name']} of {figures['client_id']} any more, "
        f"which holds {figures['messages']} messages and goes on gathering: bring the bridge back, or end it by "
        "`tandemmq subscriptions delete`"
    )
