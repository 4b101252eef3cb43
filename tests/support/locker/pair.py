"""A pair of real brokers, elected by a kind of lock."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.acceptance.broker_process import BrokerProcess


@contextmanager
def running_pair(
    data: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """The first is master, the second stands by; gone at the end."""
    a, b = pair = BrokerProcess(data, "a", *options), BrokerProcess(data, "b", *options)
    try:
        for broker, role in ((a, "master"), (b, "standby")):
            broker.environment = dict(environment or {})
            broker.start().wait_role(role)
        yield pair
    finally:
        for broker in pair:
            broker.stop()


def assert_the_standby_follows(a: BrokerProcess, b: BrokerProcess) -> None:
    """The master ends as planned."""
    epoch = b.wait_role("standby")["epoch"]
    assert a.terminate() == 0
    assert b.wait_role("master")["epoch"] > epoch


def assert_a_frozen_master_is_followed(a: BrokerProcess, b: BrokerProcess) -> None:
    """By locks that run out; and it stands by when it wakes."""
    epoch = b.wait_role("standby")["epoch"]
    a.kill(signal.SIGSTOP)
    assert b.wait_role("master")["epoch"] > epoch
    a.kill(signal.SIGCONT)
    a.wait_role("standby")
