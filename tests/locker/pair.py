"""A pair of real brokers, elected by a kind of lock that runs out."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from tests.acceptance.broker_process import BrokerProcess


def assert_a_pair_changes_masters(data: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
    """The master is frozen, and the standby follows; it wakes, and stands by; the new one ends, and it follows back."""
    a, b = pair = [BrokerProcess(data, name, *options) for name in ("a", "b")]
    try:
        for broker, role in ((a, "master"), (b, "standby")):
            broker.environment = dict(environment or {})
            epoch = broker.start().wait_role(role)["epoch"]
        a.kill(signal.SIGSTOP)
        assert b.wait_role("master")["epoch"] > epoch
        a.kill(signal.SIGCONT)
        epoch = a.wait_role("standby")["epoch"]
        assert b.terminate() == 0
        assert a.wait_role("master")["epoch"] > epoch
    finally:
        for broker in pair:
            broker.stop()
