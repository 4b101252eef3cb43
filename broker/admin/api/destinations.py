"""Endpoints for single destinations and the messages of a queue."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from aiohttp import web

from tandemmq.broker.admin.answers import Answers, encoded
from tandemmq.broker.admin.api import parameters
from tandemmq.broker.admin.api.broker_pages import Running
from tandemmq.broker.admin.api.endpoints import KINDS, OBJECT, TASK, Answer, Call, Endpoint, Refused, Term
from tandemmq.broker.admin.api.message_work import Choice, MessageWork
from tandemmq.broker.admin.api.operator_client import operator_client
from tandemmq.broker.admin.api.pauses import Pauses
from tandemmq.broker.admin.callers import Role
from tandemmq.broker.core.commands import AddDestination, Command, RemoveDestination
from tandemmq.store.records.message import Destination

log = logging.getLogger(__name__)

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
