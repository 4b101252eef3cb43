"""Translation of a database's errors for a lock, by SQLSTATE or by number, never by the text.

    LockBusy         another session has the row just now
    LockRefused      time does not mend it: rights, password, no such database, table or column, not SQL, or it is
                     there already
    LockUnavailable  all else: no connection, no answer in time, shutting down, read-only replica, deadlock

PostgreSQL gives an SQLSTATE, except for a connection that failed while it was opened. PyMySQL gives MySQL's number,
sqlite3 SQLite's result code.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError

from tandemmq.locker.contract import LockRefused, LockUnavailable
from tandemmq.locker.sql.states import (
    BUSY_STATES,
    MYSQL_BUSY,
    MYSQL_REFUSED,
    REFUSED_CLASSES,
    SQLITE_BUSY,
    SQLITE_REFUSED,
)


class LockBusy(LockUnavailable):
    """Another session has locked the row, or the file, at this moment."""


def translate(error: DBAPIError, where: str) -> LockUnavailable | LockRefused:
    """Return the error to raise instead, with the database's text and its SQLSTATE."""
    driver: Any = error.orig
    text = f"{where}: {_text(driver)}"
    state: str | None = getattr(driver, "sqlstate", None)
    first = driver.args[0] if driver is not None and driver.args else None
    if hasattr(driver, "sqlite_errorcode"):
        return _sqlite(driver.sqlite_errorcode & 0xFF, text)
    if isinstance(first, int):
        return _mysql(first, state, text)
    if state in BUSY_STATES:
        return LockBusy(text, sqlstate=state)
    if state is None:
        return LockRefused(text) if _was_asked_for_a_password(driver) else LockUnavailable(text)
    return LockRefused(text, sqlstate=state) if state[:2] in REFUSED_CLASSES else LockUnavailable(text, sqlstate=state)


def _mysql(number: int, state: str | None, text: str) -> LockUnavailable | LockRefused:
    """Translate an error of MySQL. Older drivers give the number alone, and the SQLSTATE HY000 stands for most
    errors."""
    if number in MYSQL_BUSY:
        return LockBusy(text, sqlstate=state)
    if number in MYSQL_REFUSED:
        return LockRefused(text, sqlstate=MYSQL_REFUSED[number])
    return LockUnavailable(text, sqlstate=state)


def _sqlite(code: int, text: str) -> LockUnavailable | LockRefused:
    if code in SQLITE_BUSY:
        return LockBusy(text)
    return LockRefused(text) if code in SQLITE_REFUSED else LockUnavailable(text)


def _was_asked_for_a_password(driver: Any) -> bool:
    """Return whether the server asked for a password. libpq does not give the SQLSTATE of a failed connection. But a
    server that is starting, stopping or full refuses before it asks for a password: if it asked, and then closed the
    connection, it refuses us or has no such database."""
    connection = getattr(driver, "pgconn", None)
    return connection is not None and bool(connection.used_password or connection.needs_password)


def _text(driver: Any) -> str:
    """Return the driver's text, on one line."""
    arguments = driver.args if driver is not None else ()
    text = str(arguments[-1]) if arguments else type(driver).__name__
    return " ".join(text.split())
