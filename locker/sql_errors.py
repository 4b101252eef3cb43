"""What a database's error means for a lock, by SQLSTATE or by number, never by its text.

    LockBusy         somebody else has the row just now
    LockRefused      waiting does not mend it: rights, password, no such database, table or column, not SQL, or it is
                     there already
    LockUnavailable  all else: no connection, no answer in time, shutting down, read-only replica, deadlock

PostgreSQL gives an SQLSTATE, but for a connection that failed before it stood. PyMySQL gives MySQL's number, sqlite3
SQLite's result code.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.exc import DBAPIError

from locker.contract import LockRefused, LockUnavailable

#: Classes of SQLSTATE: constraint violation, invalid authorization, invalid catalog or schema name, syntax error or
#: access rule violation.
REFUSED_CLASSES: Final = frozenset({"23", "28", "3D", "3F", "42"})
#: lock_not_available.
BUSY_STATES: Final = frozenset({"55P03"})

#: MySQL's and MariaDB's numbers, with the SQLSTATE that goes with each.
MYSQL_REFUSED: Final = {
    1044: "42000",  # access denied to the database
    1045: "28000",  # access denied to the user
    1049: "42000",  # unknown database
    1050: "42S01",  # the table is there
    1054: "42S22",  # unknown column
    1062: "23000",  # the row is there
    1064: "42000",  # not SQL
    1103: "42000",  # wrong table name
    1142: "42000",  # command denied on the table
    1143: "42000",  # command denied on the column
    1146: "42S02",  # no such table
    1227: "42000",  # a privilege is missing
    1251: "08004",  # the client cannot log in as the user wants
    1698: "28000",  # access denied, by an authentication plug-in
    1820: "HY000",  # the password must be changed first
    1862: "HY000",  # the password has expired
    4031: "HY000",  # locked account
    4151: "HY000",  # locked account, MariaDB
}
MYSQL_BUSY: Final = frozenset({1205, 3572})  # lock wait timeout, NOWAIT

#: SQLite's primary result codes: ERROR (not SQL, no such table), PERM, READONLY, CANTOPEN, CONSTRAINT, AUTH, NOTADB.
SQLITE_REFUSED: Final = frozenset({1, 3, 8, 14, 19, 23, 26})
SQLITE_BUSY: Final = frozenset({5, 6})


class LockBusy(LockUnavailable):
    """Somebody else has locked the row, or the file, at this moment."""


def translate(error: DBAPIError, where: str) -> LockUnavailable | LockRefused:
    """The error to raise instead, with what the database said and its SQLSTATE."""
    driver: Any = error.orig
    said = f"{where}: {_text(driver)}"
    state = getattr(driver, "sqlstate", None)
    if state is not None:
        if state in BUSY_STATES:
            return LockBusy(said, sqlstate=state)
        return LockRefused(said, sqlstate=state) if state[:2] in REFUSED_CLASSES else LockUnavailable(said, None, state)
    if hasattr(driver, "sqlite_errorcode"):
        return _sqlite(driver.sqlite_errorcode & 0xFF, said)
    if _was_asked_for_a_password(driver):
        return LockRefused(said)
    number = driver.args[0] if driver is not None and driver.args and isinstance(driver.args[0], int) else None
    if number in MYSQL_BUSY:
        return LockBusy(said, sqlstate="HY000")
    if number in MYSQL_REFUSED:
        return LockRefused(said, sqlstate=MYSQL_REFUSED[number])
    return LockUnavailable(said)


def _sqlite(code: int, said: str) -> LockUnavailable | LockRefused:
    if code in SQLITE_BUSY:
        return LockBusy(said)
    return LockRefused(said) if code in SQLITE_REFUSED else LockUnavailable(said)


def _was_asked_for_a_password(driver: Any) -> bool:
    """libpq keeps the SQLSTATE of a failed connection to itself. But a server that is starting, stopping or full says
    so before it asks for a password: one that asked, and then ended it, does not want us or has no such database."""
    connection = getattr(driver, "pgconn", None)
    return connection is not None and bool(connection.used_password or connection.needs_password)


def _text(driver: Any) -> str:
    """What the driver says, on one line."""
    arguments = driver.args if driver is not None else ()
    text = str(arguments[-1]) if arguments else type(driver).__name__
    return " ".join(text.split())
