"""An operator as a client of the engine (broker.engine.in_process): he takes messages, and decides upon each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from tandemmq.broker.admin.roles import Caller
from tandemmq.broker.core.commands import AckMode, Pull, Subscribe, Unsubscribe
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import BROWSED, InProcessClient, tell
from tandemmq.store.records.message import Destination, Message

#: Taken before anybody else (OpenWire's highest priority of a consumer).
_PRIORITY: Final = 127
TAKEN: Final = "taken"
# A pull ends without a message where the store is slow to read: asked again while it reads.
_PULL_SECONDS: Final = 0.05

_numbers = itertools.count(1)


class Delivery:
    """A message that was delivered to the operator, and waits for his decision under its tag."""

    __slots__ = ("message", "tag")

    def __init__(self, tag: int, message: Message) -> None:
        self.tag = tag
        self.message = message


class OperatorClient(InProcessClient):
    """Use ``operator_client``. Raises ClientError for what the engine refuses."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._pulled: asyncio.Future[Delivery | None] | None = None
        super().__init__(engine, caller.principal, f"api-{next(_numbers)}", f"admin API: {caller.name}")

    @asynccontextmanager
    async def taking(self, queue: Destination, selector: str | None) -> AsyncIterator[None]:
        """Within it ``take`` gives messages of ``queue``, paused or not. What was not decided upon goes back, and does
        not count as delivered."""
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
        """The next message; None: there is no more that is not with others."""
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
    """``caller`` as a client. What he did not decide upon goes back when he leaves."""
    operator = OperatorClient(engine, caller)
    try:
        yield operator
    finally:
        engine.closed(operator)
