"""A PostgreSQL server for tests."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from tests.support.services.server_process import ServerProcess, user_for

PASSWORD = "a secret/of:the@tests"
USER = "tandemmq"


def programs() -> Path | None:
    """Return the directory of initdb and postgres, which are not in PATH on Debian."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    inside = shutil.which("postgres")
    return Path(inside).resolve().parent if inside else None


class Postgres(ServerProcess):
    """A cluster with one database and one user with a password."""

    user = user_for("postgres")
    login = (USER, PASSWORD)

    def __init__(self) -> None:
        super().__init__()
        self._bin = programs()
        assert self._bin is not None, "the fixture checks this before"
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        if self.user is not None:
            shutil.chown(secret, self.user)
        options = ["-A", "md5", "-U", USER, f"--pwfile={secret}", "--no-sync", "-E", "UTF8", "--locale=C"]
        self.run([str(self._bin / "initdb"), "-D", str(self.directory / "data"), *options])

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": "60",
            "autovacuum": "off",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [str(self._bin and self._bin / "postgres"), "-D", str(self.directory / "data"), *options]

    def answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.Error):
            psycopg.connect(self.conninfo("postgres"), connect_timeout=2).close()
            return True
        return False

    def kill(self) -> None:
        # Children of a killed postmaster keep the port for a moment; this setting ends them at once.
        self.stop(signal.SIGQUIT)

    def conninfo(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user={USER} password='{PASSWORD}' dbname={database}"

    def sql(self, *statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run statements, each committed; return the rows of the last one."""
        import psycopg

        rows: list[tuple[object, ...]] = []
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def end_sessions(self, database: str) -> None:
        """End all sessions of this database."""
        self.sql(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{database}'")

    def create_reader(self, user: str, database: str) -> None:
        """Create a user, with the same password, who may read every existing table."""
        self.sql(f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'")
        self.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}", database=database)

    def fresh(self, name: str) -> str:
        """Create an empty database; return its SQLAlchemy URL."""
        self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', f'CREATE DATABASE "{name}" TEMPLATE template0')
        return self.url(name)

    def url(self, database: str, port: int | None = None) -> str:
        from sqlalchemy import URL

        url = URL.create("postgresql", USER, PASSWORD, "127.0.0.1", port or self.port, database)
        return url.render_as_string(hide_password=False)


def made(require_service: Callable[[object, str], None]) -> Postgres:
    require_service(programs(), "no PostgreSQL: the Debian package postgresql has it")
    return Postgres()
