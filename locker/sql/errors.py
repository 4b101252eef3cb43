"""Translation of database errors to errors of a lock, by SQLSTATE or number, not by text.

    LockBusy         another session has locked the row
    LockRefused      a retry does not help: missing rights, wrong password, no such database, table or column, invalid
                     SQL, or the table or row exists already
    LockUnavailable  all others: no connection, no answer in time, shutting down, read-only replica, deadlock

PostgreSQL gives an SQLSTATE, except if opening a connection failed. PyMySQL gives MySQL's error number, sqlite3 gives
SQLite's result code. The tables below have the codes for LockRefused and LockBusy; any other code means
LockUnavailable. `tandemmq doctor errors` prints the tables, so this module does not import SQLAlchemy at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tandemmq.locker.contract import LockRefused, LockUnavailable

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError

#: Classes of SQLSTATE: constraint violation, invalid authorization, invalid catalog or schema name, syntax error or
#: access rule violation.
REFUSED_CLASSES: Final = frozenset({"23", "28", "3D", "3F", "42"})
#: lock_not_available.
BUSY_STATES: Final = frozenset({"55P03"})

#: Numbers of MySQL and MariaDB, with the SQLSTATE of each.
MYSQL_REFUSED: Final = {
    1044: "42000",  # access denied to the database
    1045: "28000",  # access denied to the user
    1049: "42000",  # unknown database
    1050: "42S01",  # the table exists already
    1054: "42S22",  # unknown column
    1062: "23000",  # the row exists already
    1064: "42000",  # invalid SQL
    1103: "42000",  # wrong table name
    1142: "42000",  # command denied on the table
    1143: "42000",  # command denied on the column
    1146: "42S02",  # no such table
    1227: "42000",  # a privilege is missing
    1251: "08004",  # the client does not support the authentication method of the user
    1698: "28000",  # access denied, by an authentication plug-in
    1820: "HY000",  # the password must be changed first
    1862: "HY000",  # the password has expired
    4031: "HY000",  # locked account
    4151: "HY000",  # locked account, MariaDB
}
MYSQL_BUSY: Final = frozenset({1205, 3572})  # lock wait timeout, NOWAIT

#: SQLite's primary result codes: ERROR (invalid SQL, no such table), PERM, READONLY, CORRUPT, CANTOPEN, CONSTRAINT,
#: AUTH, NOTADB.
SQLITE_REFUSED: Final = frozenset({1, 3, 8, 11, 14, 19, 23, 26})
SQLITE_BUSY: Final = frozenset({5, 6})


class LockBusy(LockUnavailable):
    """Another session has locked the row or, in SQLite, the file."""


def translate(error: DBAPIError, where: str) -> LockUnavailable | LockRefused:
    """Return the error of a lock that corresponds to `error`, with the database's text and its SQLSTATE."""
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
    """Translate an error of MySQL by its number: older drivers give no SQLSTATE, and HY000 covers many errors."""
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
    """Return whether the server requested a password while the connection was opened.

    libpq does not give the SQLSTATE of a failed connection. A server that is starting, stopping or full closes the
    connection before it requests a password. So if it requested one and then closed the connection, the user or the
    database was refused.
    """
    connection = getattr(driver, "pgconn", None)
    return connection is not None and bool(connection.used_password or connection.needs_password)


def _text(driver: Any) -> str:
    """Return the driver's text, on one line."""
    arguments = driver.args if driver is not None else ()
    text = str(arguments[-1]) if arguments else type(driver).__name__
    return " ".join(text.split())
