"""From stored to delivered: which messages are samples, and what becomes of one that nobody takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemmq.broker.engine.dispatch import DELIVERY_SECONDS, SAMPLE_SECONDS
from tests.unit.broker.engine.conftest import Harness


@pytest.fixture
def harness(make_harness: Callable[..., Harness]) -> Harness:
    return make_harness()


def seconds(harness: Harness) -> tuple[int, float]:
    """How many were measured, and the sum."""
    found = harness.engine.delivery_seconds
    return sum(found.counts), found.sum


def test_a_message_is_measured_until_its_first_consumer_has_it(harness: Harness) -> None:
    client = harness.client()
    client.store("one")
    harness.wait(4.0)
    assert seconds(harness) == (0, 0.0)
    client.subscribe().turn()
    assert client.bodies == ["one"]
    assert seconds(harness) == (1, 4.0)
    client.nack("one").turn()
    assert seconds(harness) == (1, 4.0), "once each"


def test_one_message_in_a_while_is_a_sample(harness: Harness) -> None:
    client = harness.consumer()
    for _ in range(3):
        for _ in range(10):
            client.store("x")
        harness.wait(2 * SAMPLE_SECONDS)
    assert seconds(harness)[0] == 3


def test_what_nobody_takes_is_beyond_the_last_bound_and_waited_for_no_more(harness: Harness) -> None:
    client = harness.client()
    client.store("one")
    harness.wait(DELIVERY_SECONDS[-1] + 2.0)
    assert harness.engine.delivery_seconds.counts[-1] == 1
    client.subscribe().turn()
    assert seconds(harness)[0] == 1


def test_what_is_not_stored_is_no_sample(harness: Harness) -> None:
    client = harness.consumer()
    client.send("one", persistent=False).turn()
    assert client.bodies == ["one"]
    assert seconds(harness)[0] == 0
