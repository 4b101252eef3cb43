"""Table of the database locks: its statements, their replacements in `[locker.statements]`, and the lease row in SQL
(locker.sql.lease_database.LeaseTable).

The settings have the names and meanings of ActiveMQ's `Statements`, in snake_case. A statement of an ActiveMQ broker
can be copied unchanged, with its parameters `?` in ActiveMQ's order. The names of table and columns are inserted into
SQL without quotes, as in ActiveMQ, so both products find the same table in every database.

Each method of the lease row is one committed statement, which reads the database's clock itself. With statements of the
operator, the clock is read before and bound as a parameter, as in ActiveMQ. Then "now" and the end of the lease are
slightly early.
"""

# proofs: lease-table

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from tandemmq.locker.contract import LockRefused, LockSettingsError
from tandemmq.locker.options import Options
from tandemmq.locker.sql.connection import Database, Session
from tandemmq.locker.sql.lease_database import LeaseRow

logger = logging.getLogger(__name__)

TABLE: Final = "ACTIVEMQ_LOCK"
SECOND_MS: Final = 1000

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
_NAME: Final = (re.compile(r"[\w$.\"`\[\]-]*"), "a name in SQL, with quotes if SQL requires them")
_TYPE: Final = (re.compile(r"[\w(), ]+"), "an SQL type, like VARCHAR(250)")
# A quoted text (only its colons are escaped), a parameter, or a colon (escaped).
_QUOTED_OR_PARAMETER: Final = re.compile(r"('[^']*')|(\?)|(:)")


@dataclass(frozen=True, slots=True)
class Override:
    """Statement of the operator. Its parameters `?` are renamed to p0, p1, …; `count` is their number."""

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
    """Names and types in SQL, and the statements of the operator that replace ours."""

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
        """Read `options` of [locker], and `values`, the table [locker.statements]. Raises LockSettingsError."""
        if values is not None and not isinstance(values, Mapping):
            raise LockSettingsError("statements", values, "a table")
        inside = dict(values or {})
        create = _texts(inside.pop(_CREATE, None))
        inner = Options({f"statements.{key}": value for key, value in inside.items()})
        table = _from_either(options, inner, "lock_table_name") or TABLE
        prefix = _from_either(options, inner, "table_prefix") or ""
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
        """Statements that create the table and then its row."""
        return self.create or (
            f"CREATE TABLE {self.table}( {self.id} {self.number_type} NOT NULL, {self.time} {self.number_type}, "
            f"{self.name} {self.text_type}, PRIMARY KEY ({self.id}) )",
            f"INSERT INTO {self.table}({self.id}) VALUES (1)",
        )

    @property
    def the_row(self) -> str:
        return f"{self.id} = 1"


def _from_either(options: Options, inner: Options, key: str) -> str | None:
    """Return the value of a key that may be in [locker] or in [locker.statements]. Raises LockSettingsError if both
    tables have it with different values."""
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
    """Return the statements in a list, or in one text with ';' between them."""
    parts = values.split(";") if isinstance(values, str) else values
    if parts is None:
        return ()
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise LockSettingsError(f"statements.{_CREATE}", values, "a list of statements")
    return tuple(part.strip().replace(":", r"\:") for part in parts if part.strip())


