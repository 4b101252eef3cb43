"""`nohup pytest &` in a script ends as in a terminal: no process waits for a signal that cannot come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.tree import ROOT

#: Programs that get SIGINT, and SIGTERM.
TESTS = (
    "tests/unit/client/test_client_commands.py::test_control_c_ends_receive_cleanly",
    "tests/unit/client/test_client_commands.py::test_control_c_ends_send_and_says_how_far_it_came",
    "tests/acceptance/test_failover.py::test_sigterm_hands_over_and_ends_with_0",
)
#: What the shell that has ended leaves open, and all that it started, is closed by then.
SECONDS_MAX = 100.0


@pytest.mark.parametrize(
    "blocked",
    [
        pytest.param(set(), id="ignored"),
        pytest.param({signal.SIGINT, signal.SIGTERM}, id="ignored and blocked", marks=pytest.mark.thorough),
    ],
)
def test_tests_that_a_script_starts_with_nohup_end(blocked: set[signal.Signals]) -> None:
    """A shell without job control has them ignore Ctrl-C, nohup hangups, and some that start programs block signals."""
    command = f"nohup {sys.executable} -m pytest -q -n0 -p no:cacheprovider {' '.join(TESTS)} & exit 0"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        shell = subprocess.Popen(
            ["sh", "-c", command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    try:
        # Read to the end: a process that is left would have the pipe open.
        said, _ = shell.communicate(timeout=SECONDS_MAX)
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # as it should be
    assert "3 passed" in said, said
