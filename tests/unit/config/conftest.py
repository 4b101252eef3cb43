"""Settings files, and queries of ActiveMQ's classes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.config.load import load
from tandemmq.config.settings import Settings

LIBRARIES = Path("/usr/share/activemq/lib")
JARS = ("activemq-broker.jar", "activemq-kahadb-store.jar")


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a settings file, and gives its path."""

    def write(text: str) -> str:
        (tmp_path / "tandemmq.toml").write_text(text)
        return str(tmp_path / "tandemmq.toml")

    return write


@pytest.fixture
def read(file: Callable[[str], str]) -> Callable[[str], Settings]:
    """The settings of a file."""
    return lambda text: load(file(text), {})


@pytest.fixture(scope="session")
def run_java(require_service: Callable[[object, str], None]) -> Callable[..., list[str]]:
    """Runs a program of the directory ``java`` with ActiveMQ's classes: the lines that it prints."""
    java = shutil.which("java")
    require_service(java, "no JDK: java is not in the path")
    for jar in JARS:
        require_service((LIBRARIES / jar).exists(), f"no ActiveMQ: {LIBRARIES} has no {jar}")

    def run(program: str, *arguments: str, input: str | None = None) -> list[str]:
        source = Path(__file__).parent / "java" / program
        command = [str(java), "-XX:TieredStopAtLevel=1", "-cp", f"{LIBRARIES}/*", str(source), *arguments]
        return subprocess.run(command, input=input, capture_output=True, text=True, check=True).stdout.splitlines()

    return run


@pytest.fixture(scope="session")
def properties_of(run_java: Callable[..., list[str]]) -> Callable[..., dict[str, dict[str, str]]]:
    """Return the properties that can be set on classes of ActiveMQ, and the defaults: class -> property -> value."""

    def ask(*names: str) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for line in run_java("Properties.java", *names):
            type_name, name, value = line.split("\t")
            found.setdefault(type_name, {})[name] = value
        return found

    return ask
