"""Records of the queues that operators paused, so that the next master pauses them again. Each paused queue has a
message in a queue of the broker (docs/formats/pauses.md).

The records are browsed when a term begins, before clients are served. A record is taken from the queue only to replace
it. A start imports this module, so it does not import aiohttp.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple

from tandemmq import log_events
from tandemmq.broker.admin.api.operator_client import TAKEN, OperatorClient, operator_client
from tandemmq.broker.admin.callers import TOKEN_HOLDER
from tandemmq.broker.core.clock import milliseconds
from tandemmq.broker.core.commands import Ack, AddDestination, Begin, ClientError, Command, Commit, Send
from tandemmq.broker.core.names import PAUSES
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.engine.engine import Engine
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.message_ids import broker_producer

log = logging.getLogger(__name__)

_TRANSACTION: Final = "pause"
_NEITHER: Final = (False, False)


class PauseRecord(NamedTuple):
    """Pause of the queue with that name: whether its consumers and its producers are paused."""

    name: str
    consumers: bool
    producers: bool

    def encode(self) -> bytes:
        return json.dumps(self._asdict(), ensure_ascii=False, separators=(",", ":")).encode()

    @staticmethod
    def decode(body: bytes) -> PauseRecord | None:
        """Return the record; None: the body is not a record."""
        try:
            fields = json.loads(body)
            return PauseRecord(str(fields["name"]), bool(fields["consumers"]), bool(fields["producers"]))
        except (ValueError, KeyError, TypeError):
            return None


class Pauses:
    """Pauses of one broker, in all its terms as master. Runs on the loop. ``name``: the broker's name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count(1)
        self._writing = asyncio.Lock()
        self._forgetting: set[asyncio.Task[None]] = set()

    async def begin(self, engine: Engine) -> None:
        """Begin a term: pause the queues of all records. Records that cannot be read are logged, and the term
        continues."""
        engine.on_pause_ended(partial(self._forget, engine))
        if engine.waiting_in(PAUSES) is None:
            return
        try:
            async with operator_client(engine, TOKEN_HOLDER) as client, aclosing(client.browse(PAUSES)) as batches:
                async for batch in batches:
                    for message in batch:
                        await _apply(engine, client, message)
        except ClientError as error:
            log.error("%s cannot be read: %s", PAUSES, error.message, extra=log_events.PAUSES_UNREADABLE)

    def end(self) -> None:
        """End the term."""
        for task in self._forgetting:
            task.cancel()

    async def pause(
        self,
        engine: Engine,
        principal: Principal,
        name: str,
        *,
        consumers: bool | None = None,
        producers: bool | None = None,
    ) -> None:
        """Pause or resume a queue like ``Engine.pause``; durable on return. Raises ClientError."""
        engine.pause(principal, name, consumers=consumers, producers=producers)
        await self._keep(engine, name)

    def _forget(self, engine: Engine, queue: Destination) -> None:
        """Remove the record of a queue that is deleted. A later queue with the same name is not paused."""
        task = asyncio.get_running_loop().create_task(self._keep(engine, queue.name))
        self._forgetting.add(task)
        task.add_done_callback(self._forgotten)

    def _forgotten(self, task: asyncio.Task[None]) -> None:
        self._forgetting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s cannot be written: %s", PAUSES, error, extra=log_events.PAUSES_UNREADABLE)

    async def _keep(self, engine: Engine, name: str) -> None:
        """Add a record of the queue's present state, and remove the former record, in one transaction."""
        async with self._writing, operator_client(engine, TOKEN_HOLDER) as client, client.taking(PAUSES, None):
            former: list[int] = []
            while (delivery := await client.take()) is not None:
                record = PauseRecord.decode(delivery.message.body)
                if record is None or record.name == name:
                    former.append(delivery.tag)
            paused = engine.paused(Destination(DestinationKind.QUEUE, name))
            commands: list[Command] = [Ack(TAKEN, tag, _TRANSACTION, first=tag) for tag in former]
            if paused != _NEITHER:
                commands.append(Send(self._message(engine, PauseRecord(name, *paused)), _TRANSACTION))
            if commands:
                for error in await client.do_all([Begin(_TRANSACTION), *commands, Commit(_TRANSACTION)]):
                    if error is not None:
                        raise error

    def _message(self, engine: Engine, record: PauseRecord) -> Message:
        id = f"{broker_producer(f'ID:pauses-{self._name}-{engine.store.epoch}')}:{next(self._numbers)}"
        return Message(PAUSES, id, record.encode(), BodyKind.BYTES, persistent=True, timestamp=milliseconds())


async def _apply(engine: Engine, client: OperatorClient, message: Message) -> None:
    """Pause the queue of a record. The journal does not contain empty queues, so the queue is created if it is
    missing."""
    record = PauseRecord.decode(message.body)
    if record is None:
        log.error("%s: %r is not a record", PAUSES, message.body[:80], extra=log_events.PAUSES_UNREADABLE)
        return
    await client.do(AddDestination(Destination(DestinationKind.QUEUE, record.name)))
    engine.pause(TOKEN_HOLDER.principal, record.name, consumers=record.consumers, producers=record.producers)
    log.info("%s is paused, as in the former term", record.name, extra=log_events.PAUSED)
