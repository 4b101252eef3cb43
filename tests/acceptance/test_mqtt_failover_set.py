"""Clients of MQTT with an address of each node of a set: their sessions go on at whoever is master next."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.acceptance.mqtt_failover import Clients
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.acceptance.set_rounds import kill_of_the_master
from tests.support.prove import IS_THOROUGH, SEED, rounds
from tests.support.replication.process_fixtures import three as three
from tests.support.replication.process_fixtures import whole as whole

KILLS = rounds(5 if IS_THOROUGH else 2, 30)

pytestmark = [pytest.mark.service, pytest.mark.timeout(600 + 60 * KILLS), pytest.mark.promise("mqtt-sessions-go-on")]


@pytest.mark.prove
async def test_sessions_go_on_at_the_next_master(three: SetOfBrokers) -> None:
    print(f"seed {SEED}, {KILLS} kills (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    clients = Clients(",".join(f"{member.address}:{member.mqtt}" for member in three.members), "5.0")

    def kill() -> None:
        kill_of_the_master(three, dice)
        three.restart_the_dead()
        three.settled()

    async with asyncio.timeout(400 + 60 * KILLS):
        await clients.live([kill] * KILLS, dice)
    clients.check(KILLS)
    assert await asyncio.to_thread(three.problems) == []
