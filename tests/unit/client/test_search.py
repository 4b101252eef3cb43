"""Search for the master: no address delays the others."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.client import Client, NoBroker
from tests.support.client.scripted_broker import HOST, Peer, ScriptedBroker, confirming


async def silent(peer: Peer) -> None:
    """Takes the connection and never says a word, as a stopped process does."""
    await asyncio.sleep(60)


async def test_a_silent_host_does_not_hold_up_the_rounds_over_the_others() -> None:
    """The standby refuses some rounds before it is master. The patience with one address is a minute here: were it
    waited for, the test would run out of time."""
    port = free_port()
    async with ScriptedBroker(silent) as stopped:
        url = (
            f"failover:({stopped.address},stomp://{HOST}:{port})?randomize=false&nested.connectionTimeout=60000"
            "&maxReconnectDelay=20"
        )
        client = Client(url)
        async with asyncio.timeout(20):
            connecting = asyncio.create_task(client.connect())
            await asyncio.sleep(0.4)
            async with await asyncio.start_server(_late_master, HOST, port):
                assert (await connecting).port == port
                assert await client.close()
        assert stopped.connections == 1, "it is asked once, and then waited for beside the others"


async def _late_master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await confirming()(Peer(reader, writer))
    writer.close()


async def test_a_port_that_never_completes_a_connection_is_given_up() -> None:
    """A full backlog drops the SYN, as a host that is down does."""
    with socket.socket() as full:
        full.bind((HOST, 0))
        full.listen(0)
        hanging = [socket.socket() for _ in range(4)]
        for each in hanging:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        async with ScriptedBroker(confirming()) as master:
            url = f"failover:(stomp://{HOST}:{full.getsockname()[1]},{master.address})?randomize=false"
            async with asyncio.timeout(20):
                client = Client(url)
                assert (await client.connect()).port == master.port
                await client.close()
        for each in hanging:
            each.close()


async def test_the_rounds_end_and_every_address_is_named_with_its_reason() -> None:
    ports = free_port(), free_port()
    lines: list[str] = []
    url = (
        f"failover:(stomp://{HOST}:{ports[0]},stomp://{HOST}:{ports[1]})?maxReconnectAttempts=5&maxReconnectDelay=2"
        "&warnAfterReconnectAttempts=3"
    )
    with pytest.raises(NoBroker) as caught:
        await Client(url, notice=lines.append).connect()
    for port in ports:
        assert f"stomp://{HOST}:{port}: Connection refused" in str(caught.value)
    assert len(lines) == 2, "the first round, and the third"


async def test_after_a_loss_the_address_that_was_lost_is_tried_last() -> None:
    async with ScriptedBroker(confirming(1), confirming()) as first, ScriptedBroker(confirming()) as second:
        url = f"failover:({first.address},{second.address})?randomize=false"
        async with Client(url) as client:
            await client.send("/queue/a", b"1")
            await client.send("/queue/a", b"2")
            await client.flush()
        assert (first.connections, second.connections) == (1, 1)


async def test_one_that_turns_everybody_away_after_a_greeting_is_not_asked_without_end() -> None:
    async def fickle(peer: Peer) -> None:
        await peer.welcome()

    async with ScriptedBroker(*[fickle] * 100) as broker:
        client = Client(broker.url("maxReconnectAttempts=4&maxReconnectDelay=2"))

        async def store() -> None:
            await client.connect()
            await client.send_confirmed("/queue/a", b"x")

        with pytest.raises(NoBroker, match="connection lost"):
            await store()
        assert broker.connections == 5
        await client.close()


async def test_chance_spreads_the_clients_over_the_addresses() -> None:
    async with ScriptedBroker(*[confirming()] * 20) as one, ScriptedBroker(*[confirming()] * 20) as other:
        for seed in range(20):
            async with Client(f"failover:({one.address},{other.address})", chance=random.Random(seed)):
                pass
        assert one.connections + other.connections == 20
        assert 0 < one.connections < 20


async def test_a_send_gives_up_after_the_timeout_while_the_search_goes_on() -> None:
    async with ScriptedBroker(confirming(1)) as broker:
        client = Client(broker.url("timeout=100&maxReconnectDelay=20"))
        await client.connect()
        await client.send("/queue/a", b"1")
        await client.send("/queue/a", b"2")
        with pytest.raises(NoBroker, match="within 100 ms"):
            await client.flush()
        broker.scripts.append(confirming())
        await asyncio.sleep(0.1)
        await client.flush()
        assert client.resent == 1
        await client.close()


async def test_an_option_without_effect_is_reported_once() -> None:
    lines: list[str] = []
    async with ScriptedBroker(confirming(), confirming()) as broker:
        client = Client(broker.url("priorityBackup=true"), notice=lines.append)
        await client.connect()
        await client.close()
        await client.connect()
        await client.close()
    assert [text for text in lines if "priorityBackup does nothing here" in text] == lines[:1]
