"""Fixtures for tests of a set of brokers: its network, and its ZooKeeper."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.acceptance import bridge
from tests.support.acceptance.bridge import Bridge
from tests.support.acceptance.set_of_brokers import SetOfBrokers
from tests.support.services.zookeeper import JAR, WANT, ZooKeeperServer

MakeZooKeepers = Callable[[int], list[ZooKeeperServer]]
MakeSet = Callable[..., SetOfBrokers]


@pytest.fixture
def network() -> Iterator[Bridge | None]:
    """Yield a network; None where none can be created: then all nodes are on loopback, and no test changes their
    network."""
    if not all(map(shutil.which, bridge.PROGRAMS)) or bridge.not_allowed() is not None:
        yield None
        return
    made = Bridge()
    yield made
    made.remove()


@pytest.fixture
def zookeepers(network: Bridge | None, require_service: Callable[[object, str], None]) -> Iterator[MakeZooKeepers]:
    """Yield a function that creates and starts an ensemble of ``count`` servers."""
    require_service(JAR.exists() and shutil.which("java"), WANT)
    made: list[ZooKeeperServer] = []

    def make(count: int = 1) -> list[ZooKeeperServer]:
        made.extend(ZooKeeperServer("127.0.0.1" if network is None else network.address) for _ in range(count))
        for server in made:
            server.peers = made if count > 1 else []
        for server in made:
            server.start()
        return made

    yield make
    for server in made:
        server.remove()


@pytest.fixture
def make(tmp_path: Path, network: Bridge | None, zookeepers: MakeZooKeepers) -> Iterator[MakeSet]:
    """Yield a function that creates a set with one ZooKeeper server. It does not start the set."""
    made: list[SetOfBrokers] = []

    def make(replicas: int = 3, **options: Any) -> SetOfBrokers:
        made.append(SetOfBrokers(tmp_path, replicas, zookeepers=zookeepers(1), bridge=network, **options))
        return made[-1]

    yield make
    for whole in made:
        whole.stop()
