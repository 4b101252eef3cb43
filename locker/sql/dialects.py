"""Differences between databases: drivers, time limits, clocks, and how a row is locked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import URL

from tandemmq.locker.contract import LockSettingsError

#: Lower limit of the time-out: psycopg rounds smaller values up to this.
POSTGRES_CONNECT_SECONDS_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class Bounds:
    """Time limits of a database, in seconds.

    connect   until there is a connection
    query     until a statement is answered
    lock      that a statement waits for a lock of others; 0: hardly at all
    silence   after which the server ends a session that is idle inside a transaction; None: never
    """

    connect_seconds: float
    query_seconds: float
    lock_seconds: float
    silence_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """A kind of database.

    driver     SQLAlchemy's name of dialect and driver; our `extra` installs it
    now_ms     an expression: ms since 1970, UTC, when it is evaluated and not when the transaction began
    begin      opens a transaction that ROLLBACK ends
    no_wait    behind a SELECT: lock the row, or fail at once
    """

    driver: str
    extra: str
    now_ms: str
    begin: str
    no_wait: str
    connect: Callable[[Bounds, str], dict[str, Any]]
    prepare: Callable[[Bounds, bool], list[str]]


def _postgres_connect(bounds: Bounds, name: str) -> dict[str, Any]:
    return {
        "connect_timeout": max(math.ceil(bounds.connect_seconds), POSTGRES_CONNECT_SECONDS_MIN),
        "tcp_user_timeout": _ms(bounds.query_seconds),
        "application_name": name[:63],
        # A statement prepared on one server does not exist on another behind the same pooler.
        "prepare_threshold": None,
    }


def _postgres_prepare(bounds: Bounds, _is_mariadb: bool) -> list[str]:
    limits = [
        "SET TIME ZONE 'UTC'",
        f"SET statement_timeout = {_ms(bounds.query_seconds)}",
        f"SET lock_timeout = {_ms(bounds.lock_seconds)}",
    ]
    if bounds.silence_seconds is not None:
        limits.append(f"SET idle_in_transaction_session_timeout = {_ms(bounds.silence_seconds)}")
    return ["; ".join(limits)]


def _mysql_connect(bounds: Bounds, name: str) -> dict[str, Any]:
    return {
        "connect_timeout": bounds.connect_seconds,
        "read_timeout": bounds.query_seconds,
        "write_timeout": bounds.query_seconds,
        "program_name": name,
    }


def _mysql_prepare(bounds: Bounds, is_mariadb: bool) -> list[str]:
    limits = ["time_zone = '+00:00'", "innodb_lock_wait_timeout = 1"]
    limits.append(f"max_statement_time = {bounds.query_seconds:.3f}") if is_mariadb else limits.append(
        f"max_execution_time = {_ms(bounds.query_seconds)}"
    )
    if bounds.silence_seconds is not None:
        limits.append(f"wait_timeout = {math.ceil(bounds.silence_seconds)}")
    return [f"SET SESSION {', '.join(limits)}"]


def _sqlite_connect(bounds: Bounds, _name: str) -> dict[str, Any]:
    # A connection may be closed by a thread other than the one that opened it; two threads never use it at once.
    return {"timeout": bounds.lock_seconds, "check_same_thread": False}


def _sqlite_prepare(_bounds: Bounds, _is_mariadb: bool) -> list[str]:
    # All brokers that share the file are on one host. Their writes survive the brokers. The holder of the lock need not
    # survive the host, and a disk that is busy with messages must not make a master late.
    return ["PRAGMA synchronous = OFF"]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


POSTGRES: Final = Dialect(
    "postgresql+psycopg",
    "postgres",
    "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "BEGIN",
    "FOR UPDATE NOWAIT",
    _postgres_connect,
    _postgres_prepare,
)
#: SYSDATE, since NOW is the time when a statement began, which may have waited for a lock.
MYSQL: Final = Dialect(
    "mysql+pymysql",
    "mysql",
    "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)",
    "START TRANSACTION",
    "FOR UPDATE NOWAIT",
    _mysql_connect,
    _mysql_prepare,
)
SQLITE: Final = Dialect(
    "sqlite",
    "sqlite",
    "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
    "BEGIN IMMEDIATE",
    "",
    _sqlite_connect,
    _sqlite_prepare,
)

_BY_NAME: Final = {"postgresql": POSTGRES, "mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}


def dialect_of(url: URL) -> Dialect:
    """Return the dialect of the database. Raises LockSettingsError for a database without one."""
    name = url.get_backend_name()
    if name not in _BY_NAME:
        raise LockSettingsError("data_source", f"{name}://…", "postgresql, mysql, mariadb or sqlite before the ://")
    return _BY_NAME[name]
