"""Endpoints for the messages of a queue: browse, read, move, copy, delete, retry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from aiohttp import web

from tandemmq.broker.admin.answers import encoded
from tandemmq.broker.admin.api import parameters
from tandemmq.broker.admin.api.endpoints import OBJECT, TASK, Answer, Call, Endpoint, Refused
from tandemmq.broker.admin.api.message_work import Choice, MessageWork
from tandemmq.broker.admin.api.running import Running
from tandemmq.broker.admin.api.term import KINDS, Term
from tandemmq.broker.admin.encoding import Answers
from tandemmq.broker.admin.roles import Role
from tandemmq.store.records.message import Destination

_QUEUE: Final = "/destinations/queue/{name}"
_MESSAGES: Final = f"{_QUEUE}/messages"
_BROWSED: Final = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": OBJECT}, "following": {"type": ["integer", "null"]}},
    "required": ["items", "following"],
}


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
            work(f"{_MESSAGES}/move", summary="Move messages.", handle=self._move, body=parameters.Target),
            work(f"{_MESSAGES}/copy", summary="Copy messages.", handle=self._copy, body=parameters.Target),
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

    async def _move(self, call: Call) -> web.Response:
        return await self._carry(call, "move", MessageWork.move)

    async def _copy(self, call: Call) -> web.Response:
        return await self._carry(call, "copy", MessageWork.copy)

    async def _carry(self, call: Call, kind: str, carry: Callable[..., Awaitable[None]]) -> web.Response:
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
