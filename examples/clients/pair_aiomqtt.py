"""Publish and subscribe over a pair of brokers with aiomqtt; goes on when the master dies, and loses nothing (QoS 1).

python pair_aiomqtt.py receive a:1883,b:1883 shop/orders 1000
python pair_aiomqtt.py send    a:1883,b:1883 shop/orders 1000

Subscribe before the first message is published: a topic keeps nothing for who was never there. After that the session
is the broker's: who comes back, to whichever broker is master, goes on where it was. aiomqtt knows one address and does
not connect again by itself; that is the program's part, and it must be the same client object that connects: it knows
which messages are on their way.
"""

import asyncio
import contextlib
import socket
import sys
from typing import Any, Self

import aiomqtt

PAUSE_SECONDS = 0.05
# So long aiomqtt waits for an answer, also one that a lost connection will not bring.
ANSWER_SECONDS = 2.0


def is_there(host: str, port: int) -> bool:
    """Whether somebody listens: a standby does not. Not for the loop: aiomqtt may take its hands off a socket only when
    its number is another one's already."""
    try:
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


class FailoverClient(aiomqtt.Client):
    """A client with several addresses: ``async with`` connects to whoever is master, as long as it takes."""

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
                self._connected = asyncio.get_running_loop().create_future()  # aiomqtt keeps that of the last time
                try:
                    return await super().__aenter__()
                except aiomqtt.MqttError:
                    unanswered = self._client.socket()
                    if unanswered is not None:  # to be closed by the loop, not by the thread that connects the next one
                        with contextlib.suppress(OSError):
                            unanswered.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(PAUSE_SECONDS)

    async def __aexit__(self, *error: Any) -> None:
        try:
            await super().__aexit__(*error)
        except aiomqtt.MqttError:
            pass  # it could not say goodbye, to a broker that was killed
        finally:
            if self._lock.locked():  # aiomqtt keeps it then, and would not connect again
                self._lock.release()


async def send(addresses: str, topic: str, count: int) -> None:
    client = FailoverClient(addresses, "sender", clean_session=False)
    sent = 0
    is_done = False
    while not is_done:
        try:
            async with client:
                while sent < count:
                    sent += 1  # whatever happens now: the client has it, and sends it again when it comes back
                    await client.publish(topic, f"order {sent}", qos=1)
                # Answers come in order: what came before this one was confirmed.
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
                    if order not in seen:  # with QoS 1 one may come twice
                        print(order, flush=True)
                        seen.add(order)
                    if len(seen) == count:
                        break
        except aiomqtt.MqttError:
            pass


if __name__ == "__main__":
    what, addresses, topic, count = sys.argv[1:]
    asyncio.run((send if what == "send" else receive)(addresses, topic, int(count)))
