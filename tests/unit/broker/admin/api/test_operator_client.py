"""An operator as a client of an engine that answers in an order of its own."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from tandemmq.broker.admin.api.operator_client import OperatorClient
from tandemmq.broker.admin.roles import TOKEN_HOLDER
from tandemmq.broker.core.commands import Ack, AckMode, Subscribe
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.engine.in_process import BATCH_MAX
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message

QUEUE = Destination(DestinationKind.QUEUE, "ORDERS")


class Hasty:
    """An engine that has delivered all it may before anybody reads the receipt."""

    def __init__(self, messages: int) -> None:
        self.memory = Memory(1 << 20)
        self._left = [
            Message(QUEUE, f"ID:{number}", b"", BodyKind.BYTES, persistent=True, timestamp=1)
            for number in range(messages)
        ]
        self._tag = 0

    def opened_as(self, connection: OperatorClient, principal: object) -> None: ...

    def handle(self, operator: OperatorClient, command: Any) -> None:
        if isinstance(command, Subscribe):
            operator.receipt(command.receipt)
        assert isinstance(command, Subscribe | Ack)
        some, self._left = self._left[:BATCH_MAX], self._left[BATCH_MAX:]
        for message in some:
            self._tag += 1
            operator.deliver("browsed", self._tag, message, 0, AckMode.RANGE)
        if len(some) < BATCH_MAX:
            operator.nothing("browsed")


async def test_what_is_delivered_before_the_receipt_is_read_is_shown() -> None:
    for messages in (0, 1, BATCH_MAX, 2 * BATCH_MAX + 3):
        operator = OperatorClient(Hasty(messages), TOKEN_HOLDER)  # type: ignore[arg-type]
        shown = []
        async with aclosing(operator.browse(QUEUE)) as batches:
            async for batch in batches:
                shown += [message.message_id for message in batch]
        assert shown == [f"ID:{number}" for number in range(messages)]
