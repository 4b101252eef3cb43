"""Tables of a journal that a test defines: rows as dicts; missing columns are null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tandemmq.pipeline.columns import COLUMNS, ddl

STORE: Final = "a"


def frames_of(session: Any) -> Callable[..., Any]:
    """Return ``frame(table, *rows)``, which returns the rows as a DataFrame of that table; the default store is "a"."""

    def make(table: str, *rows: dict[str, Any]) -> Any:
        columns = [name for name, _ in COLUMNS[table]]
        unknown = {name for row in rows for name in row} - set(columns)
        assert not unknown, f"{table} has no {unknown}"
        return session.createDataFrame(
            [[{"store": STORE, **row}.get(name) for name in columns] for row in rows], ddl(table)
        )

    return make
