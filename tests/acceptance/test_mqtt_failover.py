"""MQTT clients with several addresses, while masters are killed repeatedly: sessions continue at the next master."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.mqtt import packets
from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, Connect, Packet, PacketType, Publish, Version
from tandemmq.broker.protocols.mqtt.parser import PacketParser
from tandemmq.store.tools.check import check
from tests.support.acceptance.broker_process import WAIT_SECONDS_MAX
from tests.support.acceptance.kill_rounds import Group, kill_of_the_master, play
from tests.support.acceptance.mqtt_failover import EXAMPLE, VERSIONS, Clients
from tests.support.acceptance.mqtt_wire import Mqtt
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.acceptance.set_rounds import kill_of_the_master as kill_of_a_sets_master
from tests.support.prove import IS_THOROUGH, SEED, rounds
from tests.support.replication.process_fixtures import three as three
from tests.support.replication.process_fixtures import whole as whole

# Number of kills for each version. A thorough run has most kills with MQTT 5.0, which has all features. The code that
# keeps the sessions is the same for both versions.
KILLS = {"3.1.1": rounds(3, 100), "5.0": rounds(20 if IS_THOROUGH else 1, 100)}
# Small files and frequent checkpoints, so that kills interrupt the work of the store at many different points.
OPTIONS = (
    "--set", "store.journal_max_file_length=1mb",
    "--set", "store.checkpoint_records=500",
    "--set", "store.checkpoint_interval=200ms",
)  # fmt: skip
ORDERS = 200
BEFORE_THE_KILL = 30


def addresses(group: Group) -> str:
    return ",".join(f"127.0.0.1:{broker.mqtt}" for broker in group.brokers)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """Two brokers; each has a port for MQTT."""
    made = Group(tmp_path / "data", "ab", *OPTIONS)
    for broker in made.brokers:
        broker.mqtt = free_port()
    yield made
    made.stop()


@pytest.mark.prove
@pytest.mark.timeout(240 + 30 * max(KILLS.values()))
@pytest.mark.parametrize(
    "version",
    [
        pytest.param(each, marks=pytest.mark.promise("mqtt-sessions-go-on") if each == "5.0" else ())
        for each in VERSIONS
    ],
)
async def test_sessions_go_on_at_the_standby(group: Group, version: str) -> None:
    kills = KILLS[version]
    print(f"seed {SEED}, {kills} kills (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    await asyncio.to_thread(group.start)
    clients = Clients(addresses(group), version)
    async with asyncio.timeout(200 + 30 * kills):
        await clients.live(
            [lambda: play(group, {"kill": (kill_of_the_master, 1)}, "kill", dice) for _ in range(kills)], dice
        )
    master, standbys = await asyncio.to_thread(group.settled)
    for broker in (*standbys, master):
        assert await asyncio.to_thread(broker.terminate) == 0
    clients.check(kills)
    report = check(str(group.data))
    assert report.is_clean, report.problems


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_publisher_of_qos_2_remembers_pubrec_when_it_fails_to_connect(version: str) -> None:
    """The first broker closes the connection after PUBREL, the second one before CONNACK. The client must not repeat
    PUBLISH at the third broker, which would take it for a second message."""
    last: list[Packet] = []
    connects = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connects
        parser = PacketParser(1_000)
        while data := await reader.read(1_000):
            parser.feed(data)
            while (packet := parser.next_packet()) is not None:
                connects += isinstance(packet, Connect)
                if connects == 3:
                    last.append(packet)
                if isinstance(packet, Connect) and connects != 2:
                    writer.write(packets.connack(packet.version, session_present=connects > 1))
                elif isinstance(packet, Publish):
                    clients.is_over.set()
                    writer.write(packets.acknowledgement(Version.V3_1_1, PacketType.PUBREC, packet.packet_id))
                elif isinstance(packet, Acknowledgement) and connects == 3:
                    writer.write(packets.acknowledgement(Version.V3_1_1, PacketType.PUBCOMP, packet.packet_id))
                else:
                    writer.close()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        clients = Clients(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", version)
        await asyncio.to_thread(clients.publish_once)
    assert [type(each) for each in last[:2]] == [Connect, Acknowledgement]


def test_what_a_killed_master_sent_with_qos_1_comes_again_with_dup(group: Group) -> None:
    group.start()
    master, standby = group.brokers
    with Mqtt(master.mqtt or 0) as client:
        client.connect("device", lasts=True)
        client.subscribe("t", qos=1)
        for number in range(3):
            client.publish("t", b"%d" % number)
        assert all(client.hear_of(PacketType.PUBLISH) for _ in range(3))
        master.kill()
    standby.wait_role("master")
    with Mqtt(standby.mqtt or 0) as client:
        client.connect("device", lasts=True)
        client.publish("t", b"3")
        found = [client.hear_of(PacketType.PUBLISH) for _ in range(4)]
    assert [(each.payload, each.dup) for each in found if each is not None] == [
        (b"0", True), (b"1", True), (b"2", True), (b"3", False),
    ]  # fmt: skip


def test_the_example_loses_nothing_when_the_master_dies(group: Group) -> None:
    group.start()
    command = [sys.executable, str(EXAMPLE)]
    arguments = [addresses(group), "shop/orders", str(ORDERS)]
    receiver = subprocess.Popen([*command, "receive", *arguments], stdout=subprocess.PIPE, text=True)
    sender = None
    try:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "subscribed\n"
        sender = subprocess.Popen([*command, "send", *arguments])
        lines = [receiver.stdout.readline() for _ in range(BEFORE_THE_KILL)]
        group.brokers[0].kill()
        lines += receiver.stdout.readlines()
        assert sender.wait(WAIT_SECONDS_MAX) == 0
        assert receiver.wait(WAIT_SECONDS_MAX) == 0
    finally:
        for process in (receiver, sender):
            if process is not None:
                process.kill()
                process.wait()
    assert [line for line in lines if line != "subscribed\n"] == [f"order {n}\n" for n in range(1, ORDERS + 1)]
    assert group.brokers[1].terminate() == 0
    report = check(str(group.data))
    assert report.is_clean, report.problems


KILLS_OF_A_SET = rounds(5 if IS_THOROUGH else 2, 30)


@pytest.mark.service
@pytest.mark.promise("mqtt-sessions-go-on")
@pytest.mark.timeout(600 + 60 * KILLS_OF_A_SET)
@pytest.mark.prove
async def test_sessions_go_on_at_the_next_master_of_a_set(three: SetOfBrokers) -> None:
    print(f"seed {SEED}, {KILLS_OF_A_SET} kills (TANDEMMQ_SEED, TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    clients = Clients(",".join(f"{member.address}:{member.mqtt}" for member in three.members), "5.0")

    def kill() -> None:
        kill_of_a_sets_master(three, dice)
        three.restart_the_dead()
        three.settled()

    async with asyncio.timeout(400 + 60 * KILLS_OF_A_SET):
        await clients.live([kill] * KILLS_OF_A_SET, dice)
    clients.check(KILLS_OF_A_SET)
    assert await asyncio.to_thread(three.problems) == []