class SqlLeaseTable:
    """Row 1 of the table of `statements`. With `may_create`, the first `read` creates a missing table or row."""

    def __init__(self, database: Database, statements: Statements, may_create: bool) -> None:
        self.where = f"row 1 of {statements.table} in {database.where}"
        self._session = Session(database, self.where)
        self._sql = statements
        self._may_create = may_create
        self._has_created = False

    def read(self) -> LeaseRow:
        try:
            row = self._row()
        except LockRefused:
            if not self._may_create or self._has_created:
                raise
            row = None
        if row is None:
            row = self._create_row()
        return row

    def obtain(self, name: str, lease_ms: int) -> bool:
        return self._obtain(name, lease_ms, None)

    def renew(self, name: str, lease_ms: int, known_as: Sequence[str]) -> bool:
        override = self._sql.overrides.get("lease_update_statement")
        if override is not None:
            row = self.read()
            if row.is_free or row.name not in known_as:  # prove: override-renews-own-live-lease
                return False
            return self._changes_one_row(override, name, _end_ms(row.now_ms, lease_ms), row.name)
        spec = self._sql
        return self._update(
            f"{spec.name} = :name, {spec.time} = {self._now} + :lease",
            f"{self._is_one_of(known_as)}"  # prove: renew-own-lease "{self._is_one_of(known_as)}" -> "1 = 1"
            f" AND {spec.time} > {self._now}",  # prove: renew-before-end " AND {spec.time} > {self._now}"
            {**self._names(known_as), "name": name, "lease": lease_ms},
        )

    def take_over(self, name: str, lease_ms: int, seen: LeaseRow) -> bool:
        if "lease_obtain_statement" in self._sql.overrides:
            return self._obtain(name, lease_ms, seen)
        return self._update(
            f"{self._sql.name} = :name, {self._sql.time} = {self._now} + :lease",
            f"{self._sql.name} = :seen"  # prove: take-over-from-the-holder-seen "{self._sql.name} = :seen" -> "1 = 1"
            f" AND {self._sql.time} = :ends",  # prove: take-over-what-stands " AND {self._sql.time} = :ends"
            {"name": name, "lease": lease_ms, "seen": seen.name, "ends": seen.ends_ms},
        )

    def free(self, known_as: Sequence[str]) -> None:
        override = self._sql.overrides.get("lease_update_statement")
        if override is not None:
            for name in known_as:
                self._changes_one_row(override, None, 0, name)
            return
        self._update(f"{self._sql.name} = NULL, {self._sql.time} = 0", self._is_one_of(known_as), self._names(known_as))

    def close(self) -> None:
        self._has_created = False
        self._session.close()

    # Statements

    @property
    def _now(self) -> str:
        return ":now" if "current_date_time_statement" in self._sql.overrides else self._session.dialect.now_ms

    def _read_clock(self) -> int:
        override = self._sql.overrides.get("current_date_time_statement")
        sql = override.sql if override is not None else f"SELECT {self._now}"
        rows = self._session.execute(sql).rows
        if not rows:
            raise LockRefused(f"{self.where}: the statement for the database's clock returned no row")
        return _milliseconds(rows[0][0])

    def _row(self) -> LeaseRow | None:
        spec, owner = self._sql, self._sql.overrides.get("lease_owner_statement")
        if owner is None and self._now != ":now":
            sql = f"SELECT {spec.name}, {spec.time}, {self._now} FROM {spec.table} WHERE {spec.the_row}"
            rows = self._session.execute(sql).rows
            return read_row(rows[0], rows[0][2]) if rows else None
        sql = f"SELECT {spec.name}, {spec.time} FROM {spec.table} WHERE {spec.the_row}" if owner is None else owner.sql
        rows = self._session.execute(sql).rows
        return read_row(rows[0], self._read_clock()) if rows else None

    def _obtain(self, name: str, lease_ms: int, seen: LeaseRow | None) -> bool:
        override = self._sql.overrides.get("lease_obtain_statement")
        if override is not None:
            now = self._read_clock()
            # The statement compares the end of the lease with this limit. The limit ``now`` requires that the lease has
            # ended. The observed end plus 1 ms requires only that the lease was not renewed since.
            limit = now if seen is None or seen.ends_ms is None else seen.ends_ms + 1
            return self._changes_one_row(override, name, _end_ms(now, lease_ms), limit)
        spec = self._sql
        return self._update(
            f"{spec.name} = :name, {spec.time} = {self._now} + :lease",
            f"({spec.time} IS NULL OR {spec.time} <= {self._now})",  # prove: obtain-if-ended "<= {self._now}" -> "> 0"
            {"name": name, "lease": lease_ms},
        )

    def _update(self, changes: str, condition: str, parameters: dict[str, object]) -> bool:
        sql = f"UPDATE {self._sql.table} SET {changes} WHERE {self._sql.the_row} AND {condition}"
        if ":now" in sql:
            now = self._read_clock()
            parameters = {**parameters, "now": now}
            if "lease" in parameters:
                parameters["lease"] = _end_ms(now, int(str(parameters["lease"]))) - now
        return self._session.execute(sql, parameters).count == 1  # prove: one-row-was-hit

    def _changes_one_row(self, override: Override, *values: object) -> bool:
        count = self._session.execute(override.sql, override.parameters(*values)).count
        return count == 1  # prove: override-hit-one-row

    def _is_one_of(self, known_as: Sequence[str]) -> str:
        return f"{self._sql.name} IN ({', '.join(f':known{number}' for number in range(len(known_as)))})"

    @staticmethod
    def _names(known_as: Sequence[str]) -> dict[str, object]:
        return {f"known{number}": name for number, name in enumerate(known_as)}

    # The table

    def _create_row(self) -> LeaseRow:
        if not self._may_create:
            raise LockRefused(f"{self.where} is missing, and create_tables_on_startup is false")
        create_schema(self._session, self._sql)
        self._has_created = True
        row = self._row()
        if row is None:
            raise LockRefused(f"{self.where} is still missing after create_lock_schema_statements")
        return row


def _end_ms(now_ms: int, lease_ms: int) -> int:
    """Return the end of a lease that begins now.

    If the clock shows only whole seconds, the true time is up to a second later. So almost a second is added: otherwise
    the lease could end before the proof of ownership expires.
    """
    hidden_ms = SECOND_MS - 1 if now_ms % SECOND_MS == 0 else 0  # prove: whole-seconds-hide-some "SECOND_MS - 1" -> "0"
    return now_ms + lease_ms + hidden_ms


def create_schema(session: Session, statements: Statements) -> None:
    """Create the table and the row. A refused statement is ignored, because table or row may exist already; the caller
    reads the row next. Raises LockUnavailable."""
    for statement in statements.schema:
        try:
            session.execute(statement)
            logger.info("%s: %s", session.where, statement)
        except LockRefused as error:
            logger.debug("%s", error)


def read_row(values: Sequence[Any], now: object) -> LeaseRow:
    """Return the row. `values` are name and end from the driver; `now` is the database's time (see `_milliseconds`)."""
    name, ends = values[0], values[1]
    return LeaseRow(None if name is None else str(name), None if ends is None else int(ends), _milliseconds(now))


def _milliseconds(value: object) -> int:
    """Return the database's time in ms since 1970. `value` is a number in ms, a datetime, or a text in ISO format. A
    date without a time zone is in UTC, because sessions are set to UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return round((value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp() * 1000)
    return int(value)  # type: ignore[call-overload, no-any-return]
