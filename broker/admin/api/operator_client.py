"""Client of the engine for an operator (broker.engine.in_process): it takes messages, and acknowledges, moves or copies
each message."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from tandemmq.broker.admin.callers import Caller
from tandemmq.broker.core.commands import AckMode, Pull, Subscribe, Unsubscribe
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import BROWSED, InProcessClient, tell
from tandemmq.store.records.message import Destination, Message

#: Highest priority of an OpenWire consumer: messages are taken before other consumers receive them.
_PRIORITY: Final = 127
TAKEN: Final = "taken"
# Timeout of one pull. A pull may end before the store has read a message, so it is repeated while the store reads.
_PULL_SECONDS: Final = 0.05
_numbers = itertools.count(1)


class Delivery:
    """A message that was delivered to the operator and is not acknowledged, with its delivery tag."""

    __slots__ = ("message", "tag")

    def __init__(self, tag: int, message: Message) -> None:
        self.tag = tag
        self.message = message


class OperatorClient(InProcessClient):
    """Client of an operator; use ``operator_client``. Raises ClientError for refusals of the engine."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._pulled: asyncio.Future[Delivery | None] | None = None
        super().__init__(engine, caller.principal, f"api-{next(_numbers)}", f"admin API: {caller.name}")

    @asynccontextmanager
    async def taking(self, queue: Destination, selector: str | None) -> AsyncIterator[None]:
        """Let ``take`` return messages of ``queue`` within this context, also if the queue is paused. At the end,
        unacknowledged messages return to the queue, and do not count as delivered."""
        subscribe = Subscribe(
            TAKEN, queue, AckMode.RANGE, prefetch=0, selector=selector, priority=_PRIORITY, takes_paused=True
        )
        await self.do(subscribe)
        try:
            yield
        finally:
            if self.client is not None and TAKEN in self.client.subscriptions:
                await self.do(Unsubscribe(TAKEN, seen=0))

    async def take(self) -> Delivery | None:
        """Return the next message; None: the queue has no message that is not delivered to another consumer."""
        while True:
            pulled: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()
            self._pulled = pulled
            self._engine.handle(self, Pull(TAKEN, -1))
            delivery = await self.await_answer(pulled)
            if delivery is not None or not any(each.is_page_asked for each in self._taken_from()):
                return delivery
            await asyncio.sleep(_PULL_SECONDS)

    def _taken_from(self) -> list[Any]:
        subscription = self.client.subscriptions.get(TAKEN)
        return [] if subscription is None else list(subscription.queues)

    def awaited(self) -> list[asyncio.Future[Any]]:
        return super().awaited() + ([] if self._pulled is None else [self._pulled])

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        if subscription_id == BROWSED:
            return super().deliver(subscription_id, tag, message, redeliveries, ack_mode)
        tell(self._pulled, Delivery(tag, message))
        return None

    def nothing(self, subscription_id: str) -> None:
        if subscription_id == BROWSED:
            super().nothing(subscription_id)
        else:
            tell(self._pulled, None)


@asynccontextmanager
async def operator_client(engine: Engine, caller: Caller) -> AsyncIterator[OperatorClient]:
    """Connect ``caller`` as a client within this context. At the end, unacknowledged messages return to their
    queues."""
    operator = OperatorClient(engine, caller)
    try:
        yield operator
    finally:
        engine.closed(operator)
