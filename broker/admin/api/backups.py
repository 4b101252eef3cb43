"""A backup that an operator requests. A separate process makes it, so that the event loop of the broker is not
delayed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Final

from tandemmq.broker.admin.api.tasks import Task
from tandemmq.broker.core.commands import refusal

#: Interval of the checks whether the operator stopped the task.
CHECK_SECONDS: Final = 0.2
#: Limit of the output of the backup process.
_OUTPUT_BYTES_MAX: Final = 1 << 20


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
