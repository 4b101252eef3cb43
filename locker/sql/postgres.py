"""Connections to PostgreSQL that answer within a time limit, or not at all.

The server's own time limits do not help when the network, a proxy or the server's machine drops what is sent: libpq
then waits for ever. psycopg lets its caller wait, in steps; so the limit is kept here.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

Value = TypeVar("Value")
Wait = Generator[Any, Any, Value]


class BoundedConnection(psycopg.Connection[Any]):
    """Connection on which any statement ends within `answer_seconds`; a later one raises OperationalError, and the
    connection cannot be used any more."""

    answer_seconds: float = 30.0

    def wait(self, gen: Wait[Value], *arguments: Any, **settings: Any) -> Value:
        return super().wait(_bounded(gen, self.answer_seconds), *arguments, **settings)


def _bounded(waiting: Wait[Value], seconds: float) -> Wait[Value]:
    """Run ``waiting`` with a time limit. psycopg resumes it at each step, a tenth of a second, even if nothing has
    come."""
    deadline = time.monotonic() + seconds
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= deadline:
                raise psycopg.OperationalError(f"no answer within {seconds:g} s")
            wanted = waiting.send(ready)
    except StopIteration as end:
        value: Value = end.value
        return value
