"""The parts of .ci/run beside pytest: the table of its steps, the end of its processes, the tests that run compiled."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.ci import compiled_tests
from tests.support.tree import ROOT


def _script(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module  # its dataclasses look there
    specification.loader.exec_module(module)
    return module


split: Any = _script("split")
processes: Any = _script("processes")


def test_the_table_shows_which_steps_ran_in_parallel() -> None:
    steps = split.steps_in(
        "checks 104 150.2 1 0m1.5s 0m0.5s 1m2.0s 0m1.0s\npackages 100.5 104.4 0\ncompile 104.1 204 0\n"
    )
    assert split.table(steps).splitlines() == [
        "step      start  seconds  CPU  beside",
        "packages      0        4    0  ",
        "checks        4       46   65  compile  FAILED (1)",
        "compile       4      100    0  checks",
        "all           0      104   65",
    ]


def test_only_processes_left_by_the_run_are_ended(tmp_path: Path) -> None:
    mark = str(tmp_path)
    endless = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"]
    stubborn = [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); input()"]

    def started(command: list[str], mark: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, processes.VARIABLE: mark}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    ours, other = started(endless, mark), started(endless, f"{mark}0")
    with ours, other:
        try:
            assert list(processes.marked(mark)) == [ours.pid]
            ended = subprocess.run(
                [sys.executable, str(ROOT / ".ci" / "processes.py"), mark],
                env={**os.environ, processes.VARIABLE: mark},
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert "left behind, and ended: " in ended.stdout
            assert ours.wait(10) == -15
            assert other.poll() is None
        finally:
            ours.kill()
            other.kill()
    with started(stubborn, mark) as process:
        assert list(processes.marked(mark)) == [process.pid]
        processes.end(mark, seconds=0.2)
        assert process.wait(10) == -9


def test_the_tests_of_a_compiled_module_mirror_or_import_it() -> None:
    found = compiled_tests.files()
    assert "tests/unit/broker/core/queue/test_queue.py" in found, "mirrors broker/core/queue/queue.py"
    assert "tests/model/core/test_queue_model.py" in found, "imports it"
    assert "tests/unit/ci/test_rules.py" not in found
    assert "tests/unit/pipeline/local/test_gaps.py" not in found, "imports it for a test of the pipeline"
    assert "tests/unit/pipeline/test_lockstep_tables.py" in found, "compares what it decodes"
    assert not [file for file in found if file.startswith("tests/acceptance/")]


def test_the_sample_is_the_same_for_the_same_seed() -> None:
    tests = [f"tests/acceptance/test_x.py::test_{number}" for number in range(80)]
    sample = compiled_tests.sample(tests, 7)
    assert sample == compiled_tests.sample(tests, 7) == sorted(sample, key=tests.index)
    assert len(set(sample)) == compiled_tests.ACCEPTANCE_COUNT
    assert sample != compiled_tests.sample(tests, 8)
    assert compiled_tests.sample(tests[:5], 7) == tests[:5]
