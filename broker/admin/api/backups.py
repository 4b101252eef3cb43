"""A backup that an operator requests: made by a separate process, so that it takes no time of the broker's."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Final

from tandemmq.broker.admin.api.tasks import Task
from tandemmq.broker.core.commands import refusal

#: Interval of the checks whether to stop.
LOOK_SECONDS: Final = 0.2
#: Limit of the output of the process.
_SAID_BYTES_MAX: Final = 1 << 20


async def back_up(directory: str, target: str, task: Task) -> None:
    """Make a backup like ``tandemmq backup`` (store.tools.backup): then ``target`` has what ``directory`` stores,
    checked. ClientError when none was made. A backup that was stopped has no manifest."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tandemmq", "backup", target, "--data", directory, "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_SAID_BYTES_MAX,
        cwd=os.path.dirname(target),
    )
    assert process.stdout is not None, "its output is a pipe"
    saying = asyncio.create_task(process.stdout.read(_SAID_BYTES_MAX))
    try:
        while not saying.done():
            await asyncio.wait((saying,), timeout=LOOK_SECONDS)
            if task.is_to_stop and process.returncode is None:
                process.terminate()
    finally:
        if process.returncode is None and not saying.done():
            process.kill()
    code = await process.wait()
    if task.is_to_stop:
        return
    try:
        said = json.loads(saying.result())
    except ValueError:
        said = {"error": f"it ended with {code} without a result"}
    if code:
        raise refusal(str(said.get("error", "it failed")))
    for figure in ("messages", "files", "bytes"):
        task.count(figure, said[figure])
