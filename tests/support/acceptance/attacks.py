"""Attacks of one client on a broker that others use. Run as a separate program, so that the attack uses no CPU time of
the test's process:

python -m tests.support.acceptance.attacks prepare|attack NAME STOMP_PORT ADMIN_PORT OPENWIRE_PORT MQTT_PORT

An entry of PREPARATIONS runs before the measurement starts, so that the measurement covers only the attack itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import sys
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.types import ConnectionId
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.acceptance import mqtt_attacks
from tests.support.acceptance.openwire_wire import OpenWire
from tests.support.prove import IS_PROOF

SECONDS_MAX = 600.0 if IS_PROOF else 100.0
DESCRIPTORS = 400
SILENT = 500
SENDS = 300_000
SUBSCRIPTIONS = 16_000
SUBSCRIBERS, SUBSCRIPTIONS_EACH = 5_000, 1_000
FANNED = 200
KEPT = 100_000 if IS_PROOF else 30_000
RECLAIM_SECONDS = 3.0  # the store continues after the receipt
DESTINATIONS = 45_000 if IS_PROOF else 15_000
SESSIONS, WILLS = 400, 200
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


class Target(NamedTuple):
    """The ports of a broker on this host."""

    stomp: int
    admin: int
    openwire: int
    mqtt: int


def status(target: Target) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{target.admin}/status", timeout=SECONDS_MAX) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


async def connected(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", target.stomp)
    writer.write(CONNECT)
    await reader.readuntil(b"\0")
    return reader, writer


async def send_all(target: Target, *pieces: bytes) -> None:
    """Send all pieces, and wait until the broker has processed or refused them."""
    reader, writer = await connected(target)
    for piece in (*pieces, b"SEND\ndestination:/queue/last\nreceipt:last\n\n\0"):
        writer.write(piece)
        await writer.drain()
    with contextlib.suppress(ConnectionError, EOFError, asyncio.IncompleteReadError):
        while b"receipt-id:last" not in await reader.readuntil(b"\0"):
            pass
    writer.close()


async def nothing(target: Target) -> None:
    await asyncio.sleep(1)


async def small_sends(target: Target) -> None:
    await send_all(target, b"SEND\ndestination:/topic/none\n\n\0" * SENDS)


async def subscribes_and_unsubscribes(target: Target) -> None:
    await send_all(target, b"SUBSCRIBE\nid:x\ndestination:/topic/x\n\n\0UNSUBSCRIBE\nid:x\n\n\0" * SUBSCRIPTIONS)


async def blank_lines(target: Target) -> None:
    await send_all(target, b"\n" * 20_000_000)


async def fan_out(target: Target) -> None:
    """Send messages without a pause to a topic with thousands of subscribers, all of which read."""
    subscribers = [await connected(target) for _ in range(SUBSCRIBERS // SUBSCRIPTIONS_EACH)]
    readers = []
    for reader, writer in subscribers:
        frames = (b"SUBSCRIBE\nid:%d\ndestination:/topic/fan\n\n\0" % number for number in range(SUBSCRIPTIONS_EACH))
        writer.write(b"".join(frames))
        await writer.drain()
        readers.append(asyncio.create_task(drain(reader)))
    await send_all(target, b"SEND\ndestination:/topic/fan\n\nhello\0" * FANNED)
    for task, (_, writer) in zip(readers, subscribers, strict=True):
        task.cancel()
        writer.close()


async def drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 20):
        pass


async def durable(target: Target, frame: bytes) -> None:
    """Send ``frame``, which requests the receipt r, as the owner of a durable subscription."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.stomp)
    writer.write(CONNECT.replace(b"host:x", b"host:x\nclient-id:gone") + frame)
    while b"receipt-id:r" not in await reader.readuntil(b"\0"):
        pass
    writer.close()


async def a_topic_is_kept(target: Target) -> None:
    await durable(target, b"SUBSCRIBE\nid:0\ndestination:/topic/kept\nactivemq.subscriptionName:d\nreceipt:r\n\n\0")
    await sends(target, b"/topic/kept")


async def a_durable_subscription_ends(target: Target) -> None:
    """End the subscription, with all messages stored for it."""
    await durable(target, b"UNSUBSCRIBE\nid:0\nactivemq.subscriptionName:d\nreceipt:r\n\n\0")
    await asyncio.sleep(RECLAIM_SECONDS)


