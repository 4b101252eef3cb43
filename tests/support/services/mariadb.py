"""A MariaDB server for tests."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable

import pymysql

from tests.support.services.server_process import ServerProcess, user_for

PASSWORD = "a secret/of:the@tests"
USER = "tandemmq"
_ROOT = "root"


def programs() -> tuple[str, str] | None:
    """Return the server program, and the program that creates its tables. On Debian the server is not in a user's
    PATH."""
    path = "/usr/sbin:/usr/bin:/usr/local/bin"
    server, installer = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    return (server, installer) if server and installer else None


class MariaDB(ServerProcess):
    """A server with one user and a password."""

    user = user_for("mysql")
    login = (USER, PASSWORD)

    def __init__(self) -> None:
        super().__init__()
        found = programs()
        assert found is not None, "the fixture checks this before"
        self._server, installer = found
        self.data = self.directory / "data"
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        self.run([installer, "--no-defaults", f"--datadir={self.data}", *options])

    def command(self) -> list[str]:
        return [
            self._server,
            "--no-defaults",
            f"--datadir={self.data}",
            f"--port={self.port}",
            f"--socket={self.directory / 'socket'}",
            f"--pid-file={self.directory / 'pid'}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=16M",
            "--innodb-flush-log-at-trx-commit=2",  # commits survive the process, but not the machine
            "--performance-schema=OFF",
        ]

    def answers(self) -> bool:
        with contextlib.suppress(pymysql.Error, OSError):
            self.sql(
                f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'",
                f"GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION",
            )
            return True
        return False

    def sql(self, *statements: str, database: str | None = None) -> list[tuple[object, ...]]:
        """Run statements as root, each committed; return the rows of the last one."""
        rows: list[tuple[object, ...]] = []
        connection = pymysql.connect(
            unix_socket=str(self.directory / "socket"),
            user=_ROOT,
            database=database,
            autocommit=True,
            connect_timeout=2,
        )
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
        return rows

    def end_sessions(self, database: str) -> None:
        """End all sessions of this database."""
        for (number,) in self.sql(f"SELECT id FROM information_schema.processlist WHERE db = '{database}'"):
            with contextlib.suppress(pymysql.err.OperationalError):  # it has ended by itself
                self.sql(f"KILL {number}")

    def create_reader(self, user: str, database: str) -> None:
        """Create a user, with the same password, who may read every existing table."""
        self.sql(
            f"CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'", f"GRANT SELECT ON `{database}`.* TO '{user}'@'%'"
        )

    def fresh(self, name: str) -> str:
        """Create an empty database; return its SQLAlchemy URL."""
        self.sql(f"DROP DATABASE IF EXISTS `{name}`", f"CREATE DATABASE `{name}`")
        return self.url(name)

    def url(self, database: str, port: int | None = None) -> str:
        from sqlalchemy import URL

        url = URL.create("mysql", USER, PASSWORD, "127.0.0.1", port or self.port, database)
        return url.render_as_string(hide_password=False)


def made(require_service: Callable[[object, str], None]) -> MariaDB:
    require_service(programs(), "no MariaDB: the Debian package mariadb-server has it")
    return MariaDB()
