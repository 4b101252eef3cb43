"""Java programs that use the libraries of an ActiveMQ: compiled once, and run with given input."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.bench.peers import programs
from tests.support.interop.jms.jvm import LIBRARIES

SOURCES = Path(__file__).parent / "java"
JAVA_SECONDS_MAX = 90
COMPILE_SECONDS_MAX = 300

#: `program(*arguments, text="")` returns the output.
Program = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Release:
    """A release of ActiveMQ: its jars as a class path entry, and the package of its JMS."""

    path: str
    package: str


DEBIAN: Final = Release(f"{LIBRARIES}/*", "javax.jms")


def activemq_6(require_service: Callable[[object, str], None]) -> Release:
    """Return ActiveMQ 6.3.1, from Maven. Without Maven the test is skipped, or fails."""
    require_service(shutil.which("mvn"), "mvn is not installed: Debian's package maven")
    return Release(f"{programs.activemq_6()}/*", "jakarta.jms")


def activemq_amqp(require_service: Callable[[object, str], None]) -> Release:
    """Return ActiveMQ 6.3.1 with its AMQP connector, from Maven. Without Maven the test is skipped, or fails."""
    require_service(shutil.which("mvn"), "mvn is not installed: Debian's package maven")
    command = "mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib"
    directory = programs.built("interop-activemq-amqp", ("pom.xml",), command, beside=SOURCES / "amqp")
    return Release(f"{directory / 'lib'}/*", "jakarta.jms")


def compiled(
    require_service: Callable[[object, str], None],
    directory: Path,
    *sources: Path,
    path: str = "",
    release: Release = DEBIAN,
) -> None:
    """Compile the sources into ``directory``. Without a JDK or ActiveMQ the test is skipped, or fails."""
    require_service(shutil.which("java") and shutil.which("javac"), "no JDK: java and javac are not in the path")
    if release == DEBIAN:
        for jar in ("activemq-client.jar", "activemq-kahadb-store.jar"):
            require_service((LIBRARIES / jar).exists(), f"no ActiveMQ: {LIBRARIES} has no {jar}")
    copies = []
    for source in sources:
        copies.append(directory / source.name)
        copies[-1].write_text(source.read_text().replace(DEBIAN.package, release.package))
    options = ["-J-XX:TieredStopAtLevel=1", "-nowarn", "-encoding", "UTF-8", "-cp", path or release.path]
    _run(["javac", *options, "-d", str(directory), *map(str, copies)], "", COMPILE_SECONDS_MAX)


def compiled_for_jakarta(require_service: Callable[[object, str], None], directory: Path, *sources: Path) -> str:
    """Like ``compiled``, for ActiveMQ 6.3.1, which has jakarta.jms instead of javax.jms. Return the class path."""
    release = activemq_6(require_service)
    path = f"{directory}:{release.path}"
    compiled(require_service, directory, *sources, path=path, release=release)
    return path


def program(
    require_service: Callable[[object, str], None], directory: Path, name: str, release: Release = DEBIAN
) -> Program:
    """Return the program java/``name``.java, with ``release``."""
    compiled(require_service, directory, SOURCES / f"{name}.java", release=release)

    def run(*arguments: str, text: str = "") -> str:
        path = f"{directory}:{release.path}"
        command: Sequence[str] = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, name, *arguments]
        return _run(command, text, JAVA_SECONDS_MAX)

    return run


def _run(command: Sequence[str], text: str, seconds: float) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
