"""Fixtures: each server runs once for a session. A test that stops or pauses it must start or resume it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.services import mariadb as mariadb_server
from tests.support.services import postgres as postgres_server


@pytest.fixture(scope="session")
def postgres(require_service: Callable[[object, str], None]) -> Iterator[postgres_server.Postgres]:
    server = postgres_server.made(require_service)
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def mariadb(require_service: Callable[[object, str], None]) -> Iterator[mariadb_server.MariaDB]:
    server = mariadb_server.made(require_service)
    server.start()
    yield server
    server.remove()
