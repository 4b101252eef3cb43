"""Sessions on an engine over a store in memory: see tests.support.broker.amqp_wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.broker.amqp_wire import AmqpWire
from tests.unit.broker.engine.conftest import Harness, make_harness, nothing_contained

__all__ = ["make_harness", "nothing_contained"]

Make = Callable[..., AmqpWire]


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Iterator[Harness]:
    harness = make_harness()
    yield harness
    harness.turn()


@pytest.fixture
def make(harness: Harness) -> Make:
    """Make a client that has sent nothing yet."""

    def make(**options: Any) -> AmqpWire:
        return AmqpWire(harness, **options)

    return make


@pytest.fixture
def connect(make: Make) -> Make:
    """Make a client with an open connection and a session on channel 0, whose incoming window is ``window``."""

    def connect(container: str = "me", *, window: int = 1 << 20, **options: Any) -> AmqpWire:
        wire = make(**options)
        wire.connect(container)
        wire.begin(window=window)
        return wire

    return connect
