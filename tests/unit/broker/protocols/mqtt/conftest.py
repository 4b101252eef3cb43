"""Sessions on an engine over a store in memory: see tests.support.broker.mqtt_wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tandemmq.broker.protocols.mqtt.packets import Version
from tests.support.broker.mqtt_wire import LIMITS, V5, Make, MqttLimits, MqttWire, NotedHooks, Pieces
from tests.unit.broker.engine.conftest import Harness, make_harness, nothing_contained

__all__ = ["make_harness", "nothing_contained"]

LASTING = pytest.mark.parametrize("clean", [True, False])


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
    """A client that has sent nothing."""

    def make(**options: Any) -> MqttWire:
        return MqttWire(harness, hooks, **options)

    return make


@pytest.fixture
def come(make: Make) -> Make:
    """A client that is connected, and subscribed ``to`` a filter."""

    def come(
        client_id: str = "me",
        *,
        to: str | None = None,
        qos: int = 0,
        version: Version = V5,
        limits: MqttLimits = LIMITS,
        pieces: Pieces = Pieces.WHOLE,
        **connect: Any,
    ) -> MqttWire:
        wire = make(version=version, limits=limits, pieces=pieces)
        wire.connect(client_id, **connect)
        if to is not None:
            wire.subscribe(to, qos=qos)
        return wire

    return come


@pytest.fixture
def lasting(come: Make) -> Make:
    """A client that is connected, and whose session is kept."""
    return partial(come, clean=False)


@pytest.fixture
def writer(come: Make) -> MqttWire:
    return come("writer")
