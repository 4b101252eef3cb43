"""The statements of the database locks, and their replacements in `[locker.statements]`.

Names and meanings are those of ActiveMQ's `Statements`, in snake_case: a statement that was overridden for an ActiveMQ
broker can be copied unchanged, with its parameters `?` in ActiveMQ's order. Table and columns go into SQL unchanged and
unquoted, as in ActiveMQ, so both find the same table in every database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.locker.contract import LockSettingsError
from tandemmq.locker.options import Options

TABLE: Final = "ACTIVEMQ_LOCK"

#: Parameters of each statement in ActiveMQ.
PARAMETERS: Final = {
    "lock_create_statement": (),
    "lock_update_statement": ("time",),
    "lease_obtain_statement": ("name", "end", "now"),
    "lease_update_statement": ("name", "end", "name it had"),
    "lease_owner_statement": (),
    "current_date_time_statement": (),
}
_CREATE: Final = "create_lock_schema_statements"
_NAME: Final = (re.compile(r"[\w$.\"`\[\]-]*"), "a name as it stands in SQL, with its quotes if it needs any")
_TYPE: Final = (re.compile(r"[\w(), ]+"), "an SQL type, like VARCHAR(250)")
# A quoted text, or a parameter: quoted text is skipped.
_QUOTED_OR_PARAMETER: Final = re.compile(r"('[^']*')|(\?)|(:)")


@dataclass(frozen=True, slots=True)
class Override:
    """Statement of the operator, with named parameters p0, p1, … for its `?`."""

    sql: str
    count: int

    def parameters(self, *values: object) -> dict[str, object]:
        assert len(values) == self.count, f"{self.count} parameters, not {len(values)}: {self.sql}"
        return {f"p{number}": value for number, value in enumerate(values)}


def _override(key: str, sql: str) -> Override:
    count = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal count
        if match[1] is not None:
            return match[1].replace(":", r"\:")
        if match[3] is not None:
            return r"\:"
        count += 1
        return f":p{count - 1}"

    named = _QUOTED_OR_PARAMETER.sub(replaced, sql.rstrip("; \n"))
    wanted = PARAMETERS[key]
    if count != len(wanted):
        expected = f"{len(wanted)} parameters '?'" + (f": {', '.join(wanted)}" if wanted else "")
        raise LockSettingsError(f"statements.{key}", sql, expected)
    return Override(named, count)


@dataclass(frozen=True, slots=True)
class Statements:
    """Names and types as they go into SQL, and the statements to use instead of ours."""

    table: str = TABLE
    id: str = "ID"
    time: str = "TIME"
    name: str = "BROKER_NAME"
    number_type: str = "BIGINT"
    text_type: str = "VARCHAR(250)"
    one_row: bool = True
    create: tuple[str, ...] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)

    @classmethod
    def read(cls, options: Options, values: object) -> Statements:
        """Read the keys beside `type` and the table [locker.statements]. Raises LockSettingsError."""
        if values is not None and not isinstance(values, Mapping):
            raise LockSettingsError("statements", values, "a table")
        inside = dict(values or {})
        create = _texts(inside.pop(_CREATE, None))
        inner = Options({f"statements.{key}": value for key, value in inside.items()})
        table = _twice(options, inner, "lock_table_name") or TABLE
        prefix = _twice(options, inner, "table_prefix") or ""
        statements = cls(
            table=_checked("lock_table_name", prefix + table),
            id=_checked("id_column", inner.text("statements.id_column", "ID")),
            time=_checked("time_column", inner.text("statements.time_column", "TIME")),
            name=_checked("broker_name_column", inner.text("statements.broker_name_column", "BROKER_NAME")),
            number_type=_checked("statements.long_data_type", inner.text("statements.long_data_type", "BIGINT"), _TYPE),
            text_type=_checked(
                "statements.string_id_data_type", inner.text("statements.string_id_data_type", "VARCHAR(250)"), _TYPE
            ),
            one_row=inner.flag("statements.use_lock_create_where_clause", True),
            create=create,
            overrides={key: _override(key, sql) for key in PARAMETERS if (sql := inner.text(f"statements.{key}"))},
        )
        inner.end()
        return statements

    @property
    def schema(self) -> tuple[str, ...]:
        """Statements that make the table and its row, one after the other."""
        return self.create or (
            f"CREATE TABLE {self.table}( {self.id} {self.number_type} NOT NULL, {self.time} {self.number_type}, "
            f"{self.name} {self.text_type}, PRIMARY KEY ({self.id}) )",
            f"INSERT INTO {self.table}({self.id}) VALUES (1)",
        )

    @property
    def the_row(self) -> str:
        return f"{self.id} = 1"


def _twice(options: Options, inner: Options, key: str) -> str | None:
    """Return a key that may be in [locker] and in [locker.statements], but not with two values."""
    beside, inside = options.text(key), inner.text(f"statements.{key}")
    if beside is not None and inside is not None and beside != inside:
        raise LockSettingsError(f"statements.{key}", inside, f"the same as locker.{key}, {beside!r}; leave one out")
    return inside if beside is None else beside


def _checked(key: str, text: str | None, allowed: tuple[re.Pattern[str], str] = _NAME) -> str:
    pattern, expected = allowed
    if not text or not pattern.fullmatch(text):
        raise LockSettingsError(key, text, expected)
    return text


def _texts(values: object) -> tuple[str, ...]:
    """Return a list of statements from a list, or from one text with ';' between them."""
    parts = values.split(";") if isinstance(values, str) else values
    if parts is None:
        return ()
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise LockSettingsError(f"statements.{_CREATE}", values, "a list of statements")
    return tuple(part.strip().replace(":", r"\:") for part in parts if part.strip())
