"""Send and receive over a pair of brokers with tandemmq.client. The program continues when the master dies.

python pair_asyncio.py send    a:61613,b:61613 /queue/orders 1000
python pair_asyncio.py receive a:61613,b:61613 /queue/orders 1000
"""

import asyncio
import sys

from tandemmq.client import Client


def url_of(hosts: str) -> str:
    return f"failover:({','.join(f'stomp://{host}' for host in hosts.split(','))})?maxReconnectDelay=200"


async def send(hosts: str, queue: str, count: int) -> None:
    async with Client(url_of(hosts)) as client:  # its end waits for all receipts
        for number in range(1, count + 1):
            await client.send(queue, f"order {number}")
            await asyncio.sleep(0.002)  # stands for other work


async def receive(hosts: str, queue: str, count: int) -> None:
    seen: set[str] = set()
    async with Client(url_of(hosts)) as client:
        orders = await client.subscribe(queue)
        async for message in orders:
            # If the acknowledgement is lost with its connection, the message is delivered again.
            if message.text not in seen:
                print(message.text, flush=True)
                seen.add(message.text)
            await client.acknowledge(message)
            if len(seen) == count:
                return


if __name__ == "__main__":
    what, hosts, queue, count = sys.argv[1:]
    asyncio.run((send if what == "send" else receive)(hosts, queue, int(count)))