async def sends(target: Target, destination: bytes) -> None:
    await send_all(target, b"SEND\ndestination:%b\npersistent:true\n\nx\0" % destination * KEPT)


async def a_queue_is_filled(target: Target) -> None:
    await sends(target, b"/queue/kept")


async def a_queue_is_removed(target: Target) -> None:
    """Remove the queue with all its messages, by a command of ActiveMQ's clients."""
    await asyncio.to_thread(remove, target, Destination(DestinationKind.QUEUE, "kept"))
    await asyncio.sleep(RECLAIM_SECONDS)


def remove(target: Target, destination: Destination) -> None:
    client = OpenWire(target.openwire).connect()
    client.ask(schema.DestinationInfo, connection_id=ConnectionId(client.id), destination=destination, operation_type=1)
    client.close()


async def very_many_destinations(target: Target) -> None:
    await send_all(
        target, b"".join(b"SEND\ndestination:/topic/many.%d\n\n\0" % number for number in range(DESTINATIONS))
    )


async def status_of_them(target: Target) -> None:
    for _ in range(3):
        assert len((await asyncio.to_thread(status, target))["topics"]) >= DESTINATIONS


async def patterns_over_them(target: Target) -> None:
    names = ["many.>", "*.*", ">", "*.>", *(f"many.{number}" for number in range(96))]
    everywhere = ",".join(f"/topic/{name}" for name in names).encode()
    await send_all(target, b"SUBSCRIBE\nid:x\ndestination:%b\n\n\0UNSUBSCRIBE\nid:x\n\n\0" % everywhere)


async def silent_sockets(target: Target) -> None:
    async with contextlib.AsyncExitStack() as held:
        for port in (target.stomp, target.admin):
            for _ in range(SILENT):
                with contextlib.suppress(ConnectionError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    held.callback(writer.close)
        await asyncio.sleep(2)
        await asyncio.to_thread(status, target)  # the admin server answers at the same time


DURABLE_ENDS = f"a durable subscription ends with {KEPT} messages"
QUEUE_ENDS = f"a queue is removed with {KEPT} messages"
PREPARATIONS: dict[str, Callable[[Target], Awaitable[None]]] = {
    DURABLE_ENDS: a_topic_is_kept,
    QUEUE_ENDS: a_queue_is_filled,
}
ATTACKS: dict[str, Callable[[Target], Awaitable[None]]] = {
    "at rest": nothing,
    f"{SENDS} small SENDs": small_sends,
    f"{SUBSCRIPTIONS} SUBSCRIBE and UNSUBSCRIBE": subscribes_and_unsubscribes,
    "20 MB of line ends": blank_lines,
    f"{2 * SILENT} silent sockets, {DESCRIPTORS} descriptors": silent_sockets,
    f"{FANNED} messages to {SUBSCRIBERS} subscribers": fan_out,
    f"MQTT: {SENDS} PINGREQ": lambda target: mqtt_attacks.pings(target.mqtt, SENDS),
    f"MQTT: {SUBSCRIPTIONS // 4} SUBSCRIBE and UNSUBSCRIBE, stored": lambda target: (
        mqtt_attacks.subscribes_and_unsubscribes(target.mqtt, SUBSCRIPTIONS // 4)
    ),
    "MQTT: UNSUBSCRIBE from 1,000 filters, SUBSCRIBE to 100": lambda target: mqtt_attacks.many_filters_at_once(
        target.mqtt, 2_000
    ),
    "MQTT: 900 filters of 120 levels": lambda target: mqtt_attacks.filters_of_many_levels(target.mqtt, 900),
    DURABLE_ENDS: a_durable_subscription_ends,
    QUEUE_ENDS: a_queue_is_removed,
    f"{DESTINATIONS} topics begin": very_many_destinations,
    f"status of {DESTINATIONS} topics": status_of_them,
    f"100 names and patterns over {DESTINATIONS} topics": patterns_over_them,
    f"MQTT: {SESSIONS} take-overs of a session": lambda target: mqtt_attacks.take_overs(target.mqtt, SESSIONS),
    f"MQTT: {WILLS} wills at once": lambda target: mqtt_attacks.wills(target.mqtt, WILLS),
}


if __name__ == "__main__":
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
    what = PREPARATIONS if sys.argv[1] == "prepare" else ATTACKS
    asyncio.run(what[sys.argv[2]](Target(*map(int, sys.argv[3:]))))
