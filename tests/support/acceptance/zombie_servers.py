"""Servers for locks, each started at its first use; a test can step the clocks of databases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.support.acceptance.zombie_locks import DatabaseLock, ZooKeeperLock
from tests.support.acceptance.zombie_shim import Shim
from tests.support.services import mariadb, postgres, zookeeper

RequireService = Callable[[object, str], None]
Database = postgres.Postgres | mariadb.MariaDB


class Servers:
    """Provide unused locks. ``remove`` ends all servers. Skips the test if a server is not installed."""

    def __init__(self, library: Path, require_service: RequireService) -> None:
        self._library = library
        self._require_service = require_service
        self._ends = ExitStack()
        self._databases: dict[str, tuple[Database, Shim]] = {}

    def database(self, kind: str, server: str) -> DatabaseLock:
        """Return a lock. ``kind``: value of `[locker] type`; ``server``: postgres or mariadb."""
        if server not in self._databases:
            self._databases[server] = self._start(server)
        database, clock = self._databases[server]
        clock.step_wall_clock(0)
        database.fresh(kind)
        return DatabaseLock(kind, database.port, lambda port: database.url(kind, port), clock)

    def zookeeper(self) -> ZooKeeperLock:
        return ZooKeeperLock(self._ends.enter_context(zookeeper.zookeeper(self._require_service)).port)

    def _start(self, server: str) -> tuple[Database, Shim]:
        database = {"postgres": postgres, "mariadb": mariadb}[server].made(self._require_service)
        self._ends.callback(database.remove)
        clock = Shim(self._library, self._library.with_name(server), Path("/nowhere"))
        self._ends.callback(clock.close)
        database.start(clock.environment)
        return database, clock

    def remove(self) -> None:
        self._ends.close()
