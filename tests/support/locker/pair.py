"""A pair of broker processes with a given lock type."""

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
    """Run two brokers: the first is master, the second is standby."""
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
    """Check that the standby takes over after a normal stop of the master."""
    epoch = b.wait_role("standby")["epoch"]
    assert a.terminate() == 0
    assert b.wait_role("master")["epoch"] > epoch


def assert_a_frozen_master_is_followed(a: BrokerProcess, b: BrokerProcess) -> None:
    """Check, for locks that expire, that the standby takes over from a stopped master, which is standby when it
    continues."""
    epoch = b.wait_role("standby")["epoch"]
    a.kill(signal.SIGSTOP)
    assert b.wait_role("master")["epoch"] > epoch
    a.kill(signal.SIGCONT)
    a.wait_role("standby")
