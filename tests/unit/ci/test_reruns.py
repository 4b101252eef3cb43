"""A first run is recorded, and what failed is run again: with tests that fail once, twice, or break a promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.ci import reruns
from tests.support.ci.legs import PLAIN, Leg
from tests.support.ci.record import RECORD, Recorded
from tests.support.ci.reruns import AGAIN_MAX, ALL_PASSED, LOGS, SOME_FAILED, code_of
from tests.support.tree import ROOT

TESTS = """
import os
import pytest
from tests.support.ci.verdicts import PromiseBroken
from tests.support.interop.checkouts import run_by_hand

@pytest.fixture
def broken():
    yield
    raise PromiseBroken("lost: m1")

def test_passes(): pass
def test_fails(): print("what it printed"); assert "as ever" == ""
def test_fails_and_breaks_a_promise(broken): assert False
@pytest.mark.fence
def test_of_the_fence(): assert False
def test_of_others(): run_by_hand("make by-hand")
def test_in_a_worker_that_dies():
    if os.environ.get("PYTEST_XDIST_WORKER"): os._exit(1)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tests")
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = fence: x\n")
    (directory / "test_them.py").write_text(TESTS)
    return directory


def _recorded(directory: Path, *arguments: str) -> tuple[int, Recorded]:
    record = directory / "plain.jsonl"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.ci.record"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TANDEMMQ_SEED": "77", RECORD: str(record)}
    code = subprocess.run([*command, *arguments], cwd=directory, env=environment, capture_output=True).returncode
    return code, Recorded(record)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_workers_tell_what_failed_and_why(directory: Path) -> None:
    code, recorded = _recorded(directory, "-n", "2")

    assert (code, recorded.is_whole, recorded.passed) == (SOME_FAILED, True, 1)
    failures = {failure.test.partition("::")[2]: failure for failure in recorded.failures}
    assert {name: failure.is_verdict for name, failure in failures.items()} == {
        "test_fails": False,
        "test_fails_and_breaks_a_promise": True,
        "test_of_the_fence": True,
        "test_in_a_worker_that_dies": False,
    }
    assert {(failure.leg, failure.seed) for failure in failures.values() if failure.is_verdict} == {("plain", 77)}
    assert "as ever" in failures["test_fails"].text
    assert "what it printed" in failures["test_fails"].text
    assert recorded.by_hand == ["make by-hand"]
    assert "test_them.py::test_passes" in recorded.seconds
    assert code_of(code, recorded, {}) == SOME_FAILED


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_tests_that_cannot_be_read_end_the_run(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name")
    code, recorded = _recorded(directory, str(tmp_path))
    assert not recorded.is_whole
    assert code_of(code, recorded, {}) not in (ALL_PASSED, None)


def test_a_leg_whose_failures_may_pass_again_does_not_end_the_run(tmp_path: Path) -> None:
    failure = {"test": "t", "text": "call", "is_verdict": False, "seed": 1}
    end = {"seconds": {}, "passed": 5, "by_hand": []}

    def code(*lines: dict[str, object], ended_with: int = SOME_FAILED, listings: Mapping[str, int] = {}) -> int:
        (tmp_path / "plain.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return code_of(ended_with, Recorded(tmp_path / "plain.jsonl"), listings)

    assert code(end, ended_with=ALL_PASSED) == ALL_PASSED
    assert code(failure, end) == ALL_PASSED
    assert code(failure, {**failure, "is_verdict": True}, end) == SOME_FAILED, "its end broke a promise"
    assert code(failure, end, listings={"t": 2}) == SOME_FAILED
    assert code(failure) == SOME_FAILED, "it did not run to the end"
    assert code(end) == SOME_FAILED, "something else than a test failed"
    assert code(failure, end, ended_with=3) == 3


FLAKY = """
import os
from pathlib import Path
from tests.support.prove import SEED

def test_passes_the_second_time():
    seen = Path(os.environ["SEEN"])
    if not seen.exists():
        seen.write_text(str(SEED))
        assert False, "the first time"
    assert seen.read_text() == str(SEED)

def test_fails_always(): assert False, "each time"
def test_is_skipped_then():
    import pytest
    seen = Path(os.environ["SEEN"] + "-too")
    if seen.exists(): pytest.skip("not now")
    seen.touch()
    assert False
"""


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with the tests above, whose first run is over; the plain leg runs there."""
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    (tmp_path / "logs").mkdir()
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(LOGS, str(tmp_path / "logs"))
    return tmp_path


def _legs(tree: Path) -> Mapping[str, Leg]:
    return {PLAIN.name: replace(PLAIN, root=tree)}


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_failed_test_is_repeated_alone_with_the_same_seed(flaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reruns.run_first(_legs(flaky)[PLAIN.name], ["-n", "0", "test_flaky.py"]) == ALL_PASSED
    assert reruns.conclude(_legs(flaky)) == SOME_FAILED

    seed = (flaky / "seen").read_text()
    said = capsys.readouterr().out
    assert f"unstable: test_flaky.py::test_passes_the_second_time (leg plain, seed {seed})" in said
    assert f"- `test_flaky.py::test_passes_the_second_time`: leg plain, seed {seed}" in said
    assert "the first time" in said
    assert "1 passed" in (flaky / "logs" / "again-1.log").read_text()
    for test in ("test_fails_always", "test_is_skipped_then"):
        assert f"failed: test_flaky.py::{test}" in said
        assert f"repeat --leg plain --seed {seed} 'test_flaky.py::{test}'" in said
    assert said.splitlines()[-1] == "3 tests: 2 failed twice or count at once, 1 unstable"


def test_of_many_failures_none_is_run_again(flaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"test": str(number), "text": "", "is_verdict": False, "seed": 1} for number in range(AGAIN_MAX + 1)]
    lines.append({"seconds": {}, "passed": 5, "by_hand": ["make by-hand"]})
    (flaky / "logs" / "plain.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert reruns.conclude(_legs(flaky)) == SOME_FAILED
    said = capsys.readouterr().out
    assert "run again: " not in said
    assert "by hand: make by-hand" in said


def test_a_leg_without_its_end_fails_ci(flaky: Path) -> None:
    (flaky / "logs" / "plain.jsonl").write_text("")
    assert reruns.conclude(_legs(flaky)) == SOME_FAILED
