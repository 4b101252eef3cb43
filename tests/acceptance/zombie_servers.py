"""Database servers whose clock a test can step, each started when a pair first asks for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), "services"))

import mariadb
import postgres
from zombie_locks import ServerLock
from zombie_shim import Shim

RequireService = Callable[[object, str], None]


class Servers:
    """``lock`` gives one in an empty database of its own; ``remove`` ends all servers."""

    def __init__(self, library: Path, require_service: RequireService) -> None:
        self._library = library
        self._require_service = require_service
        self._started: dict[str, tuple[postgres.Postgres | mariadb.MariaDB, Shim]] = {}

    def lock(self, kind: str, server: str) -> ServerLock:
        """``kind`` as in `[locker] type`; ``server`` is postgres or mariadb. Skips where it is not installed."""
        if server not in self._started:
            self._started[server] = self._start(server)
        database, clock = self._started[server]
        database.fresh(kind)
        return ServerLock(kind, database.port, lambda port: database.url(kind, port), clock)

    def _start(self, server: str) -> tuple[postgres.Postgres | mariadb.MariaDB, Shim]:
        database: postgres.Postgres | mariadb.MariaDB
        if server == "postgres":
            self._require_service(postgres.programs(), "no PostgreSQL: the Debian package postgresql has it")
            database = postgres.Postgres()
        else:
            self._require_service(mariadb.programs(), "no MariaDB: the Debian package mariadb-server has it")
            database = mariadb.MariaDB()
        clock = Shim(self._library, self._library.with_name(server), Path("/nowhere"))
        database.start(clock.environment)
        return database, clock

    def remove(self) -> None:
        for database, clock in self._started.values():
            database.remove()
            clock.close()
