"""Engines and another broker, for the tests of a bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.broker.bridge_world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.flow.end()
