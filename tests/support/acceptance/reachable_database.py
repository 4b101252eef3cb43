"""A PostgreSQL of this machine that its containers and network namespaces reach."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.services import postgres


class ReachablePostgres(postgres.Postgres):
    """Listens on all addresses; its password is asked for everywhere."""

    def __init__(self) -> None:
        super().__init__()
        with (self.directory / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 0.0.0.0/0 md5\n")  # takes a password that is kept as SCRAM, too

    def command(self) -> list[str]:
        return [word.replace("listen_addresses=127.0.0.1", "listen_addresses=*") for word in super().command()]


def reachable_postgres(require_service: Callable[[object, str], None]) -> ReachablePostgres:
    """Started; whoever asked removes it."""
    require_service(postgres.programs(), "no PostgreSQL: the Debian package postgresql has it")
    server = ReachablePostgres()
    server.start()
    return server
