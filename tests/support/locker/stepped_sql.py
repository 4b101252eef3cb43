"""Databases with each statement as a step, and SQLite with a clock that a test controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tandemmq.locker.sql.connection import Answer, Parameters, Session
from tests.support.locker.steps import stepping

_JULIAN_1970: Final = 2_440_587.5
_DAY_SECONDS: Final = 86_400.0


@contextmanager
def statements_are_steps() -> Iterator[None]:
    """Make statements steps for actors of a schedule; other threads are not affected."""
    execute = Session.execute

    def stepped(session: Session, statement: str, parameters: Parameters | None = None) -> Answer:
        named = stepping(lambda: execute(session, statement, parameters), " ".join(statement.split()[:2]))
        answer = named()
        assert isinstance(answer, Answer)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "execute", stepped)
        yield


@contextmanager
def sqlite_goes_by(now_seconds: Callable[[], float]) -> Iterator[None]:
    """Set the result of SQLite's `julianday('now')` for all connections that are made in this context."""

    def connected(connection: Any, _record: Any) -> None:
        connection.create_function("julianday", 1, lambda _: _JULIAN_1970 + now_seconds() / _DAY_SECONDS)

    event.listen(Engine, "connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "connect", connected)
