"""Limits of the number of running tasks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tandemmq.broker.admin.api.tasks import RUNNING_MAX, RUNNING_OF_ONE_MAX, Task, Tasks, TooManyTasks
from tandemmq.broker.admin.callers import TOKEN_HOLDER


async def test_each_user_has_places_of_its_own_and_all_together_have_a_bound() -> None:
    tasks, gate = Tasks(), asyncio.Event()

    async def work(task: Task) -> None:
        await gate.wait()

    def begin(name: str) -> Task:
        return tasks.begin("purge", "queue://a", replace(TOKEN_HOLDER, name=name), work)

    of_one = [begin("alice") for _ in range(RUNNING_OF_ONE_MAX)]
    with pytest.raises(TooManyTasks, match="of alice are running"):
        begin("alice")
    others = [begin(f"user{number}") for number in range(RUNNING_MAX - len(of_one))]
    with pytest.raises(TooManyTasks, match=f"{RUNNING_MAX} tasks are running"):
        begin("bob")
    gate.set()
    await asyncio.gather(*(task.over.wait() for task in (*of_one, *others)))
    begin("alice")
