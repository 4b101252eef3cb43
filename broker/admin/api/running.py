"""Endpoints for tasks: work that may take longer than a request, for example a backup."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tandemmq.broker.admin.answers import answer
from tandemmq.broker.admin.api import parameters
from tandemmq.broker.admin.api.backups import back_up
from tandemmq.broker.admin.api.endpoints import TASK, Answer, Call, Endpoint, Refused, RequestFields, status_of
from tandemmq.broker.admin.api.tasks import Task, Tasks
from tandemmq.broker.admin.roles import Role
from tandemmq.broker.admin.status import Report
from tandemmq.store.records.message import Destination


class Running:
    """Tasks of a broker. ``backups``: directory of backups, None if they are not permitted."""

    def __init__(self, report: Report, backups: str | None) -> None:
        self._report = report
        self._backups = backups
        self._tasks = Tasks()

    def endpoints(self) -> list[Endpoint]:
        operator = Role.OPERATOR
        return [
            Endpoint("GET", "/tasks", operator, "List running and finished tasks.", self._get_tasks),
            Endpoint("GET", "/tasks/{id}", operator, "Show a task.", self._get_task, query=_WaitingQuery, answers=TASK),
            Endpoint("DELETE", "/tasks/{id}", operator, "Stop a task.", self._stop_task, answers=TASK),
            Endpoint(
                "POST",
                "/backup",
                Role.ADMIN,
                "Copy the store, and verify the copy.",
                self._back_up,
                body=parameters.Backup,
                answers=TASK,
                statuses=(202,),
            ),
        ]

    async def begin(
        self, call: Call, kind: str, queue: Destination, work: Callable[[Task], Awaitable[None]], **facts: Any
    ) -> web.Response:
        """Begin a task. Answer when the task ends, or with its progress when the requested wait is over. Raises Refused
        if the engine refused the task by then."""
        task = self._tasks.begin(kind, str(queue), call.caller, work, **facts)
        return await _unless_refused(task, call.body.wait)

    async def _back_up(self, call: Call) -> web.Response:
        if self._backups is None:
            raise Refused(409, "backups are not permitted: admin.backup_directory is not set")
        target = os.path.join(self._backups, call.body.name)
        directory = self._report.directory
        task = self._tasks.begin("backup", target, call.caller, lambda task: back_up(directory, target, task))
        return await _unless_refused(task, call.body.wait)

    async def _get_tasks(self, call: Call) -> Answer:
        return {"items": [task.row() for task in self._tasks.all()]}

    def _task(self, call: Call) -> Task:
        text = call.path["id"]
        task = self._tasks.get(int(text)) if text.isdecimal() and len(text) < 16 else None
        if task is None:
            raise Refused(404, f"there is no task {text[:64]!r}")
        return task

    async def _get_task(self, call: Call) -> Answer:
        task = self._task(call)
        await _within(task, call.query.wait)
        return task.row()

    async def _stop_task(self, call: Call) -> Answer:
        task = self._task(call)
        task.is_to_stop = True
        return task.row()


class _WaitingQuery(RequestFields):
    """Query for a task. ``wait``: limit of the seconds to wait for the end of the task."""

    wait: parameters.Wait = 0.0


async def _unless_refused(task: Task, seconds: float) -> web.Response:
    """Answer like ``_within``. Raises Refused if the engine refused the task by then."""
    response = await _within(task, seconds)
    if task.refusal is not None:
        raise Refused(status_of(task.refusal), task.error or "", task=task.row())
    return response


async def _within(task: Task, seconds: float) -> web.Response:
    """Answer with the task when it ends, or after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await task.over.wait()
    except TimeoutError:
        return answer(task.row(), 202)
    return answer(task.row())
