"""What one client does to a broker that many share. Run as a program, so that it takes nobody's time but its own:

python -m tests.support.acceptance.attacks prepare|attack NAME STOMP_PORT ADMIN_PORT OPENWIRE_PORT MQTT_PORT

What stands under PREPARATIONS is done before anybody looks: then the attack is the end of it alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import sys
import urllib.request
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.types import ConnectionId
from tandemmq.store.records.message import Destination, DestinationKind
from tests.support.acceptance import mqtt_attacks
from tests.support.acceptance.openwire_wire import OpenWire, queue
from tests.support.prove import IS_PROOF

SECONDS_MAX = 600.0 if IS_PROOF else 100.0
DESCRIPTORS = 400
SILENT = 500
SENDS = 300_000
SUBSCRIPTIONS = 16_000
SUBSCRIBERS, SUBSCRIPTIONS_EACH = 5_000, 1_000
FANNED = 200
KEPT = 100_000 if IS_PROOF else 30_000
RECLAIM_SECONDS = 3.0  # the store is longer at it than those wait who asked for it
DESTINATIONS = 45_000 if IS_PROOF else 15_000  # topics, and as many queues
CUT_OFF, SUBSCRIPTIONS_OF_CUT_OFF = 250, 40
UNWANTED = 50_000 if IS_PROOF else 20_000
SESSIONS, WILLS, RETAINED = 400, 200, 5_000
COMMITTED, LISTENING = 10_000, 250
BOMBS, BOMB_BYTES = 10, 50 << 20
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


async def says(target: Target, *pieces: bytes) -> None:
    """Says all of it, and waits until it is understood or refused."""
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
    await says(target, b"SEND\ndestination:/topic/none\n\n\0" * SENDS)


async def subscribes_and_unsubscribes(target: Target) -> None:
    await says(target, b"SUBSCRIBE\nid:x\ndestination:/topic/x\n\n\0UNSUBSCRIBE\nid:x\n\n\0" * SUBSCRIPTIONS)


async def a_selector_of_minus_signs(target: Target) -> None:
    # A header line has a bound of its own.
    selector = b"-" * 9_000
    await says(target, b"SUBSCRIBE\nid:x\ndestination:/topic/x\nselector:%b\n\n\0" % selector)


async def a_long_selector(target: Target) -> None:
    selector = b" or ".join(b"a=%d" % number for number in range(900))
    for _ in range(5):
        await says(target, b"SUBSCRIBE\nid:x\ndestination:/topic/x\nselector:%b\n\n\0" % selector)


async def blank_lines(target: Target) -> None:
    await says(target, b"\n" * 20_000_000)


async def fan_out(target: Target) -> None:
    """A topic with thousands of subscribers, all of whom read, and messages without a pause."""
    subscribers = [await connected(target) for _ in range(SUBSCRIBERS // SUBSCRIPTIONS_EACH)]
    readers = []
    for reader, writer in subscribers:
        frames = (b"SUBSCRIBE\nid:%d\ndestination:/topic/fan\n\n\0" % number for number in range(SUBSCRIPTIONS_EACH))
        writer.write(b"".join(frames))
        await writer.drain()
        readers.append(asyncio.create_task(drain(reader)))
    await says(target, b"SEND\ndestination:/topic/fan\n\nhello\0" * FANNED)
    for task, (_, writer) in zip(readers, subscribers, strict=True):
        task.cancel()
        writer.close()


async def drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 20):
        pass


async def a_large_composite(target: Target) -> None:
    everywhere = b",".join(b"/queue/part-%d" % number for number in range(100))
    body = b"x" * 4_000_000
    frame = b"SEND\ndestination:%b\npersistent:true\ncontent-length:%d\n\n%b\0" % (everywhere, len(body), body)
    await says(target, frame)


async def durable(target: Target, frame: bytes) -> None:
    """Says ``frame``, which asks for the receipt r, as the owner of a durable subscription."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.stomp)
    writer.write(CONNECT.replace(b"host:x", b"host:x\nclient-id:gone") + frame)
    while b"receipt-id:r" not in await reader.readuntil(b"\0"):
        pass
    writer.close()


