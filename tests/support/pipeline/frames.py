"""Tables of a journal that a test makes by hand: rows as dicts, what is not said is null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tandemmq.pipeline.columns import COLUMNS, ddl

STORE: Final = "a"


def frames_of(session: Any) -> Callable[..., Any]:
    """``frame(table, *rows)``: the rows as a DataFrame of that table; the store is "a" where a row names none."""

    def make(table: str, *rows: dict[str, Any]) -> Any:
        columns = [name for name, _ in COLUMNS[table]]
        unknown = {name for row in rows for name in row} - set(columns)
        assert not unknown, f"{table} has no {unknown}"
        return session.createDataFrame(
            [[{"store": STORE, **row}.get(name) for name in columns] for row in rows], ddl(table)
        )

    return make
