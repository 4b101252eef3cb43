"""An asyncio client for a pair of brokers: STOMP 1.2, failover, resending.

    async with Client("failover:(stomp://a:61613,stomp://b:61613)") as client:
        await client.send("/queue/orders", b"one")    # returns while fewer than `window` wait for their receipt
        await client.flush()                          # returns when every message has its receipt: it is safe
        orders = await client.subscribe("/queue/orders")
        async for message in orders:
            await client.acknowledge(message)

Promises: a message is forgotten only when its receipt has arrived. Messages without a receipt when a connection is lost
are sent again, in order, on the next one. Each message has a number of this client's own (docs/duplicates.md), by which
TandemMQ recognizes messages that it has stored, and stores each once. Another broker may store a message twice, but
loses none. An acknowledgement returns False if its connection is lost. A COMMIT without a receipt is repeated if that
is safe; otherwise the outcome of the transaction is in doubt.

Modules: ``connection`` is one connection, ``search`` finds the master, ``link`` goes from one connection to the next,
``outbox`` keeps messages without a receipt, ``subscription`` and ``transaction`` have one class each, and ``client`` is
the class for programs. ``tls`` makes the TLS of a ``stomp+ssl://`` address.
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
