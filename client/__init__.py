"""An asyncio client for a pair of brokers: STOMP 1.2, failover, resending.

    async with Client("failover:(stomp://a:61613,stomp://b:61613)") as client:
        await client.send("/queue/orders", b"one")    # returns while fewer than `window` wait for their receipt
        await client.flush()                          # returns when every message has its receipt: it is safe
        orders = await client.subscribe("/queue/orders")
        async for message in orders:
            await client.acknowledge(message)

Promises: a message is forgotten only when its receipt came; what had none when a connection was lost is sent again, in
order, on the next one. Each message has a number of this client's own (docs/duplicates.md), by which TandemMQ knows
what it had stored before: it stores it once. At another broker a message may arrive twice; never not at all. An
acknowledgement on a connection that is lost says so. A COMMIT without a receipt is repeated where that is safe, else
in doubt.

Rooms: ``connection`` is one connection, ``search`` finds the master, ``link`` goes from one connection to the next,
``outbox`` keeps what has no receipt, ``subscription`` and ``transaction`` are what their names say, and ``client`` is
what a program calls. ``tls`` makes the TLS of a
``stomp+ssl://`` address.
"""

from tandemmq.client.client import PREFETCH_DEFAULT, WINDOW_DEFAULT, Client
from tandemmq.client.errors import BrokerError, ClientError, Closed, InDoubt, NoBroker, TlsError, TransactionLost
from tandemmq.client.failover_url import Address, FailoverUrl, UrlError
from tandemmq.client.subscription import Received, Subscription
from tandemmq.client.tls import tls_context
from tandemmq.client.transaction import Transaction

__all__ = [
    "PREFETCH_DEFAULT",
    "WINDOW_DEFAULT",
    "Address",
    "BrokerError",
    "Client",
    "ClientError",
    "Closed",
    "FailoverUrl",
    "InDoubt",
    "NoBroker",
    "Received",
    "Subscription",
    "TlsError",
    "Transaction",
    "TransactionLost",
    "UrlError",
    "tls_context",
]
