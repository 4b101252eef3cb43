"""Tasks of operators that may take long: each continues when its caller disconnects, and can be stopped between two
messages. A backup is made by a separate process, so that the broker need not spend time on it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tandemmq.broker.admin.callers import Caller
from tandemmq.broker.core.commands import ClientError, refusal

log = logging.getLogger(__name__)

#: Limits of running tasks, of one user and of all; more are refused.
RUNNING_OF_ONE_MAX: Final = 8
RUNNING_MAX: Final = 64
#: Number of finished tasks that are remembered.
REMEMBERED_MAX: Final = 200
#: Limit of the notes of one task.
NOTES_MAX: Final = 50
#: Interval of the checks whether the operator stopped the task.
CHECK_SECONDS: Final = 0.2
#: Limit of the output of the backup process.
_OUTPUT_BYTES_MAX: Final = 1 << 20


class State(StrEnum):
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


class TooManyTasks(Exception):
    """A new task was refused because too many tasks are running."""


@dataclass(slots=True, eq=False)
class Task:
    """A task of an operator. ``counts``: progress by kind of result. ``notes``: sentences for the operator."""

    id: int
    kind: str
    destination: str
    caller: str
    facts: dict[str, Any]
    began: float = field(default_factory=time.time)
    ended: float | None = None
    state: State = State.RUNNING
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    refusal: ClientError | None = None  # the error, if the engine refused
    is_to_stop: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, what: str, more: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + more

    def note(self, sentence: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append(sentence)

    def row(self) -> dict[str, Any]:
        """Return the task as a row of the API."""
        return {
            "id": self.id,
            "kind": self.kind,
            "destination": self.destination,
            "by": self.caller,
            **self.facts,
            "state": self.state.value,
            "seconds": round((self.ended or time.time()) - self.began, 3),
            "counts": self.counts,
            "notes": self.notes,
            "error": self.error,
        }


class Tasks:
    """Tasks of one broker process. Runs on the loop."""

    def __init__(self) -> None:
        self._by_id: dict[int, Task] = {}
        self._running: dict[Task, asyncio.Task[None]] = {}
        self._next = 1

    def begin(
        self, kind: str, destination: str, caller: Caller, work: Callable[[Task], Awaitable[None]], **facts: Any
    ) -> Task:
        """Begin ``work`` as a task. ``work`` must check ``Task.is_to_stop`` at intervals. Raises TooManyTasks."""
        if sum(each.caller == caller.name for each in self._running) >= RUNNING_OF_ONE_MAX:
            raise TooManyTasks(f"{RUNNING_OF_ONE_MAX} tasks of {caller.name} are running: wait for one, or stop it")
        if len(self._running) >= RUNNING_MAX:
            raise TooManyTasks(f"{RUNNING_MAX} tasks are running: wait for one, or stop it")
        task = Task(self._next, kind, destination, caller.name, facts)
        self._next += 1
        self._by_id[task.id] = task
        for id in list(self._by_id)[: max(0, len(self._by_id) - REMEMBERED_MAX)]:
            if self._by_id[id] not in self._running:
                del self._by_id[id]
        log.info("%s %s by %s begins: task %d%s", kind, destination, caller.name, task.id, f" {facts}" if facts else "")
        self._running[task] = asyncio.create_task(self._run(task, work), name=f"{kind} {destination}")
        return task

    async def _run(self, task: Task, work: Callable[[Task], Awaitable[None]]) -> None:
        try:
            await work(task)
            task.state = State.STOPPED if task.is_to_stop else State.DONE
        except ClientError as error:
            task.refusal = error.with_traceback(None)  # frames of a traceback would keep the task in memory
            task.state, task.error = State.FAILED, f"{error.message}. {error.detail}".rstrip(". ")
        except Exception as error:
            log.exception("task %d failed", task.id)
            task.state, task.error = State.FAILED, f"an error of the broker: {error}"
        finally:
            task.ended = time.time()
            del self._running[task]
            task.over.set()
            log.info(
                "%s %s by %s: %s %s%s",
                task.kind,
                task.destination,
                task.caller,
                task.state.value,
                task.counts,
                "" if task.error is None else f": {task.error}",
            )

    def get(self, id: int) -> Task | None:
        return self._by_id.get(id)

    def all(self) -> list[Task]:
        """Return all tasks, the latest first."""
        return list(reversed(self._by_id.values()))


async def back_up(directory: str, target: str, task: Task) -> None:
    """Make and check a backup of the store ``directory`` in ``target``, as ``tandemmq backup`` does
    (store.tools.backup). Raises ClientError if no backup was made. A backup that was stopped has no manifest."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tandemmq", "backup", target, "--data", directory, "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_OUTPUT_BYTES_MAX,
        cwd=os.path.dirname(target),
    )
    assert process.stdout is not None, "its output is a pipe"
    saying = asyncio.create_task(process.stdout.read(_OUTPUT_BYTES_MAX))
    try:
        while not saying.done():
            await asyncio.wait((saying,), timeout=CHECK_SECONDS)
            if task.is_to_stop and process.returncode is None:
                process.terminate()
    finally:
        if process.returncode is None and not saying.done():
            process.kill()
    code = await process.wait()
    if task.is_to_stop:
        return
    try:
        result = json.loads(saying.result())
    except ValueError:
        result = {"error": f"the backup process ended with exit code {code} and without a result"}
    if code:
        raise refusal(str(result.get("error", "it failed")))
    for figure in ("messages", "files", "bytes"):
        task.count(figure, result[figure])
