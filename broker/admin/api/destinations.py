"""Endpoints for single destinations and the messages of a queue; and the pauses of queues beyond a term.

Each paused queue has a message in a queue of the broker's own (docs/formats/pauses.md). These records are browsed when
a term begins, before clients are served, and taken only to change one: none of them is held in between.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple

from aiohttp import web

from tandemmq import log_events
from tandemmq.broker.admin.answers import Answers, encoded
from tandemmq.broker.admin.api import parameters
from tandemmq.broker.admin.api.broker_pages import Running
from tandemmq.broker.admin.api.endpoints import OBJECT, TASK, Answer, Call, Endpoint, Refused
from tandemmq.broker.admin.api.message_work import Choice, MessageWork
from tandemmq.broker.admin.api.term import KINDS, TAKEN, OperatorClient, Term, operator_client
from tandemmq.broker.admin.callers import TOKEN_HOLDER, Role
from tandemmq.broker.core.clock import milliseconds
from tandemmq.broker.core.commands import (
    Ack,
    AddDestination,
    Begin,
    ClientError,
    Command,
    Commit,
    RemoveDestination,
    Send,
)
from tandemmq.broker.core.names import PAUSES
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.engine.engine import Engine
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.message_ids import broker_producer

log = logging.getLogger(__name__)

_TRANSACTION: Final = "pause"
_NEITHER: Final = (False, False)
_QUEUE: Final = "/destinations/queue/{name}"
_MESSAGES: Final = f"{_QUEUE}/messages"
_BROWSED: Final = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": OBJECT}, "following": {"type": ["integer", "null"]}},
    "required": ["items", "following"],
}


class Destinations:
    def __init__(self, term: Term, pauses: Pauses) -> None:
        self._term = term
        self._pauses = pauses

    def endpoints(self) -> list[Endpoint]:
        viewer, operator = Role.VIEWER, Role.OPERATOR
        one = "/destinations/{kind}/{name}"
        pausing = partial(Endpoint, "POST", role=operator, body=parameters.Pausing)
        return [
            Endpoint(
                "POST", "/destinations", operator, "Create a destination.", self._create, body=parameters.Creation
            ),
            Endpoint("GET", one, viewer, "Show a destination.", self._destination),
            Endpoint("DELETE", one, operator, "Delete a destination and all it holds.", self._delete_destination),
            pausing(
                f"{_QUEUE}/pause",
                summary="Pause consumers or producers.",
                handle=partial(self._set_paused, is_paused=True),
            ),
            pausing(
                f"{_QUEUE}/resume",
                summary="Resume consumers or producers.",
                handle=partial(self._set_paused, is_paused=False),
            ),
        ]

    async def _do(self, call: Call, command: Command) -> None:
        async with operator_client(self._term.engine(), call.caller) as operator:
            await operator.do(command)

    async def _create(self, call: Call) -> Answer:
        body: parameters.Creation = call.body
        destination = Destination(KINDS[body.kind], body.name)
        await self._do(call, AddDestination(destination))
        return self._term.row(destination)

    async def _destination(self, call: Call) -> Answer:
        return self._term.row(self._term.existing(call)[1])

    async def _delete_destination(self, call: Call) -> Answer:
        _, destination = self._term.existing(call)
        await self._do(call, RemoveDestination(destination))
        return {}

    async def _set_paused(self, call: Call, *, is_paused: bool) -> Answer:
        body: parameters.Pausing = call.body
        engine, destination = self._term.existing(call)
        await self._pauses.pause(
            engine,
            call.caller.principal,
            destination.name,
            consumers=is_paused if body.consumers else None,
            producers=is_paused if body.producers else None,
        )
        return self._term.row(destination)


class Messages:
    def __init__(self, term: Term, running: Running, answers: Answers) -> None:
        self._term = term
        self._answers = answers
        self._running = running

    def endpoints(self) -> list[Endpoint]:
        operator = Role.OPERATOR
        work = partial(Endpoint, "POST", role=operator, answers=TASK, statuses=(202,))
        return [
            work(f"{_QUEUE}/purge", summary="Empty a queue.", handle=self._purge, body=parameters.Waiting),
            Endpoint(
                "GET",
                _MESSAGES,
                operator,
                "Browse messages of a queue, without changing them.",
                self._browse,
                query=parameters.Browsing,
                answers=_BROWSED,
            ),
            Endpoint("GET", f"{_MESSAGES}/{{id}}", operator, "Show a message.", self._read, query=parameters.Reading),
            work(
                f"{_MESSAGES}/move",
                summary="Move messages.",
                handle=partial(self._carry, "move", MessageWork.move),
                body=parameters.Target,
            ),
            work(
                f"{_MESSAGES}/copy",
                summary="Copy messages.",
                handle=partial(self._carry, "copy", MessageWork.copy),
                body=parameters.Target,
            ),
            work(
                f"{_MESSAGES}/delete", summary="Delete messages.", handle=self._delete_messages, body=parameters.Chosen
            ),
            work(f"{_MESSAGES}/retry", summary="Retry dead letters.", handle=self._retry, body=parameters.Retrying),
        ]

    async def _browse(self, call: Call) -> web.Response:
        engine, queue = self._term.existing(call)
        query: parameters.Browsing = call.query
        choice = Choice(query.selector)
        work = MessageWork(engine, call.caller)
        return encoded(await work.browse(queue, choice, query.after, query.limit, self._answers))

    async def _read(self, call: Call) -> Answer:
        engine, queue = self._term.existing(call)
        query: parameters.Reading = call.query
        found = await MessageWork(engine, call.caller).read(queue, call.path["id"], query.after)
        if found is None:
            raise Refused(
                404, f"{queue} has no message {call.path['id'][:64]!r} after the first {query.after} messages"
            )
        return found

    async def _purge(self, call: Call) -> web.Response:
        engine, queue = self._term.existing(call)
        work = MessageWork(engine, call.caller)
        return await self._running.begin(call, "purge", queue, lambda task: work.purge(queue, task))

    async def _carry(self, kind: str, carry: Callable[..., Awaitable[None]], call: Call) -> web.Response:
        engine, queue = self._term.existing(call)
        body: parameters.Target = _chosen(call)
        target = Destination(KINDS[body.to_kind], body.to)
        work = MessageWork(engine, call.caller)
        return await self._running.begin(
            call, kind, queue, lambda task: carry(work, queue, target, body.choice, task), to=str(target)
        )

    async def _delete_messages(self, call: Call) -> web.Response:
        engine, queue = self._term.existing(call)
        choice = _chosen(call).choice
        work = MessageWork(engine, call.caller)
        return await self._running.begin(call, "delete", queue, lambda task: work.delete(queue, choice, task))

    async def _retry(self, call: Call) -> web.Response:
        engine, queue = self._term.existing(call)
        body: parameters.Retrying = _chosen(call)
        work = MessageWork(engine, call.caller)
        if body.dry_run:
            return await self._running.begin(
                call, "retry, dry run", queue, lambda task: work.count_retry(queue, body.choice, task)
            )
        retry = partial(work.retry, rate=body.rate, is_tried=body.canary, wait_seconds=body.canary_wait)
        return await self._running.begin(call, "retry", queue, lambda task: retry(queue, body.choice, task))


def _chosen(call: Call) -> Any:
    body: parameters.Chosen = call.body
    if not body.is_choice:
        raise Refused(400, "choose messages with ids, selector or limit, or all of them with all=true")
    return body


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
    """Pauses of one broker, in all its terms as master. On the loop. ``name``: the broker's name."""

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
