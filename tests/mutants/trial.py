"""Trial of one mutant: a copy of the tree with this mutant only, and the tests that prove its mark.

The checkout itself is never written to. Tests, and the processes that they start, import the modules of the copy, even
if others are installed.
"""

from __future__ import annotations

import enum
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.changes import Mutant
from tests.mutants.witness import BEGUN, FAILED, LATE, OVER, WITNESS
from tests.support.bytecode import copy_bytecode
from tests.support.journal.compiler import NoCompiler, compile_c
from tests.support.samples import ALL_CASES

# pytest ends a test after this time. If it cannot, the whole run is ended when the witness wrote nothing for twice the
# time.
TEST_SECONDS_MAX = 60
# Time between two looks at the file of the witness.
POLL_SECONDS = 0.05
_OUTPUT_MAX = 4000  # characters

_LEFT_OUT = shutil.ignore_patterns(
    *("__pycache__", "*.so"),  # compiled files would be used instead of the mutant
    ".git",
    ".venv",
    ".*_cache",
    ".hypothesis",
    ".ci-cache",
    "dist",
    "build",
    "tandemmq-data",
    "demo",
)
# Option of pytest that runs tests which need a service.
SERVICES = "--services"
# Variables that change which tests run, or how long.
_UNSET = (
    *("CI", "TANDEMMQ_PROVE", "TANDEMMQ_REQUIRE_SERVICES"),
    *("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"),
    *("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"),
)
# A fixed seed: a test that once caught a mutant catches it again.
SEED = "20"


class How(enum.StrEnum):
    """The way in which a mutant was detected."""

    TEST = "test"
    LIMIT = "limit"  # a time limit: the mutant hangs, or the machine is too busy
    SIGNAL = "signal"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``caught_by``: the test that failed, or the limit that was reached. ``why_not``: the output of a test that failed
    on the unchanged tree, too, and so has caught nothing."""

    mutant: Mutant
    how: How
    caught_by: str
    seconds: float
    why_not: str = ""


class TrialFailed(Exception):
    """The tests could not be run at all."""


class Tree:
    """A copy of the tree for one mutant at a time. A test may take ``patience`` times as long as on a quiet machine."""

    def __init__(self, root: Path, directory: Path, patience: float = 1, *, is_thorough: bool = True) -> None:
        self._is_thorough = is_thorough
        self._test_seconds_max = TEST_SECONDS_MAX * patience
        self._root = directory / "tree"
        self._scratch = directory
        self._compiled = directory / "compiled"
        shutil.copytree(root, self._root, symlinks=True, ignore=_LEFT_OUT)
        copy_bytecode(root, self._root, self._compiled)

    def try_out(self, mutant: Mutant, tests: Sequence[str]) -> Outcome:
        """Run ``tests`` until one fails. Raises TrialFailed, and MarkError if the mutant is not valid Python."""
        file = self._root / mutant.mark.path
        original = file.read_text(encoding="utf-8")
        started = time.monotonic()
        try:
            file.write_text(mutant.source, encoding="utf-8")
            if file.suffix == ".c":
                self._demand_compilable(file)
            else:
                mutant.demand_syntax()
            self._forget_compiled(file)
            code, printed = self._pytest("-x", *tests)
            if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                code, printed = self._pytest("-x", SERVICES, "-m", "service", *tests)
        finally:
            file.write_text(original, encoding="utf-8")
            self._forget_compiled(file)
        seconds = time.monotonic() - started
        if code is None:
            begun = _lines_with(printed, BEGUN)
            where = "the end of the tests" if OVER in printed or not begun else begun[-1]
            return Outcome(mutant, How.LIMIT, f"{where}, silent for {2 * self._test_seconds_max:g} s", seconds)
        if code < 0:
            return Outcome(mutant, How.SIGNAL, f"signal {-code}", seconds)
        if failed := _lines_with(printed, FAILED):
            return Outcome(mutant, How.TEST, failed[0], seconds)
        if late := _lines_with(printed, LATE):
            return Outcome(mutant, How.LIMIT, f"{late[0]}, after {self._test_seconds_max:g} s", seconds)
        return Outcome(mutant, How.NOTHING, "", seconds)

    def failing(self, tests: Sequence[str]) -> tuple[set[str], str]:
        """Return the ``tests`` that fail without any mutant, and the end of their output. Raises TrialFailed."""
        if not tests:
            return set(), ""
        printed = self._pytest(*tests)[1]
        output = (self._scratch / "output").read_text(encoding="utf-8", errors="replace")[-_OUTPUT_MAX:]
        return {*_lines_with(printed, FAILED), *_lines_with(printed, LATE)}, output

    def _pytest(self, *arguments: str) -> tuple[int | None, list[str]]:
        """Run pytest. Return its exit code (None: it hung), and the lines of the witness."""
        witness = self._scratch / "witness"
        witness.write_text("", encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
        environment |= {
            "PYTHONPATH": str(self._root),
            "PYTHONPYCACHEPREFIX": str(self._compiled),
            "TANDEMMQ_SEED": SEED,
            "TANDEMMQ_THOROUGH": str(int(self._is_thorough)),
            ALL_CASES: "1",
            WITNESS: str(witness),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants.witness", f"--timeout={self._test_seconds_max}", f"--hypothesis-seed={SEED}"]
        command += [f"--basetemp={self._scratch / 'tmp'}", *arguments]
        with (
            (self._scratch / "output").open("w+", encoding="utf-8", errors="replace") as output,
            subprocess.Popen(
                command, cwd=self._root, env=environment, stdout=output, stderr=output, start_new_session=True
            ) as process,
        ):
            try:
                code = _ended(process, witness, 2 * self._test_seconds_max)
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # also the processes that tests left behind
                except ProcessLookupError:
                    pass
            printed = witness.read_text(encoding="utf-8").splitlines()
            if code not in (None, pytest.ExitCode.NO_TESTS_COLLECTED) and code > 1 and not _lines_with(printed, FAILED):
                output.seek(0)
                raise TrialFailed(f"pytest ended with {code}: {' '.join(arguments)}\n{output.read()[-_OUTPUT_MAX:]}")
        return code, printed

    def _demand_compilable(self, file: Path) -> None:
        """Raise TrialFailed if the file cannot be compiled. Otherwise all tests would fail, which proves nothing."""
        try:
            compile_c(file, self._scratch / "mutant.so")
        except (NoCompiler, subprocess.CalledProcessError) as error:
            raise TrialFailed(f"{file.name} with the mutant cannot be compiled") from error

    def _forget_compiled(self, file: Path) -> None:
        """Remove the compiled files of a source file. They would still be used if the size and the second of the change
        are the same."""
        for compiled in self._compiled.rglob(f"{file.stem}.*.pyc"):
            compiled.unlink()


def _lines_with(printed: Sequence[str], what: str) -> list[str]:
    return [line.removeprefix(what) for line in printed if line.startswith(what)]


def _ended(process: subprocess.Popen[bytes], witness: Path, silence_seconds_max: float) -> int | None:
    """Wait for the end of the process. Return its exit code; None if the witness wrote nothing for too long."""
    printed, changed_at = 0, time.monotonic()
    while True:
        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            length = witness.stat().st_size
            if length != printed:
                printed, changed_at = length, time.monotonic()
            elif time.monotonic() - changed_at > silence_seconds_max:
                return None
