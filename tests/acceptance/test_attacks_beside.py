"""Attacks of one client on a broker, and their effect on a well-behaved client: a table, and no change of role.

The waits of the well-behaved client are printed and not asserted, because machines differ. The test asserts that all
its requests were answered, and that the master stayed master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.attacks import ATTACKS, DESCRIPTORS, PREPARATIONS, SECONDS_MAX
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.good_client import GoodClient, living, run
from tests.support.samples import sampled

#: Those of the default run: work that grows with messages and with subscriptions. CI has some of the others.
ATTACKS_IN_CI = 5
SAMPLE = ("at rest", "200 messages to 5000 subscribers", "16000 SUBSCRIBE and UNSUBSCRIBE")


class AttackedBroker(BrokerProcess):
    """Broker that serves OpenWire and MQTT, too."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, "a")
        self.openwire = free_port()
        self.leaves_stomp_to_settings = True
        self.mqtt = free_port()
        self.ports = (self.stomp, self.admin, self.openwire, self.mqtt)
        self.options = ("--stomp", f"127.0.0.1:{self.stomp}", "--openwire", f"127.0.0.1:{self.openwire}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedBroker]:
    made = AttackedBroker(tmp_path_factory.mktemp("attacks") / "data")
    made.runs_under = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
    with serving(made):
        yield made


@pytest.mark.prove
@pytest.mark.timeout(SECONDS_MAX + 60)
@pytest.mark.parametrize(
    "attack",
    [
        *(pytest.param(name, marks=pytest.mark.promise("others-are-served")) for name in SAMPLE),
        *sampled("attacks", [name for name in ATTACKS if name not in SAMPLE], ATTACKS_IN_CI),
    ],
)
async def test_a_good_client_beside_it_is_served_and_no_role_changes(broker: AttackedBroker, attack: str) -> None:
    before = broker.wait_role("master")
    if attack in PREPARATIONS:
        await run("attacks", "prepare", attack, *broker.ports)
    async with living(GoodClient(broker)) as client:
        await asyncio.sleep(0.2)
        await run("attacks", "attack", attack, *broker.ports)
        await client.goes_on(20)
    after = broker.wait_role("master")
    assert after["epoch"] == before["epoch"]
    assert after["counts"]["promotions_total"] == 1
    trips, logins = sorted(client.round_trips), sorted(client.logins) or [0.0]
    print(
        f"\n{attack}: {len(trips)} round trips, p50 {trips[len(trips) // 2] * 1000:.0f} ms, "
        f"p99 {trips[len(trips) * 99 // 100] * 1000:.0f} ms, longest {trips[-1] * 1000:.0f} ms; "
        f"{len(client.logins)} logins, longest {logins[-1] * 1000:.0f} ms"
    )
