"""The holder of a lock that is one long transaction: its writes are invisible to others, so the name is in row 2.

    ID 2   TIME until which the name is valid, by the database's clock   BROKER_NAME as locker.sql.lease has it

Written on a connection of its own, each statement committed. The row is optional: if it cannot be written, standbys
know that a broker has the lock, but not its name. ActiveMQ leaves rows other than 1 alone.
"""

from __future__ import annotations

import logging

from tandemmq.locker.contract import LockError, LockRefused
from tandemmq.locker.sql.connection import Session
from tandemmq.locker.sql.lease_database import LeaseRow
from tandemmq.locker.sql.table import Statements, create_schema, read_row

logger = logging.getLogger(__name__)


class SqlHolderRow:
    """Row 2 of the table. Only `read` raises. For one thread at a time."""

    def __init__(self, session: Session, statements: Statements, may_create: bool) -> None:
        self._session = session
        self._sql = statements
        self._may_create = may_create

    def write(self, name: str, valid_ms: int) -> None:
        """Write this name, valid from now on for `valid_ms`."""
        try:
            self._write(name, valid_ms)
        except LockError as error:
            logger.debug("the holder's name is not written: %s", error)

    def clear(self, name: str) -> None:
        """Remove the name, if it is this one."""
        sql = self._sql
        clear = f"UPDATE {sql.table} SET {sql.name} = NULL, {sql.time} = 0 WHERE {sql.id} = 2 AND {sql.name} = :name"
        try:
            self._session.execute(clear, {"name": name})
        except LockError as error:
            logger.debug("the holder's name is not cleared: %s", error)

    def read(self) -> LeaseRow | None:
        """Return the row, or None when it is not there. Raises LockUnavailable."""
        sql, now = self._sql, self._session.dialect.now_ms
        try:
            rows = self._session.execute(
                f"SELECT {sql.name}, {sql.time}, {now} FROM {sql.table} WHERE {sql.id} = 2"
            ).rows
        except LockRefused:
            return None
        return read_row(rows[0], rows[0][2]) if rows else None

    def close(self) -> None:
        self._session.close()

    def _write(self, name: str, valid_ms: int) -> None:
        sql, now = self._sql, self._session.dialect.now_ms
        values = {"name": name, "valid": valid_ms}
        update = f"UPDATE {sql.table} SET {sql.name} = :name, {sql.time} = {now} + :valid WHERE {sql.id} = 2"
        try:
            if self._session.execute(update, values).count == 1:
                return
        except LockRefused:
            if not self._may_create:
                raise
            create_schema(self._session, sql)
        insert = f"INSERT INTO {sql.table}({sql.id}, {sql.time}, {sql.name}) VALUES (2, {now} + :valid, :name)"
        self._session.execute(insert, values)
