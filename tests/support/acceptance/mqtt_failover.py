"""MQTT clients with several addresses that publish and subscribe while masters are killed, and the checks.

A message published with QoS 1 comes at least once; with QoS 2 exactly once and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import runpy
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.acceptance.broker_process import WAIT_SECONDS_MAX, wait_until
from tests.support.ci.verdicts import verdict
from tests.support.tree import ROOT

EXAMPLE = ROOT / "examples" / "clients" / "pair_aiomqtt.py"
FailoverClient: Any = runpy.run_path(str(EXAMPLE))["FailoverClient"]

VERSIONS = {"3.1.1": aiomqtt.ProtocolVersion.V311, "5.0": aiomqtt.ProtocolVersion.V5}
IN_A_ROUND_MIN = 5
SILENT_SECONDS = 10.0
TOPICS = {1: "kills/once-or-more", 2: "kills/once"}


async def next_of(messages: AsyncIterator[aiomqtt.Message], seconds: float = SILENT_SECONDS) -> aiomqtt.Message | None:
    """Return the next message; None if none comes in time. aiomqtt does not always notice the end of a connection."""
    coming = asyncio.ensure_future(anext(messages))
    done, _ = await asyncio.wait([coming], timeout=seconds)
    if done:
        return coming.result()
    coming.cancel()
    return None


class Publisher(paho.Client):
    """Paho's client without a defect of version 2.2: it forgets a PUBREC when an attempt to connect fails, and at the
    next attempt it sends the message as a new one instead of its PUBREL."""

    def reconnect(self) -> paho.MQTTErrorCode:
        """Override of Paho's method, which each attempt to connect calls."""
        for message in self._out_messages.values():
            if message.state == paho.mqtt_ms_resend_pubrel:
                message.state = paho.mqtt_ms_wait_for_pubcomp
        return super().reconnect()


class Clients:
    """Messages that the clients published and received, by QoS."""

    def __init__(self, addresses: str, version: str) -> None:
        self._addresses = addresses
        self._version = version
        self.published: dict[int, list[str]] = {1: [], 2: []}
        self.received: dict[int, list[str]] = {1: [], 2: []}
        self.connects = 0
        self.is_over = threading.Event()  # nothing more is published
        self.is_subscribed = asyncio.Event()
        self._has_come = asyncio.Event()

    def client(self, name: str) -> Any:
        options: dict[str, Any] = {"protocol": VERSIONS[self._version]}
        if self._version == "5.0":
            options["properties"] = Properties(PacketTypes.CONNECT)
            options["properties"].SessionExpiryInterval = 3600
            options["clean_start"] = False
        else:
            options["clean_session"] = False
        return FailoverClient(self._addresses, name, **options)

    async def publish(self) -> None:
        """Publish with QoS 1 until the end. The client object keeps unconfirmed messages and sends them again."""
        client = self.client("publisher-1")
        published = self.published[1]
        is_confirmed = False
        while not is_confirmed:
            with contextlib.suppress(aiomqtt.MqttError):
                async with client:
                    self.connects += 1
                    while not self.is_over.is_set():
                        published.append(str(len(published)))
                        await client.publish(TOPICS[1], published[-1], qos=1)
                    await client.publish(f"{TOPICS[1]}/over", "", qos=1)  # its receipt confirms all messages before it
                    is_confirmed = True

    def publish_once(self) -> None:
        """Publish with QoS 2 until the end."""
        options: dict[str, Any] = {} if self._version == "5.0" else {"clean_session": False}
        client = Publisher(
            CallbackAPIVersion.VERSION2, "publisher-2", protocol=VERSIONS[self._version].value, **options
        )
        came, lost = threading.Event(), threading.Event()
        confirmed: queue.SimpleQueue[int] = queue.SimpleQueue()
        client.on_connect = lambda *_: came.set()
        client.on_disconnect = lambda *_: (lost.set(), came.set())
        client.on_publish = lambda _client, _data, number, _reason, _properties: confirmed.put(number)
        connect: dict[str, Any] = {}
        if self._version == "5.0":
            connect = {"clean_start": False, "properties": Properties(PacketTypes.CONNECT)}
            connect["properties"].SessionExpiryInterval = 3600
        waits_for: int | None = None
        while waits_for is not None or not self.is_over.is_set():
            host, port = wait_until(self._master, "somebody listens")
            came.clear()
            lost.clear()
            try:
                client.connect(host, port, **connect)
            except OSError:
                continue
            client.loop_start()
            self.connects += 1
            assert came.wait(WAIT_SECONDS_MAX)
            while not lost.is_set() and (waits_for is not None or not self.is_over.is_set()):
                if waits_for is None:
                    self.published[2].append(str(len(self.published[2])))
                    waits_for = client.publish(TOPICS[2], self.published[2][-1], 2).mid
                with contextlib.suppress(queue.Empty):
                    if confirmed.get(timeout=0.1) == waits_for:
                        waits_for = None
            if not lost.is_set():
                client.disconnect()
            client.loop_stop()

    def _master(self) -> tuple[str, int] | None:
        """Return the broker that listens."""
        for host, _, port in (each.rpartition(":") for each in self._addresses.split(",")):
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
                return host, int(port)
        return None

    async def subscribe(self) -> None:
        """Receive until cancelled."""
        client = self.client("subscriber")
        while True:
            with contextlib.suppress(aiomqtt.MqttError):
                async with client:
                    self.connects += 1
                    await client.subscribe([(topic, qos) for qos, topic in TOPICS.items()])
                    self.is_subscribed.set()
                    messages = aiter(client.messages)
                    while (message := await next_of(messages)) is not None:
                        assert isinstance(message.payload, bytes)
                        self.received[1 if message.topic.matches(TOPICS[1]) else 2].append(message.payload.decode())
                        self._has_come.set()

    @property
    def lost(self) -> list[str]:
        """Return the messages that have not come yet."""
        return [
            f"QoS {qos}: {payload}"
            for qos in TOPICS
            for payload in sorted(set(self.published[qos]) - set(self.received[qos]))
        ]

    async def complete(self) -> None:
        """Wait until all messages have come, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while self.lost:
                    self._has_come.clear()
                    await self._has_come.wait()

    async def live(self, kills: Iterable[Callable[[], object]], dice: random.Random) -> None:
        """Publish and subscribe during ``kills``, each of which returns when clients are served again; then wait until
        all messages have come."""
        async with asyncio.TaskGroup() as tasks:
            subscriber = tasks.create_task(self.subscribe())
            await self.is_subscribed.wait()
            publishers = [
                tasks.create_task(self.publish()),
                tasks.create_task(asyncio.to_thread(self.publish_once)),
            ]
            for kill in kills:
                await asyncio.sleep(dice.uniform(0.05, 1.0))
                await asyncio.to_thread(kill)
            self.is_over.set()
            await asyncio.gather(*publishers)
            await self.complete()
            subscriber.cancel()

    @verdict
    def check(self, kills: int) -> None:
        """Check the guarantees of QoS 1 and QoS 2."""
        print(
            f"MQTT {self._version}: {kills} kills, {self.connects} connects; published "
            + ", ".join(f"{len(self.published[qos])} of QoS {qos}" for qos in TOPICS)
            + f"; {len(self.received[1]) - len(set(self.received[1]))} of QoS 1 came again"
        )
        assert not self.lost
        twice = [payload for payload, times in Counter(self.received[2]).items() if times > 1]
        assert not twice, f"QoS 2: more than once: {twice}"
        assert self.received[2] == self.published[2]
        assert min(map(len, self.published.values())) > IN_A_ROUND_MIN * kills
