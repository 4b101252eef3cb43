"""A master and its standby with one directory, in separate processes, and the URL of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemmq.bench.peers import server
from tandemmq.bench.peers.server import HOST, Server
from tests.support import forked


class TandemMQ(server.TandemMQ):
    """A TandemMQ that is forked."""

    popen = forked.Popen


@contextmanager
def pair_in(directory: Path) -> Iterator[tuple[Server, Server]]:
    """Run both; end them in any state at the end. The store is ``directory``/data."""
    data = directory / "data"
    standby = TandemMQ(directory / "b", data=data, broker="b")
    with TandemMQ(directory / "a", data=data, broker="a") as master:
        try:
            standby.start()
            standby.await_standby()
            yield master, standby
        finally:
            standby.discard()


def failover_url(*servers: Server) -> str:
    return f"failover:({','.join(f'stomp://{HOST}:{server.port}' for server in servers)})?maxReconnectDelay=50"