async def a_topic_is_kept(target: Target) -> None:
    await durable(target, b"SUBSCRIBE\nid:0\ndestination:/topic/kept\nactivemq.subscriptionName:d\nreceipt:r\n\n\0")
    await sends(target, b"/topic/kept")


async def a_durable_subscription_ends(target: Target) -> None:
    """With all that was kept for it."""
    await durable(target, b"UNSUBSCRIBE\nid:0\nactivemq.subscriptionName:d\nreceipt:r\n\n\0")
    await asyncio.sleep(RECLAIM_SECONDS)


async def sends(target: Target, destination: bytes) -> None:
    await says(target, b"SEND\ndestination:%b\npersistent:true\n\nx\0" % destination * KEPT)


async def a_queue_is_filled(target: Target) -> None:
    await sends(target, b"/queue/kept")


async def a_queue_is_removed(target: Target) -> None:
    """With all that it held, as ActiveMQ's clients can have it done."""
    await asyncio.to_thread(remove, target, Destination(DestinationKind.QUEUE, "kept"))
    await asyncio.sleep(RECLAIM_SECONDS)


def remove(target: Target, destination: Destination) -> None:
    client = OpenWire(target.openwire).connect()
    client.ask(schema.DestinationInfo, connection_id=ConnectionId(client.id), destination=destination, operation_type=1)
    client.close()


async def persistent_sends(target: Target) -> None:
    await sends(target, b"/queue/flood")


async def very_many_destinations(target: Target) -> None:
    await says(target, b"".join(b"SEND\ndestination:/topic/many.%d\n\n\0" % number for number in range(DESTINATIONS)))


async def what_is_told_of_them(target: Target) -> None:
    for _ in range(3):
        assert len((await asyncio.to_thread(status, target))["topics"]) >= DESTINATIONS


async def patterns_over_them(target: Target) -> None:
    names = ["many.>", "*.*", ">", "*.>", *(f"many.{number}" for number in range(96))]
    everywhere = ",".join(f"/topic/{name}" for name in names).encode()
    await says(target, b"SUBSCRIBE\nid:x\ndestination:%b\n\n\0UNSUBSCRIBE\nid:x\n\n\0" % everywhere)


async def acknowledged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
    """One after the other: with a prefetch of one."""
    for _ in range(count):
        frame = await reader.readuntil(b"\0")
        id = frame.partition(b"\nack:")[2].partition(b"\n")[0]
        writer.write(b"ACK\nid:%b\n\n\0" % id)


async def very_many_queues(target: Target) -> None:
    await says(target, b"".join(b"SEND\ndestination:/queue/q.%d\n\n\0" % number for number in range(DESTINATIONS)))


async def a_pattern_of_queues(target: Target) -> None:
    """Comes, acknowledges and goes; comes again, and its connection is cut."""
    subscribe = b"SUBSCRIBE\nid:0\ndestination:/queue/q.>\nack:client-individual\nactivemq.prefetchSize:1\n\n\0"
    for _ in range(2):
        reader, writer = await connected(target)
        writer.write(subscribe)
        await acknowledged(reader, writer, 100)
        writer.write(b"UNSUBSCRIBE\nid:0\nreceipt:u\n\n\0")
        while b"receipt-id:u" not in await reader.readuntil(b"\0"):
            pass
        writer.write(subscribe)
        await reader.readuntil(b"\0")
        writer.transport.abort()


async def a_durable_pattern(target: Target) -> None:
    """Comes, is cut off, and comes again."""
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", target.stomp)
        writer.write(CONNECT.replace(b"host:x", b"host:x\nclient-id:wide"))
        await reader.readuntil(b"\0")
        writer.write(b"SUBSCRIBE\nid:0\ndestination:/topic/many.>\nactivemq.subscriptionName:d\nreceipt:r\n\n\0")
        while b"receipt-id:r" not in await reader.readuntil(b"\0"):
            pass
        writer.transport.abort()


