"""A selector that takes long to compile holds up its own client, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

LONG = " OR ".join(f"colour = 'c{number}'" for number in range(60))
WRONG = LONG + " OR"


class Elsewhere:
    """Keeps what is to be done in another thread until it is asked for."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], object], Callable[[], None]]] = []

    def __call__(self, work: Callable[[], object], then: Callable[[], None]) -> None:
        self.jobs.append((work, then))

    def finish(self) -> None:
        jobs, self.jobs = self.jobs, []
        for work, then in jobs:
            work()
            then()


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def harness(make_harness: Any, elsewhere: Elsewhere) -> Any:
    harness = make_harness()
    harness.in_thread = elsewhere
    harness.begin_term()
    return harness


def test_what_its_client_says_meanwhile_comes_after_it_and_others_wait_for_nothing(
    harness: Any, elsewhere: Elsewhere
) -> None:
    client, other = harness.consumer(selector=LONG, receipt="subscribed"), harness.client()
    client.send("mine", receipt="sent")
    client.unsubscribe(receipt="unsubscribed")
    assert not client.is_reading
    other.send("other", receipt="other").turn()
    assert client.receipts == []
    assert other.receipts == ["other"]
    elsewhere.finish()
    harness.turn()
    assert client.is_reading
    assert client.receipts == ["subscribed", "unsubscribed", "sent"]


def test_a_mistake_in_it_is_told_as_ever(harness: Any, elsewhere: Elsewhere) -> None:
    client = harness.consumer(selector=WRONG, receipt="r")
    elsewhere.finish()
    (error,) = client.session.errors
    assert "it ends where a value is expected" in error.message
    assert error.receipt == "r"
    client.send("after", receipt="sent").turn()
    assert client.receipts == ["sent"]


def test_a_short_one_waits_for_nobody(harness: Any, elsewhere: Elsewhere) -> None:
    client = harness.consumer(selector="colour = 'red'", receipt="r")
    assert client.receipts == ["r"]
    assert elsewhere.jobs == []
