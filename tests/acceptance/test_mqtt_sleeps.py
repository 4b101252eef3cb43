"""Masters with a lease that are stopped and continued, under MQTT clients of QoS 2: no broker sends a payload twice.

tests/support/acceptance/mqtt_sleep_rounds.py has the program of these rounds, and explains how to continue a run.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tandemmq.broker.protocols.mqtt.packets import PacketType
from tests.support.acceptance.mqtt_once_clients import KINDS
from tests.support.acceptance.mqtt_sleep_rounds import ROUNDS_OF_A_LIFE, Life, check, seed_of
from tests.support.acceptance.mqtt_wire_log import LoggedPacket, faults_of_brokers
from tests.support.acceptance.zombie_shim import library as library
from tests.support.protocols.mqtt.client_packets import ServerPacket
from tests.support.prove import IS_PROOF, SEED, rounds

pytestmark = pytest.mark.fence

ROUNDS = rounds(1, 100)  # of each kind of client; where this is no proof, of two


@pytest.mark.promise("mqtt-sessions-go-on")
@pytest.mark.thorough
@pytest.mark.prove
@pytest.mark.service
@pytest.mark.timeout(300 + 90 * ROUNDS * len(KINDS))
async def test_no_broker_that_slept_or_took_over_sends_a_payload_twice(tmp_path: Path, library: Path) -> None:
    print(f"seed {SEED}, {ROUNDS} rounds of each kind (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    kinds = sorted(KINDS) if IS_PROOF else ["raw", random.Random(SEED).choice(["aiomqtt", "paho"])]
    for number in range(-(-ROUNDS // ROUNDS_OF_A_LIFE)):
        for kind in kinds:
            place = tmp_path / f"{kind}-{number}"
            place.mkdir()
            left = min(ROUNDS_OF_A_LIFE, ROUNDS - number * ROUNDS_OF_A_LIFE)
            seen = await Life(place, library, kind, seed_of(kind, number, SEED), left).live()
            print(seen)
            check(seen)


def _sent(*packets: tuple[int, int, bool]) -> list[LoggedPacket]:
    """To one client: connection, packet id, DUP; 0 for a packet id: PUBREL of 1."""
    return [
        LoggedPacket(
            at,
            "a",
            connection,
            ServerPacket(PacketType.PUBLISH, [], id, payload=b"x", qos=2, dup=dup)
            if id
            else ServerPacket(PacketType.PUBREL, [], 1),
        )
        for at, (connection, id, dup) in enumerate(packets)
    ]


@pytest.mark.parametrize(
    ("packets", "fault"),
    [
        ([(1, 1, False), (2, 1, True)], None),
        ([(1, 1, False), (2, 1, True), (2, 0, False)], None),
        ([(1, 1, False), (2, 2, True)], "another packet id"),
        ([(1, 1, False), (2, 1, False)], "without DUP"),
        ([(1, 1, False), (1, 1, True)], "on the same connection"),
        ([(1, 1, False), (1, 0, False), (2, 1, True)], "behind PUBREL"),
    ],
)
def test_the_log_tells_what_a_broker_may_not_send(packets: list[tuple[int, int, bool]], fault: str | None) -> None:
    found = faults_of_brokers(_sent(*packets))
    assert list(found) == ([] if fault is None else ["x"])
    assert fault is None or fault in found["x"]