async def much_that_is_left(target: Target) -> None:
    """Subscriptions, temporary queues and open transactions of one connection, which is cut."""
    reader, writer = await connected(target)
    for number in range(500):
        writer.write(b"SUBSCRIBE\nid:t%d\ndestination:/temp-queue/t%d\n\n\0" % (number, number))
        writer.write(b"SUBSCRIBE\nid:s%d\ndestination:/queue/left\nselector:a=%d\n\n\0" % (number, number))
    for number in range(20):
        writer.write(b"BEGIN\ntransaction:%d\n\n\0" % number)
        writer.write(b"SEND\ndestination:/queue/left\ntransaction:%d\n\nx\0" % number * 5_000)
        await writer.drain()
    writer.write(b"SEND\ndestination:/queue/last\nreceipt:last\n\n\0")
    while b"receipt-id:last" not in await reader.readuntil(b"\0"):
        pass
    writer.transport.abort()
    await asyncio.sleep(1)


async def many_cut_off(target: Target) -> None:
    """All at once, each with what it did not acknowledge."""
    writers = []
    for _ in range(CUT_OFF):
        _, writer = await connected(target)
        for number in range(SUBSCRIPTIONS_OF_CUT_OFF):
            writer.write(b"SUBSCRIBE\nid:%d\ndestination:/queue/cut\nack:client\n\n\0" % number)
        writers.append(writer)
    await says(target, b"SEND\ndestination:/queue/cut\n\nx\0" * 20_000)
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(1)


async def what_there_is_is_told(target: Target) -> None:
    """By advisories, to who begins to listen."""
    for kind in (b"Queue", b"Topic", b">"):
        listen = b"SUBSCRIBE\nid:x\ndestination:/topic/ActiveMQ.Advisory.%b\n\n\0UNSUBSCRIBE\nid:x\n\n\0" % kind
        await says(target, listen)


async def a_selector_that_matches_nothing(target: Target) -> None:
    await says(target, b"SEND\ndestination:/queue/unwanted\n\nx\0" * UNWANTED)
    for header in (b"selector:a=1", b"selector:a=2\nbrowser:true", b"browser:true\nselector:a=3", b"selector:a=4"):
        await says(target, b"SUBSCRIBE\nid:x\ndestination:/queue/unwanted\n%b\n\n\0" % header)


