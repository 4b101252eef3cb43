"""Endpoints of the broker: its figures, its connectors, its store, its set, the other pages of the server, and its
tasks, among them backups.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from tandemmq.broker.admin.answers import Answers, answer
from tandemmq.broker.admin.api import parameters
from tandemmq.broker.admin.api.endpoints import (
    TASK,
    Answer,
    Call,
    Endpoint,
    Nothing,
    Refused,
    RequestFields,
    Term,
    status_of,
)
from tandemmq.broker.admin.api.tasks import Task, Tasks, back_up
from tandemmq.broker.admin.callers import Role
from tandemmq.broker.admin.status import Report
from tandemmq.broker.net.server import Server
from tandemmq.store.records.message import Destination

CHECKPOINT_SECONDS_MAX: Final = 30.0
#: Prefixes of those counts in a status that describe the store.
_STORE_FIGURES: Final = ("journal_", "checkpoint", "compaction")


class BrokerPages:
    """Endpoints of the broker. ``pages``: handlers of other pages of the admin server, by method and path (``GET
    /lock``). ``users`` returns users and rights; it is called on a thread."""

    def __init__(
        self,
        report: Report,
        term: Term,
        server: Server,
        pages: Mapping[str, Handler],
        users: Callable[[], Answer],
        answers: Answers,
    ) -> None:
        self._report = report
        self._term = term
        self._server = server
        self._pages = pages
        self._users = users
        self._answers = answers
        self._summing = asyncio.Lock()

    def endpoints(self) -> list[Endpoint]:
        viewer, admin = Role.VIEWER, Role.ADMIN
        page = self._page
        return [
            Endpoint("GET", "/broker", viewer, "Show role, epoch, store, figures and problems.", self._get_broker),
            Endpoint("GET", "/figures", viewer, "Show sums over all destinations.", self._get_figures),
            Endpoint("GET", "/connectors", viewer, "List the addresses for clients.", self._get_connectors),
            Endpoint("GET", "/bridges", viewer, "List bridges to other MQTT brokers.", self._get_bridges),
            Endpoint("GET", "/store", viewer, "Show the figures of the store.", self._get_store),
            page("GET", "/store/why", viewer, "Show what keeps each journal file.", query=_Why),
            Endpoint("POST", "/store/checkpoint", admin, "Make a checkpoint.", self._checkpoint, body=Nothing),
            page("POST", "/store/compact", admin, "Compact the journal.", query=_Store, body=Nothing),
            page("GET", "/locker", viewer, "Show the lock.", of="/lock"),
            Endpoint("GET", "/replication", viewer, "Show the replicated set, if there is one.", self._get_replication),
            page("GET", "/events", viewer, "List events.", query=parameters.Last),
            page("POST", "/handover", admin, "Hand over to another broker.", query=parameters.Successor, body=Nothing),
            Endpoint("GET", "/users", admin, "List users and rights, without passwords.", self._get_users),
        ]

    async def _get_broker(self, call: Call) -> Answer:
        return self._report.status()

    async def _get_figures(self, call: Call) -> Answer:
        """Return the sums over all destinations; on a standby, an empty answer. Calls run one at a time, because each
        visits all destinations."""
        async with self._summing:
            details = await self._answers.run(self._report.details())
        return {"counts": details.get("counts", {}), **details.get("queue_sums", {})}

    async def _get_bridges(self, call: Call) -> Answer:
        return {"items": self._report.bridges(), "left": self._report.left_by_bridges()}

    async def _get_connectors(self, call: Call) -> Answer:
        counts = self._server.counts()
        return {
            "items": [
                {"name": name, "host": address.host, "port": address.port, "connections": counts.get(name, 0)}
                for name, address in self._server.advertised_addresses
            ]
        }

    async def _get_store(self, call: Call) -> Answer:
        status = self._report.status()
        figures = {key: value for key, value in status["counts"].items() if key.startswith(_STORE_FIGURES)}
        more = ("stores", "recovery", "takeover", "standby", "congested")
        return {
            "directory": status["store"],
            "role": status["role"],
            "figures": figures,
            **{key: status[key] for key in more if key in status},
        }

    async def _checkpoint(self, call: Call) -> Answer:
        store = self._report.mastership.store
        if store is None:
            raise self._term.not_master()
        try:
            async with asyncio.timeout(CHECKPOINT_SECONDS_MAX):
                await asyncio.gather(*map(asyncio.wrap_future, store.checkpoint()))
        except (TimeoutError, CancelledError) as error:
            raise Refused(503, f"the checkpoint did not end within {CHECKPOINT_SECONDS_MAX:.0f} s") from error
        return {"checkpoints": store.figures.checkpoints}

    async def _get_replication(self, call: Call) -> Answer:
        return {"replication": self._report.status().get("replication")}

    async def _get_users(self, call: Call) -> Answer:
        return await asyncio.to_thread(self._users)

    def _page(
        self,
        method: str,
        path: str,
        role: Role,
        summary: str,
        *,
        of: str | None = None,
        query: type[RequestFields] = Nothing,
        body: type[RequestFields] | None = None,
    ) -> Endpoint:
        """Return the endpoint that answers with another page of the admin server: ``of``, or if None the page with the
        same path."""
        page = self._pages[f"{method} {of or path}"]

        async def ask(call: Call) -> web.StreamResponse:
            return await page(call.request)

        return Endpoint(method, path, role, summary, ask, query, body)


class _Store(RequestFields):
    """Query for one of several stores."""

    store: parameters.Name | None = None


class _Why(_Store):
    """Query for one file, or for all."""

    file: parameters.Name | None = None


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
