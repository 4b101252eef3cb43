"""Tables of SQLSTATEs and numbers: those with which a database refuses a lock, and those for a lock that another
session has.

Any other code is an error of the environment: the lock is unavailable.
"""

from __future__ import annotations

from typing import Final

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

#: SQLite's primary result codes: ERROR (not SQL, no such table), PERM, READONLY, CORRUPT, CANTOPEN, CONSTRAINT, AUTH,
#: NOTADB.
SQLITE_REFUSED: Final = frozenset({1, 3, 8, 11, 14, 19, 23, 26})
SQLITE_BUSY: Final = frozenset({5, 6})
