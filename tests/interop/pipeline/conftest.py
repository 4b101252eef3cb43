"""Stores with a book of what their clients did, each written once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.interop.java_programs import activemq_6, compiled
from tests.support.interop.jms.jvm import SOURCES, class_path
from tests.support.ledger.stores import by_activemq, by_set, by_tandemmq
from tests.support.ledger.writers import WRITERS, Written, needs_java
from tests.support.prove import IS_FULL, SEED
from tests.support.services.zookeeper import zookeeper
from tests.support.tree import TESTS
from tests.unit.pipeline.conftest import spark, spark_installed  # noqa: F401 - fixtures

STEPS: Final = 400 if IS_FULL else 120
JAVA: Final = TESTS / "support" / "ledger" / "java"

Write = Callable[[str, int], Written]


@pytest.fixture(scope="session")
def java(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client for JMS, and LedgerBroker, compiled."""
    directory = tmp_path_factory.mktemp("classes")
    sources = (*sorted(SOURCES.glob("*.java")), JAVA / "LedgerBroker.java")
    compiled(require_service, directory, *sources, path=class_path(directory))
    return directory


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Write:
    """`write(name, round)`: what that writer of WRITERS wrote from the seed of that round."""

    @functools.cache
    def write(name: str, round: int) -> Written:
        seed = SEED + round
        print(f"TANDEMMQ_SEED={seed}")
        writer = WRITERS[name]
        directory = tmp_path_factory.mktemp("ledger") / "broker"
        story = directory, writer.protocol, seed, STEPS
        classes = request.getfixturevalue("java") if needs_java(name) else None
        if name == "tandemmq-set":
            with zookeeper(request.getfixturevalue("require_service")) as server:
                truth = by_set(*story, zookeeper=server, classes=classes)
        elif name.startswith("tandemmq"):
            truth = by_tandemmq(*story, settings=writer.options[0], classes=classes)
        else:
            if "-6-" in name:
                path = f"{classes}:{activemq_6(request.getfixturevalue('require_service')).path}"
            else:
                path = class_path(classes)
            truth = by_activemq(*story, *writer.options, classes=classes, path=path)
        return Written((str((directory / "data").resolve()),), truth, writer.is_whole, name.startswith("tandemmq"))

    return write
