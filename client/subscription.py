"""Subscriptions that continue over failovers, and their messages until the caller takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from tandemmq.broker.protocols.stomp.frames import Headers
from tandemmq.client.connection import Connection
from tandemmq.client.errors import BrokerError, Closed
from tandemmq.client.frames import frame
from tandemmq.client.link import Link


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it arrived. ``headers`` are unescaped; ``connection`` is the number of its connection."""

    body: bytes
    headers: Mapping[str, str]
    connection: int

    @property
    def text(self) -> str:
        """The body as UTF-8; invalid bytes are replaced."""
        return self.body.decode("utf-8", errors="replace")


class Subscription:
    """Messages of one destination, made by ``Client.subscribe``: ``receive`` them or iterate over them.

    Messages that wait here when the connection is lost are dropped: the broker delivers them again.
    """

    def __init__(self, link: Link, headers: Headers, durable_name: str | None, ended: Callable[[], object]) -> None:
        self.destination = headers["destination"]
        self.durable_name = durable_name
        self.is_ended = False
        self._link = link
        self._ended = ended
        self._headers = headers
        self._inbox: deque[Received] = deque()
        self._is_confirmed = False
        self._refusal: BrokerError | None = None

    def __aiter__(self) -> AsyncIterator[Received]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Received]:
        while True:
            try:
                message = await self.receive()
            except Closed:
                return
            assert message is not None, "without a timeout there is a message or an error"
            yield message

    async def receive(self, timeout_seconds: float | None = None) -> Received | None:
        """Return the next message, or None when none arrived in time.

        Raises NoBroker, BrokerError (the current master refuses this subscription) or Closed.
        """
        if not self._inbox:
            await self._link.wait(self._has_news, timeout_seconds)
        if self._inbox:
            return self._inbox.popleft()
        self._raise()
        return None

    async def unsubscribe(self, *, is_forgotten: bool = False) -> None:
        """End the subscription; messages that wait here go to other consumers.

        ``is_forgotten``: a durable subscription is deleted with all its pending messages.
        Returns when a broker has confirmed it, possibly the next one.
        """
        if not self.is_ended:
            self._end()
            if self._link.connection is not None:
                await self._link.request(self._link.connection, "UNSUBSCRIBE", {"id": self._headers["id"]})
        if is_forgotten and self.durable_name is not None:
            await self._forget(self.durable_name)

    async def _forget(self, name: str) -> None:
        headers = {"id": self._headers["id"], "activemq.subscriptionName": name, "durable-subscription-name": name}
        while True:
            connection = await self._link.connected()
            try:
                if await self._link.request(connection, "UNSUBSCRIBE", headers):
                    return
            except BrokerError:
                if connection is self._link.connection:
                    raise

    # ---- for the client

    async def confirmed(self) -> None:
        """Return when the broker has accepted the SUBSCRIBE. Raises BrokerError with its reason when it refuses."""
        try:
            await self._link.wait(lambda: self._is_confirmed or self._refusal is not None)
        except BaseException:  # for example cancelled: no task will take the messages
            self._end()
            if self._link.connection is not None:
                self._link.connection.write(frame("UNSUBSCRIBE", {"id": self._headers["id"]}))
            raise
        if self._refusal is not None:
            self._end()
            raise self._refusal

    def open_on(self, connection: Connection) -> None:
        """Subscribe on a new connection."""
        self._is_confirmed = False
        connection.write(self._link.frame_with_receipt("SUBSCRIBE", self._headers, self._answered))

    def arrived(self, message: Received) -> None:
        """Keep a message of this subscription for ``receive``."""
        self._inbox.append(message)

    def drop_messages(self) -> None:
        """Drop the messages of a lost connection: the broker delivers them again."""
        self._inbox.clear()

    def _end(self) -> None:
        self.is_ended = True
        self._inbox.clear()
        self._ended()

    def _answered(self, refusal: BrokerError | None) -> None:
        self._is_confirmed = refusal is None
        self._refusal = refusal

    def _has_news(self) -> bool:
        return bool(self._inbox) or self._refusal is not None or self.is_ended

    def _raise(self) -> None:
        if self.is_ended:
            raise Closed(f"the subscription to {self.destination} was ended")
        if self._refusal is not None:
            raise self._refusal
