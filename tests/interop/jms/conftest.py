"""The real JMS client before a real ActiveMQ and before ours: what holds there holds here."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.interop.jms.jvm import LIBRARIES, SOURCES, Jvm, class_path
from tests.support.interop.jms.peers import ActiveMQ, Peer, TandemMQ
from tests.support.prove import IS_PROOF

COMPILE_SECONDS_MAX = 300

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def classes(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """java/*.java, compiled."""
    javac = shutil.which("javac")
    require_service(shutil.which("java") and javac, "no JDK: java and javac are not in the path")
    require_service((LIBRARIES / "activemq-client.jar").exists(), f"no ActiveMQ: {LIBRARIES} has no client")
    assert javac is not None
    directory = tmp_path_factory.mktemp("classes")
    sources = [str(source) for source in sorted(SOURCES.glob("*.java"))]
    options = ["-J-XX:TieredStopAtLevel=1", "-nowarn", "-encoding", "UTF-8"]
    done = subprocess.run(
        [javac, *options, "-cp", class_path(directory), "-d", str(directory), *sources],
        capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


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
    """It lives as long as the session, so names are a test's own (`name`).

    With TANDEMMQ_PROVE=full each test runs before ActiveMQ, too: what is expected is what JMS users get there.
    """
    peer: Peer = request.getfixturevalue(f"_{request.param}")
    return peer


@pytest.fixture
def only_tandemmq(request: pytest.FixtureRequest) -> Peer:
    """Ours, where ActiveMQ is another."""
    peer: Peer = request.getfixturevalue("_tandemmq")
    return peer


@pytest.fixture(scope="module")
def jvm(classes: Path) -> Iterator[Jvm]:
    jvm = Jvm(classes)
    yield jvm
    jvm.close()


@pytest.fixture
def name() -> str:
    """A destination's name that no other test uses."""
    return f"JMS.{next(_numbers)}"
