"""Sessions on an engine over a store in memory: see tests.support.broker.mqtt_wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.broker.mqtt_wire import Make, MqttWire, NotedHooks
from tests.unit.broker.engine.conftest import Harness, make_harness, nothing_contained

__all__ = ["make_harness", "nothing_contained"]


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Iterator[Harness]:
    harness = make_harness()
    yield harness
    harness.turn()


@pytest.fixture
def hooks() -> NotedHooks:
    return NotedHooks()


@pytest.fixture
def make(harness: Harness, hooks: NotedHooks) -> Make:
    """A client that has not said anything."""

    def make(**options: Any) -> MqttWire:
        return MqttWire(harness, hooks, **options)

    return make
