"""Publish and subscribe over a pair of brokers with aiomqtt. No message is lost when the master dies (QoS 1).

python pair_aiomqtt.py receive a:1883,b:1883 shop/orders 1000
python pair_aiomqtt.py send    a:1883,b:1883 shop/orders 1000

Start the receiver before you publish the first message: a topic keeps no messages for clients that never subscribed.
The broker stores the session, so a client that reconnects to either broker continues where it was.

aiomqtt takes one address and does not reconnect automatically, so this program does it. It must always use the same
client object, because this object keeps the messages that are not confirmed.
"""

import asyncio
import contextlib
import socket
import sys
from typing import Any, Self

import aiomqtt

PAUSE_SECONDS = 0.05
# Time limit of aiomqtt for each answer. It also waits for an answer after the connection is lost.
ANSWER_SECONDS = 2.0


def is_there(host: str, port: int) -> bool:
    """Return whether a broker listens at the address. A standby does not listen.

    Call it on a thread. aiomqtt can release a closed socket late: on the loop, a new socket could have the same number.
    """
    try:
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


class FailoverClient(aiomqtt.Client):
    """Client with several addresses. ``async with`` waits until it is connected to the master."""

    def __init__(self, addresses: str, identifier: str, **options: Any) -> None:
        self._addresses = [
            (host, int(port)) for host, _, port in (each.rpartition(":") for each in addresses.split(","))
        ]
        super().__init__(*self._addresses[0], identifier=identifier, timeout=ANSWER_SECONDS, **options)

    async def __aenter__(self) -> Self:
        while True:
            for host, port in self._addresses:
                if not await asyncio.to_thread(is_there, host, port):
                    continue
                self._hostname, self._port = host, port
                self._connected = asyncio.get_running_loop().create_future()  # aiomqtt would reuse the former one
                try:
                    return await super().__aenter__()
                except aiomqtt.MqttError:
                    unanswered = self._client.socket()
                    if unanswered is not None:  # so that the loop closes it, not the thread of the next attempt
                        with contextlib.suppress(OSError):
                            unanswered.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(PAUSE_SECONDS)

    async def __aexit__(self, *error: Any) -> None:
        try:
            await super().__aexit__(*error)
        except aiomqtt.MqttError:
            pass  # DISCONNECT cannot be sent to a broker that was killed
        finally:
            if self._lock.locked():  # after this error, aiomqtt keeps the lock and could not reconnect
                self._lock.release()


async def send(addresses: str, topic: str, count: int) -> None:
    client = FailoverClient(addresses, "sender", clean_session=False)
    sent = 0
    is_done = False
    while not is_done:
        try:
            async with client:
                while sent < count:
                    sent += 1  # even if this fails: the client has the message, and sends it after a reconnect
                    await client.publish(topic, f"order {sent}", qos=1)
                # Confirmations arrive in order: after this one, all messages are confirmed.
                await client.publish(f"{topic}/sent", str(sent), qos=1)
                is_done = True
        except aiomqtt.MqttError:
            pass


async def receive(addresses: str, topic: str, count: int) -> None:
    client = FailoverClient(addresses, "receiver", clean_session=False)
    seen: set[str] = set()
    while len(seen) < count:
        try:
            async with client:
                await client.subscribe(topic, qos=1)
                print("subscribed", flush=True)
                async for message in client.messages:
                    order = message.payload.decode()
                    if order not in seen:  # with QoS 1 a message can arrive twice
                        print(order, flush=True)
                        seen.add(order)
                    if len(seen) == count:
                        break
        except aiomqtt.MqttError:
            pass


if __name__ == "__main__":
    what, addresses, topic, count = sys.argv[1:]
    asyncio.run((send if what == "send" else receive)(addresses, topic, int(count)))
