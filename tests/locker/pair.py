"""A pair of real brokers, elected by whatever kind of lock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.acceptance.broker_process import BrokerProcess


def assert_a_standby_follows(data: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
    """One is master, one stands by and says for whom; the master is killed, and the other is master of the next epoch;
    it is asked to end, and does."""
    a, b = pair = [BrokerProcess(data, name, *options) for name in ("a", "b")]
    try:
        for broker, role in ((a, "master"), (b, "standby")):
            broker.environment = dict(environment or {})
            broker.start().wait_role(role)
        a.kill()
        assert b.wait_role("master")["epoch"] == 2
        assert b.terminate() == 0
    finally:
        for broker in pair:
            broker.stop()
