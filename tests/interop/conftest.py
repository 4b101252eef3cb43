"""The real ActiveMQ over a directory, driven by java/Tandem.java, and the real JMS client in a JVM."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.interop.jms.jvm import SOURCES, Jvm, class_path
from tests.support.tree import TESTS

LIBRARIES = Path("/usr/share/activemq/lib")
SOURCE = TESTS / "support" / "interop" / "java" / "Tandem.java"
JAVA_SECONDS_MAX = 90
COMPILE_SECONDS_MAX = 300

Owner = dict[str, Any]
ActiveMQ = Callable[..., list[Owner]]


@pytest.fixture(scope="session")
def activemq(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> ActiveMQ:
    """`activemq("produce" | "dump" | "consume", directory)`: the lines that Tandem.java prints, decoded."""
    java, javac = shutil.which("java"), shutil.which("javac")
    require_service(java and javac, "no JDK: java and javac are not in the path")
    require_service((LIBRARIES / "activemq-kahadb-store.jar").exists(), f"no ActiveMQ: {LIBRARIES} has no KahaDB")
    assert java is not None
    assert javac is not None
    classes = tmp_path_factory.mktemp("classes")
    _run([javac, "-nowarn", "-encoding", "UTF-8", "-cp", f"{LIBRARIES}/*", "-d", str(classes), str(SOURCE)])

    def run(verb: str, directory: Path, *options: str) -> list[Owner]:
        path = f"{classes}:{LIBRARIES}/*"
        output = _run([java, "-Xmx256m", "-cp", path, "Tandem", verb, str(directory), *options])
        return [json.loads(line) for line in output.splitlines()]

    return run


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="session")
def classes(require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of tests/support/interop/jms/java, compiled."""
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


@pytest.fixture(scope="module")
def jvm(classes: Path) -> Iterator[Jvm]:
    jvm = Jvm(classes)
    yield jvm
    jvm.close()
