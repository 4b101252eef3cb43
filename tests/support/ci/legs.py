"""The legs of CI: which tests each runs, where, and with which variables of the environment.

All of them use the README's test command, `pytest`. Together the first three run every test once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.acceptance.docker_image import COMPILED_WHEEL
from tests.support.bytecode import copy_bytecode
from tests.support.ci import compiled_tests
from tests.support.ci.dockerd import daemon
from tests.support.prove import SEED
from tests.support.tree import ROOT

_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".*_cache", ".hypothesis", ".ci-cache", "dist")


@dataclass(frozen=True, slots=True)
class Leg:
    """``arguments``: those of pytest for the whole leg; ``workers``: number of processes. ``is_required``: a program
    that is not installed is a failure, and the tests run in full length. With a ``mark``, only files that contain its
    name are read, because reading all files costs each worker 16 s of CPU; tests/conftest.py refuses a test that such a
    leg would miss."""

    name: str
    arguments: tuple[str, ...]
    workers: int
    mark: str = ""
    is_required: bool = True
    root: Path = ROOT


PLAIN: Final = Leg("plain", ("-m", "not service"), 2)
SERVICES: Final = Leg("services", ("-m", "service and not docker"), 2, "mark.service")
DOCKER: Final = Leg("docker", ("-m", "docker"), 0, "mark.docker")
COMPILED: Final = Leg("compiled", (), 2, is_required=False)
LEGS: Final[Mapping[str, Leg]] = {leg.name: leg for leg in (PLAIN, SERVICES, DOCKER, COMPILED)}


@contextmanager
def prepared(leg: Leg) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the tree in which the leg runs, and its environment. Starts a Docker daemon if the leg needs one."""
    environment = {**os.environ, "CI": "true", "TANDEMMQ_REQUIRE_SERVICES": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if not leg.is_required:
        del environment["CI"], environment["TANDEMMQ_REQUIRE_SERVICES"]
    if leg is DOCKER:
        with daemon() as variables:
            yield leg.root, environment | variables
    elif leg is COMPILED:
        with tempfile.TemporaryDirectory(prefix="tandemmq-compiled-") as directory:
            tree = Path(directory, "tree")
            shutil.copytree(leg.root, tree, symlinks=True, ignore=_LEFT_OUT)
            copy_bytecode(leg.root, tree)
            with zipfile.ZipFile(compiled_wheel(Path(directory))) as wheel:
                wheel.extractall(tree, [name for name in wheel.namelist() if name.endswith(".so")])
            environment["PYTHONPATH"] = str(tree)
            command = [sys.executable, "-m", "tandemmq", "--version"]
            version = subprocess.check_output(command, cwd=tree, env=environment)
            assert b"(compiled)" in version, version
            yield tree, environment
    else:
        yield leg.root, environment


def compiled_wheel(directory: Path) -> Path:
    """Return the wheel in TANDEMMQ_COMPILED_WHEEL, or build one in ``directory``, which takes minutes."""
    there = os.environ.get(COMPILED_WHEEL)
    if there is None:
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(directory), str(ROOT)]
        subprocess.run(command, env={**os.environ, "TANDEMMQ_COMPILE": "1"}, stdout=subprocess.DEVNULL, check=True)
    (wheel,) = Path(there or directory).glob("tandemmq-*.whl")
    return wheel


def arguments_of(leg: Leg, tree: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments of pytest for the whole leg."""
    if leg is not COMPILED:
        files = sorted((tree / "tests").rglob("test_*.py")) if leg.mark else []
        return (*leg.arguments, *(str(file.relative_to(tree)) for file in files if leg.mark in file.read_text()))
    acceptance = _collected(tree, environment, "promise and not (service or thorough or prove)")
    return (*compiled_tests.files(tree), *compiled_tests.sample(acceptance, SEED))


def _collected(tree: Path, environment: Mapping[str, str], marks: str) -> Sequence[str]:
    """Return the acceptance tests with these marks."""
    command = [*pytest_command(), "-n", "0", "--collect-only", "-q", "-m", marks, "tests/acceptance"]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "::" in line]


def pytest_command() -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
