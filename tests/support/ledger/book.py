"""A client's records of its actions, as lines of JSON. They contain nothing about a broker's storage.

Each line has ``do``, and ``began`` and ``ended``: milliseconds since 1970 by the client's clock, before and after the
call that the broker confirmed. A ``key`` identifies a message: it is a property of the message, or its body begins with
it.

    sent          to, key, id, kind, body, priority, persistent, expires, properties, transaction
    received      source, subscription, key, id, properties
    acknowledged  source, subscription, key, transaction
    skipped       source, subscription, key: the selector of the subscription does not take it
    expired, dead source, key, letters, cause: the client found the message in the queue ``letters``
    transaction   name, outcome: committed, rolled_back or prepared
    subscribed, unsubscribed    source, subscription, selector
    moment        nothing is under way, and what each store is given next is a message, which shows its time
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

Line = dict[str, Any]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Book:
    """Writes lines to ``out``. A line is written after its call has ended."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, do: str, **fields: Any) -> None:
        """Write a line with the current time, unless ``fields`` has other times."""
        at = now_ms()
        self._out.write(json.dumps({"do": do, "began": at, "ended": at, **fields}) + "\n")
        self._out.flush()

    @contextmanager
    def around(self) -> Iterator[list[Line]]:
        """Write the lines that the caller adds, all with the time before and the time after the block."""
        lines: list[Line] = []
        began = now_ms()
        yield lines
        ended = now_ms()
        for line in lines:
            self.write(**{**line, "began": began, "ended": ended})


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]
