"""The real JMS client with a real ActiveMQ and with TandemMQ: both must behave the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.interop.jms.jvm import JmsConnection, JmsSession, Jvm
from tests.support.interop.jms.peers import ActiveMQ, Peer, TandemMQ
from tests.support.prove import IS_PROOF

Connect = Callable[..., JmsConnection]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def _activemq(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    peer = ActiveMQ(tmp_path_factory.mktemp("activemq"), classes)
    peer.wait()
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def _tandemmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    peer = TandemMQ(tmp_path_factory.mktemp("tandemmq") / "data")
    peer.wait()
    yield peer
    peer.close()


@pytest.fixture(params=["activemq", "tandemmq"] if IS_PROOF else ["tandemmq"])
def broker(request: pytest.FixtureRequest) -> Peer:
    """Run one broker for the session, so each test uses its own names (`name`).

    With TANDEMMQ_PROVE=full each test runs before ActiveMQ, too: what is expected is what JMS users get there.
    """
    peer: Peer = request.getfixturevalue(f"_{request.param}")
    return peer


@pytest.fixture
def only_tandemmq(request: pytest.FixtureRequest) -> Peer:
    """Ours, where ActiveMQ is another."""
    peer: Peer = request.getfixturevalue("_tandemmq")
    return peer


@pytest.fixture
def name() -> str:
    """A destination's name that no other test uses."""
    return f"JMS.{next(_numbers)}"


@pytest.fixture
def queue(name: str) -> str:
    """The queue of that name, in the form for the JMS client."""
    return f"queue://{name}"


@pytest.fixture
def connect(jvm: Jvm, broker: Peer) -> Iterator[Connect]:
    """`connect(options, **fields)`: a connection to the broker, which is closed at the end of the test."""
    with ExitStack() as ends:

        def connect(options: str = "", **fields: Any) -> JmsConnection:
            made = jvm.connect(broker.url(options), **fields)
            ends.callback(made.close)
            return made

        yield connect


@pytest.fixture
def connection(connect: Connect) -> JmsConnection:
    return connect()


@pytest.fixture
def session(connection: JmsConnection) -> JmsSession:
    return connection.session()