async def large_commits(target: Target) -> None:
    """To a topic to which many listen."""
    reader, writer = await connected(target)
    frames = (b"SUBSCRIBE\nid:%d\ndestination:/topic/committed\n\n\0" % number for number in range(LISTENING))
    writer.write(b"".join(frames))
    task = asyncio.create_task(drain(reader))
    begin, end = b"BEGIN\ntransaction:t\n\n\0", b"COMMIT\ntransaction:t\n\n\0"
    queued = b"SEND\ndestination:/queue/committed\ntransaction:t\npersistent:true\n\nx\0" * COMMITTED
    told = b"SEND\ndestination:/topic/committed\ntransaction:t\n\nx\0" * (COMMITTED // 10)
    await says(target, begin + queued + end, begin + told + end)
    task.cancel()
    writer.close()


async def large_inflations(target: Target) -> None:
    """Compressed bodies of a JMS client, a thousand times as long, for a STOMP client."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.stomp, limit=2 * BOMB_BYTES)
    writer.write(CONNECT + b"SUBSCRIBE\nid:0\ndestination:/queue/bombs\n\n\0")

    def send() -> None:
        client = OpenWire(target.openwire).connect()
        bomb = BOMB_BYTES.to_bytes(4, "big") + zlib.compress(b"\1" * BOMB_BYTES)
        for _ in range(BOMBS):
            client.send(queue("bombs"), make=schema.ActiveMQBytesMessage, content=bomb, compressed=True)
        client.close()

    sending = asyncio.create_task(asyncio.to_thread(send))
    received = 0
    while received < BOMBS * BOMB_BYTES:
        data = await reader.read(1 << 20)
        if not data:
            raise ConnectionError(f"the broker hung up after {received} bytes")
        received += len(data)
    await sending
    writer.close()


async def silent_sockets(target: Target) -> None:
    async with contextlib.AsyncExitStack() as held:
        for port in (target.stomp, target.admin):
            for _ in range(SILENT):
                with contextlib.suppress(ConnectionError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    held.callback(writer.close)
        await asyncio.sleep(2)
        await asyncio.to_thread(status, target)  # the admin server answers beside them


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
    "a selector of minus signs": a_selector_of_minus_signs,
    "long selectors": a_long_selector,
    "20 MB of line ends": blank_lines,
    f"{2 * SILENT} silent sockets, {DESCRIPTORS} descriptors": silent_sockets,
    f"{FANNED} messages to {SUBSCRIBERS} subscribers": fan_out,
    "4 MB to 100 queues": a_large_composite,
    f"MQTT: {SENDS} PINGREQ": lambda target: mqtt_attacks.pings(target.mqtt, SENDS),
    f"MQTT: {SUBSCRIPTIONS // 4} SUBSCRIBE and UNSUBSCRIBE, stored": lambda target: (
        mqtt_attacks.subscribes_and_unsubscribes(target.mqtt, SUBSCRIPTIONS // 4)
    ),
    "MQTT: UNSUBSCRIBE from 1,000 filters, SUBSCRIBE to 100": lambda target: mqtt_attacks.many_filters_at_once(
        target.mqtt, 2_000
    ),
    "MQTT: 900 filters of 120 levels": lambda target: mqtt_attacks.filters_of_many_levels(target.mqtt, 900),
    f"{KEPT} persistent SENDs": persistent_sends,
    DURABLE_ENDS: a_durable_subscription_ends,
    QUEUE_ENDS: a_queue_is_removed,
    f"{DESTINATIONS} topics begin": very_many_destinations,
    f"status of {DESTINATIONS} topics": what_is_told_of_them,
    f"100 names and patterns over {DESTINATIONS} topics": patterns_over_them,
    f"{DESTINATIONS} queues begin": very_many_queues,
    f"a consumer of {DESTINATIONS} queues comes, acknowledges, and goes": a_pattern_of_queues,
    f"advisories tell of {2 * DESTINATIONS} destinations": what_there_is_is_told,
    "1000 subscriptions and 100000 uncommitted messages are left": much_that_is_left,
    f"{CUT_OFF} connections with {SUBSCRIPTIONS_OF_CUT_OFF} subscriptions are cut": many_cut_off,
    f"selectors that match none of {UNWANTED} messages": a_selector_that_matches_nothing,
    f"commits of {COMMITTED}, and of {COMMITTED // 10} to {LISTENING}": large_commits,
    f"{BOMBS} bodies that inflate to {BOMB_BYTES >> 20} MiB": large_inflations,
    f"a durable subscription of {DESTINATIONS} topics comes twice": a_durable_pattern,
    f"MQTT: {SESSIONS} sessions of clients that come once": lambda target: mqtt_attacks.sessions(target.mqtt, SESSIONS),
    f"MQTT: {SESSIONS} take-overs of a session": lambda target: mqtt_attacks.take_overs(target.mqtt, SESSIONS),
    f"MQTT: {WILLS} wills at once": lambda target: mqtt_attacks.wills(target.mqtt, WILLS),
    f"MQTT: {RETAINED} retained messages, and who wants them all": lambda target: mqtt_attacks.retained(
        target.mqtt, RETAINED
    ),
    "MQTT: 65000 packet ids that are not released": lambda target: mqtt_attacks.unreleased(target.mqtt, 65_000),
}
# What takes its time by its number, and what is asked of that.
MASSES = frozenset(list(ATTACKS)[list(ATTACKS).index(f"{KEPT} persistent SENDs") :]) | {f"{SENDS} small SENDs"}


if __name__ == "__main__":
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
    what = PREPARATIONS if sys.argv[1] == "prepare" else ATTACKS
    asyncio.run(what[sys.argv[2]](Target(*map(int, sys.argv[3:]))))
