"""Expressions over the columns of a frame as SQL, and windows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

TYPES: Final = {
    "long": "BIGINT",
    "int": "INTEGER",
    "string": "VARCHAR",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "binary": "BLOB",
}
# SQL types of columns, by Spark's names in a schema.
SQL_TYPES: Final = {
    "STRING": "VARCHAR",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "DOUBLE": "DOUBLE",
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMPTZ",
    "BINARY": "BLOB",
    "MAP<STRING, STRING>": "MAP(VARCHAR, VARCHAR)",
    "ARRAY<STRING>": "VARCHAR[]",
}


class Column:
    """An expression. ``name``: its name in a result; None: it has no name yet. ``call``: the part of ``sql`` to which a
    window applies; None: all of it."""

    __slots__ = ("_call", "name", "sql")

    def __init__(self, sql: str, name: str | None = None, call: str | None = None) -> None:
        self.sql = sql
        self.name = name
        self._call = sql if call is None else call

    def alias(self, name: str) -> Column:
        return Column(self.sql, name, self._call)

    def over(self, window: WindowSpec) -> Column:
        return Column(self.sql.replace(self._call, f"{self._call} OVER ({window.sql})", 1), self.name)

    def cast(self, kind: str) -> Column:
        return Column(f"CAST({self.sql} AS {TYPES[kind]})", self.name)

    def isin(self, *values: object) -> Column:
        return Column(f"({self.sql} IN ({', '.join(map(literal, values))}))" if values else "FALSE")

    def isNull(self) -> Column:
        return Column(f"({self.sql} IS NULL)")

    def isNotNull(self) -> Column:
        return Column(f"({self.sql} IS NOT NULL)")

    def eqNullSafe(self, other: object) -> Column:
        return self._with("IS NOT DISTINCT FROM", other)

    def rlike(self, pattern: str) -> Column:
        return Column(f"regexp_matches({self.sql}, {literal(pattern)})")

    def bitwiseOR(self, other: object) -> Column:
        return self._with("|", other)

    def bitwiseAND(self, other: object) -> Column:
        return self._with("&", other)

    def __getitem__(self, number: int) -> Column:
        return Column(f"({self.sql})[{number + 1}]")

    def getField(self, name: str) -> Column:
        return Column(f"({self.sql}).{quoted(name)}", name)

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __and__(self, other: object) -> Column:
        return self._with("AND", other)

    def __or__(self, other: object) -> Column:
        return self._with("OR", other)

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return self._with("=", other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return self._with("<>", other)

    def __lt__(self, other: object) -> Column:
        return self._with("<", other)

    def __le__(self, other: object) -> Column:
        return self._with("<=", other)

    def __gt__(self, other: object) -> Column:
        return self._with(">", other)

    def __ge__(self, other: object) -> Column:
        return self._with(">=", other)

    def __add__(self, other: object) -> Column:
        return self._with("+", other)

    def __sub__(self, other: object) -> Column:
        return self._with("-", other)

    def __mul__(self, other: object) -> Column:
        return self._with("*", other)

    def __truediv__(self, other: object) -> Column:
        return self._with("/", other)

    __hash__ = None  # type: ignore[assignment]

    def _with(self, operator: str, other: object) -> Column:
        return Column(f"({self.sql} {operator} {literal(other)})")


class Case(Column):
    """A CASE expression, to which branches can be added. Rows without a matching branch are null."""

    __slots__ = ("_branches",)

    def __init__(self, branches: str) -> None:
        super().__init__(f"(CASE {branches} END)")
        self._branches = branches

    def when(self, condition: Column, value: object) -> Case:
        return Case(f"{self._branches} WHEN {condition.sql} THEN {literal(value)}")

    def otherwise(self, value: object) -> Column:
        return Column(f"(CASE {self._branches} ELSE {literal(value)} END)")


class Descending(Column):
    """An expression for a descending order."""

    __slots__ = ()


def literal(value: object) -> str:
    """Return a column or a value as SQL."""
    match value:
        case Column():
            return value.sql
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            return f"CAST({value!r} AS DOUBLE)"  # in SQL, a number with a point is a DECIMAL
        case str():
            return "'" + value.replace("'", "''") + "'"
        case datetime():
            return f"CAST('{value.isoformat()}' AS TIMESTAMPTZ)"
    raise TypeError(f"not a value of SQL: {value!r}")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def column(given: str | Column) -> Column:
    """Return the column with a name: ``name``, ``alias.name`` or ``struct.field``."""
    if isinstance(given, Column):
        return given
    *_, last = parts = given.split(".")
    return Column(".".join(map(quoted, parts)), last)


def ordering(given: str | Column) -> str:
    """Return a term of ORDER BY. Nulls have the smallest value, as in Spark."""
    made = column(given)
    return f"{made.sql} DESC NULLS LAST" if isinstance(made, Descending) else f"{made.sql} ASC NULLS FIRST"


# ---- windows


@dataclass(frozen=True, slots=True)
class WindowSpec:
    keys: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    frame: str = ""

    @property
    def sql(self) -> str:
        keys = f"PARTITION BY {', '.join(self.keys)}" if self.keys else ""
        order = f"ORDER BY {', '.join(self.order)}" if self.order else ""
        return " ".join(filter(None, (keys, order, self.frame)))

    def orderBy(self, *columns: str | Column) -> WindowSpec:
        return replace(self, order=tuple(map(ordering, columns)))

    def rowsBetween(self, start: int, end: int) -> WindowSpec:
        return replace(self, frame=f"ROWS BETWEEN {_edge(start)} AND {_edge(end)}")


def _edge(rows: int) -> str:
    if rows == 0:
        return "CURRENT ROW"
    side = "PRECEDING" if rows < 0 else "FOLLOWING"
    unbounded = rows in (Window.unboundedPreceding, Window.unboundedFollowing)
    return f"{'UNBOUNDED' if unbounded else abs(rows)} {side}"


class Window:
    unboundedPreceding: Final = -sys.maxsize
    unboundedFollowing: Final = sys.maxsize
    currentRow: Final = 0

    @staticmethod
    def partitionBy(*columns: str | Column) -> WindowSpec:
        return WindowSpec(tuple(column(each).sql for each in columns))


def names_of(columns: Sequence[Column]) -> list[str]:
    """Return the names of a result's columns; a column without a name gets one with its number."""
    return [each.name if each.name is not None else f"_{number}" for number, each in enumerate(columns)]
