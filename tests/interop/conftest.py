"""The real ActiveMQ over a directory, driven by java/Tandem.java, and the real JMS client in a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.interop.java_programs import DEBIAN, Release, activemq_6, compiled, program
from tests.support.interop.jms.jvm import SOURCES, Jvm, class_path
from tests.support.interop.scripted import Script
from tests.support.interop.scripted import compiled as compiled_script
from tests.support.samples import sampled

Owner = dict[str, Any]
ActiveMQ = Callable[..., list[Owner]]


#: Debian's ActiveMQ, and the newest.
RELEASES: Final = ("5.17", "6.3.1")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test over a directory meets one release, which the seed draws for each test function. A proof has both."""
    if "release" in metafunc.fixturenames:
        cases = sampled(metafunc.function.__name__, RELEASES, 1)
        metafunc.parametrize("release", cases, indirect=True, scope="session")


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest, require_service: Callable[[object, str], None]) -> Release:
    """The ActiveMQ that a test over a directory meets."""
    return DEBIAN if request.param == "5.17" else activemq_6(require_service)


@pytest.fixture(scope="session")
def activemq(
    require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory, release: Release
) -> ActiveMQ:
    """`activemq("produce" | "dump" | "consume", directory)`: the lines that Tandem.java prints, decoded."""
    tandem = program(require_service, tmp_path_factory.mktemp("classes"), "Tandem", release)

    def run(verb: str, directory: Path, *options: str) -> list[Owner]:
        return [json.loads(line) for line in tandem(verb, str(directory), *options).splitlines()]

    return run


@pytest.fixture(scope="session")
def script(
    require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory, release: Release
) -> Script:
    """`script(step, step, ...)` runs one life of ActiveMQ (java/Script.java)."""
    return compiled_script(require_service, tmp_path_factory.mktemp("classes"), release)


@pytest.fixture(scope="session")
def classes(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of tests/support/interop/jms/java, compiled."""
    directory = tmp_path_factory.mktemp("classes")
    compiled(require_service, directory, *sorted(SOURCES.glob("*.java")), path=class_path(directory))
    return directory


@pytest.fixture(scope="module")
def jvm(classes: Path) -> Iterator[Jvm]:
    jvm = Jvm(classes)
    yield jvm
    jvm.close()


def held_in(lines: list[Owner]) -> dict[str, list[str]]:
    """From ActiveMQ's report: the owner in words -> the ids of its messages in order, if it has any."""
    found = {}
    for line in lines:
        if line.get("messages"):
            name = line["destination"].partition("://")[2]
            if line["owner"] == "subscription":
                name = f"{line['clientId']}:{line['name']}"
            found[name] = [message["id"] for message in line["messages"]]
    return found
