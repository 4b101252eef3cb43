"""Real brokers in separate processes, for tests of the client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.bench.peers.server import Server
from tests.support.services.pairs import TandemMQ, pair_in


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one broker for all tests that do not stop it; each test uses its own queues."""
    with TandemMQ(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """A master and its standby over one directory."""
    with pair_in(tmp_path) as both:
        yield both
