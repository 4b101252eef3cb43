"""The client class for programs. See the package for the promises."""

from __future__ import annotations

import asyncio
import random
import ssl
import uuid
from collections.abc import Callable, Mapping
from typing import Self

from tandemmq.broker.protocols.stomp.frames import Headers
from tandemmq.client.connection import Connection, Greeting
from tandemmq.client.failover_url import Address, FailoverUrl
from tandemmq.client.frames import frame
from tandemmq.client.link import Link
from tandemmq.client.outbox import Numbering, Outbox, Outgoing
from tandemmq.client.subscription import Received, Subscription
from tandemmq.client.transaction import Transaction

WINDOW_DEFAULT = 100
PREFETCH_DEFAULT = 100
_ACKNOWLEDGEMENTS = ("client-individual", "client")


class Client:
    """A connection to the broker that is master. ``notice`` is called with a sentence at each event of the connection.

    ``tls``: for ``stomp+ssl://`` addresses, as `tls_context` makes it; None: the authorities that the system trusts,
    and no client certificate. ``async with`` connects; at the end of the block it waits for the receipts of all sent
    messages and closes; if the block raises, it only closes. A client belongs to the loop on which it was connected.
    """

    def __init__(
        self,
        url: FailoverUrl | str,
        *,
        login: str | None = None,
        passcode: str | None = None,
        client_id: str | None = None,
        host: str = "/",
        tls: ssl.SSLContext | None = None,
        window: int = WINDOW_DEFAULT,
        notice: Callable[[str], None] = lambda text: None,
        chance: random.Random | None = None,
    ) -> None:
        if window < 1:
            raise ValueError(f"window: {window} is not at least 1")
        self.url = FailoverUrl.parse(url) if isinstance(url, str) else url
        greeting = Greeting(host, login, passcode, client_id, self.url.heart_beat_ms)
        self._client_id = client_id
        self._window = window
        self._notice = notice
        self._numbering = Numbering(f"client-{uuid.uuid4().hex}")
        self._outbox = Outbox(self._numbering)
        self._link = Link(self.url, greeting, self._outbox, notice, chance or random.Random(), tls)
        self._link.restore = self._restore
        self._link.on_message = self._arrived
        self._link.on_lost = self._drop_messages
        self._subscriptions: dict[str, Subscription] = {}
        self._subscriptions_made = 0
        self._transactions: dict[Transaction, None] = {}
        self._transactions_begun = 0
        self._has_unsure_acknowledgements = False
        self._has_told_remarks = False

    # ---- from connect to close

    async def connect(self) -> Address:
        """Connect to the master, reconnect whenever it is lost, and return the address of the first connection.

        NoBroker when the limits of the URL are reached, BrokerError when a broker refuses the login. Then ``connect``
        may be called again, and messages without a receipt are sent again.
        """
        if not self._has_told_remarks:
            self._has_told_remarks = True
            for remark in self.url.remarks:
                self._notice(remark)
        return (await self._link.start()).address

    async def close(self) -> bool:
        """Disconnect. Return True if the broker confirmed everything sent before, acknowledgements included."""
        is_confirmed = await self._link.stop()
        self._drop_messages()
        is_confirmed = is_confirmed or not self._has_unsure_acknowledgements
        return is_confirmed and not self._outbox

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None and self._link.is_running:
                await self.flush()
        finally:
            await self.close()

    # ---- sending

    @property
    def unconfirmed(self) -> int:
        """Number of messages that were sent and have no receipt yet, without those of transactions."""
        return len(self._outbox)

    @property
    def confirmed(self) -> int:
        """Number of messages that have their receipt, without those of transactions."""
        return self._outbox.confirmed_total

    @property
    def refused(self) -> int:
        """Number of messages that the broker refused, without those of transactions; none of them is stored."""
        return self._outbox.refused_total

    @property
    def resent(self) -> int:
        """Number of messages that were sent again on a later connection."""
        return self._link.resent

    async def send(
        self,
        destination: str,
        body: bytes | str,
        headers: Mapping[str, str] | None = None,
        *,
        is_bytes: bool = False,
    ) -> None:
        """Send one persistent message. Returns when fewer than ``window`` messages wait for a receipt.

        JMS programs get a TextMessage if the body is UTF-8 without a NUL, else, and with ``is_bytes``, a BytesMessage.
        The message may not be stored on return; after ``flush`` it is. With the caller's own header
        ``tandemmq-send-id`` the message is stored once even if another client sends it again. Raises BrokerError when
        an earlier message was refused, NoBroker when there is none; then this message was not sent.
        """
        if not self._may_send():
            await self._link.wait(self._may_send)
        self._outbox.raise_refusal()
        self._send(self._numbering.message(destination, body, headers, is_bytes=is_bytes))

    async def send_confirmed(
        self,
        destination: str,
        body: bytes | str,
        headers: Mapping[str, str] | None = None,
        *,
        is_bytes: bool = False,
    ) -> None:
        """Send one persistent message and return when its own receipt has arrived: it is safe.

        BrokerError when it was refused. ``is_bytes``: as for ``send``. Any number of tasks may call this at once; the
        broker stores their messages together. NoBroker: the message may be stored or not; it is kept, and sent again if
        the client is connected again.
        """
        if not self._may_send():
            await self._link.wait(self._may_send)
        message = self._numbering.message(destination, body, headers, is_bytes=is_bytes)
        message.confirmation = confirmation = asyncio.get_running_loop().create_future()
        self._send(message)
        await self._link.wait(confirmation.done)
        confirmation.result()

    async def flush(self) -> None:
        """Return when every sent message has its receipt; reconnect and resend as often as needed.

        Raises BrokerError for a message that was refused; call it again for the others. NoBroker when the limits of the
        URL are reached.
        """
        if self._outbox:
            await self._link.wait(lambda: not self._outbox)
        self._outbox.raise_refusal()

    async def begin(self) -> Transaction:
        """Begin a transaction. Any number may be open at once; each belongs to one task."""
        await self._link.connected()
        self._transactions_begun += 1
        transaction = Transaction(
            self._link, self._numbering, f"t-{self._transactions_begun}", self._window, self._forget
        )
        self._transactions[transaction] = None
        return transaction

    # ---- receiving

    async def subscribe(
        self,
        destination: str,
        acknowledgement: str = "client-individual",
        headers: Mapping[str, str] | None = None,
        *,
        prefetch: int = PREFETCH_DEFAULT,
        durable_name: str | None = None,
    ) -> Subscription:
        """Receive from a destination, on this connection and on those after a failover.

        Returns when the broker has confirmed it; BrokerError when it refuses. At most ``prefetch`` messages wait here
        unacknowledged. ``client``: acknowledging a message acknowledges those before it. ``auto`` is not offered: it
        would lose the messages that wait here when a connection is lost. ``durable_name``: a topic keeps messages for
        it while no client is subscribed; the client must have a ``client_id``.
        """
        if acknowledgement not in _ACKNOWLEDGEMENTS:
            raise ValueError(f"acknowledgement: {acknowledgement!r} is neither client-individual nor client")
        if durable_name is not None and self._client_id is None:
            raise ValueError(f"durable_name: {durable_name!r} needs a client with a client_id")
        connection = await self._link.connected()
        self._subscriptions_made += 1
        identity = str(self._subscriptions_made)
        durable = {} if durable_name is None else dict.fromkeys(_DURABLE_HEADERS, durable_name)
        asked: Headers = {
            **(headers or {}),
            "destination": destination,
            "id": identity,
            "ack": acknowledgement,
            "activemq.prefetchSize": str(prefetch),
            "prefetch-count": str(prefetch),
            **durable,
        }
        subscription = Subscription(self._link, asked, durable_name, lambda: self._subscriptions.pop(identity, None))
        self._subscriptions[identity] = subscription
        subscription.open_on(connection)
        await subscription.confirmed()
        return subscription

    async def acknowledge(self, message: Received, *, is_confirmed: bool = False) -> bool:
        """Acknowledge a message. Return False if its connection is lost, and the message will be redelivered.

        ``is_confirmed``: wait for the broker's receipt. With a receipt the message is not delivered again; False is
        returned without one: it may be delivered again. Without ``is_confirmed``, ``close`` confirms all.
        """
        return await self._answer("ACK", message, is_confirmed=is_confirmed)

    async def refuse(self, message: Received, *, is_confirmed: bool = False) -> bool:
        """Refuse a message (NACK); the settings of the broker decide what happens to it.

        Otherwise as ``acknowledge``.
        """
        return await self._answer("NACK", message, is_confirmed=is_confirmed)

    # ---- inside

    def _may_send(self) -> bool:
        connection = self._link.connection
        return connection is not None and len(self._outbox) < self._window and not connection.is_congested

    def _send(self, message: Outgoing) -> None:
        connection = self._link.connection
        assert connection is not None, "a message is sent when there is a connection"
        connection.write(self._outbox.add(message, is_tandemmq=self._link.is_tandemmq))

    async def _answer(self, command: str, message: Received, *, is_confirmed: bool) -> bool:
        connection = self._link.connection
        if connection is None or connection.number != message.connection:
            return False
        self._has_unsure_acknowledgements = True
        headers = {"id": message.headers["ack"]}
        if is_confirmed:
            return await self._link.request(connection, command, headers)
        connection.write(frame(command, headers))
        if connection.is_congested:
            await self._link.wait(lambda: not connection.is_congested or self._link.connection is not connection)
        return True

    def _restore(self, connection: Connection) -> int:
        """Repeat on a new connection the subscriptions, the messages without a receipt, and the open transactions."""
        for subscription in self._subscriptions.values():
            subscription.open_on(connection)
        frames = self._outbox.again(is_tandemmq=self._link.is_tandemmq)
        for each in frames:
            connection.write(each)
        return len(frames) + sum(transaction.restore(connection) for transaction in self._transactions)

    def _arrived(self, number: int, headers: Headers, body: bytes) -> None:
        subscription = self._subscriptions.get(headers.get("subscription", ""))
        if subscription is not None:
            subscription.arrived(Received(body, headers, number))

    def _forget(self, transaction: Transaction) -> None:
        self._transactions.pop(transaction, None)

    def _drop_messages(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.drop_messages()


_DURABLE_HEADERS = ("activemq.subscriptionName", "durable-subscription-name")
