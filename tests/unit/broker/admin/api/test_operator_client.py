"""An operator as a client of an engine that answers in another order."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest

from tandemmq.broker.admin.answers import Answers
from tandemmq.broker.admin.api import message_work
from tandemmq.broker.admin.api.message_work import Choice, MessageWork
from tandemmq.broker.admin.api.operator_client import OperatorClient
from tandemmq.broker.admin.callers import TOKEN_HOLDER
from tandemmq.broker.core.commands import Ack, AckMode, Subscribe
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.engine.in_process import BATCH_MAX
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message

QUEUE = Destination(DestinationKind.QUEUE, "ORDERS")


class Hasty:
    """An engine that has made all deliveries before the receipt is read."""

    store = None

    def __init__(self, messages: int) -> None:
        self.memory = Memory(1 << 20)
        self._left = [
            Message(QUEUE, f"ID:{number}", b"", BodyKind.BYTES, persistent=True, timestamp=1)
            for number in range(messages)
        ]
        self._tag = 0

    def opened_as(self, connection: OperatorClient, principal: object) -> None: ...

    def closed(self, connection: OperatorClient) -> None: ...

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


async def test_a_delivery_before_the_receipt_is_shown() -> None:
    for messages in (0, 1, BATCH_MAX, 2 * BATCH_MAX + 3):
        operator = OperatorClient(Hasty(messages), TOKEN_HOLDER)  # type: ignore[arg-type]
        shown = []
        async with aclosing(operator.browse(QUEUE)) as batches:
            async for batch in batches:
                shown += [message.message_id for message in batch]
        assert shown == [f"ID:{number}" for number in range(messages)]


async def test_a_browse_ended_by_its_time_limit_continues_with_the_next_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to come there: the next page began before this one."""
    monkeypatch.setattr(message_work, "BROWSE_SECONDS_MAX", -1.0)
    after, seen = BATCH_MAX + 1, []
    for _ in range(3):
        work = MessageWork(Hasty(3 * BATCH_MAX), TOKEN_HOLDER)  # type: ignore[arg-type]
        page = json.loads(await work.browse(QUEUE, Choice(), after, 1_000, Answers()))
        seen += [each["id"] for each in page["items"]]
        if page["following"] is None:
            break
        assert page["following"] > after
        after = page["following"]
    assert seen == [f"ID:{number}" for number in range(BATCH_MAX + 1, 3 * BATCH_MAX)]
